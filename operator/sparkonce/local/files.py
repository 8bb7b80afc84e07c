"""Opens what a user named: regular files, and nothing that blocks.

Opening a FIFO waits for a writer, and reading a device may never end. So a file is opened without waiting and looked at before it is read;
the type is taken from the open descriptor, because the name may mean another file by then.
"""

from __future__ import annotations

import os
import stat
from typing import IO

from sparkonce.errors import InvalidInput

_TYPES = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(InvalidInput):
    """The name is a folder, FIFO, socket or device; `what` says which."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} is {what}; name a regular file")
        self.what = what


def regular(path: str) -> IO[bytes]:
    """The file, open for reading. Raises: NotRegular. OSError: it cannot be opened."""
    _check(path, os.stat(path).st_mode)  # noqa: PTH116 - a socket cannot be opened, so it is looked at by name first
    # O_NOCTTY: a terminal must not become ours; O_NONBLOCK: it may have become a FIFO since.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(number, "rb")
    try:
        _check(path, os.fstat(number).st_mode)
    except NotRegular:
        file.close()
        raise
    return file


def _check(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NotRegular(path, next((what for test, what in _TYPES if test(mode)), "no regular file"))
