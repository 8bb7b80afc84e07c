"""Objects of a table in a local folder, which survive a power failure once `create` has returned True.

obstore's own create writes a temporary file, links it to its name and never calls fsync: after a power failure the name may exist with no
content, and a slot that cannot be read blocks its key. So `FolderObjects` writes, fsyncs, *then* links, then fsyncs the folders up to the
table and its parent. Linking before the fsync would leave exactly that window open.
A process that dies in between leaves a temporary file `<object>#<digits>`, the pattern of obstore's own temporary files, which its listing
hides.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from obstore.store import LocalStore

from sparkonce.errors import OutputUnsafe
from sparkonce.sink.objects.protocol import StoreObjects, first_line

SYNC_THREADS = 8
"""Concurrent fsyncs of data files: a disk reorders them, and more threads than its queue depth gain nothing."""

_DELETE_TRIES = 5
"""Other processes may delete the same folder, or a superseded driver may still write to it; the next sweep deletes the rest."""

_REASONS = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOSPC: "no space is left there",
    errno.EDQUOT: "the disk quota is used up",
    errno.ENOTDIR: "a part of that path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.EROFS: "the file system is read-only",
    errno.ENOENT: "it does not exist",
    errno.ELOOP: "its symbolic links go in circles",
    errno.ENAMETOOLONG: "the path is too long",
}
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems without hard links answer to link(2)."""


class FolderObjects(StoreObjects):
    """Objects of a table in a local or mounted folder, which need not exist yet: only `create` makes folders.

    durable: False omits every fsync. Objects then survive crashes of processes but not power failures: for tests and benchmarks that
    measure something else, never for data."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        if not folder.is_absolute():
            raise ValueError(f"{folder} is not an absolute path")
        # One store for the whole file system: obstore requires an existing folder, and reading a table must not create it.
        super().__init__(LocalStore(), str(folder), uri=folder.as_uri(), reason=_reason)
        self._folder, self._durable = folder, durable

    def where(self, path: str) -> str:
        return f"file://{self._folder / path}"

    async def create(self, path: str, data: bytes) -> bool:
        final = self._folder / path
        temporary = final.with_name(f"{final.name}#{secrets.randbits(63)}")
        try:
            if final.exists():
                return False
            self._make_folders(final.parent)
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    if self._durable:
                        os.fsync(file.fileno())
                if not _link(temporary, final):
                    return False
            finally:
                temporary.unlink(missing_ok=True)
            self._sync_folders(final.parent)
        except OSError as error:
            raise self._unavailable("create", path, error) from error
        return True

    async def persist(self, paths: Iterable[str]) -> None:
        if not self._durable:
            return
        files = [self._folder / path for path in paths]
        try:
            with ThreadPoolExecutor(SYNC_THREADS) as pool:
                list(pool.map(_fsync, files))
            for parent in dict.fromkeys(file.parent for file in files):
                self._sync_folders(parent)
        except OSError as error:
            raise self._unavailable("flush to disk", "", error) from error

    async def delete_folder(self, prefix: str) -> None:
        """Deletes a folder, its subfolders, and all files, including those that a listing hides."""
        if not prefix:
            raise ValueError("a table is never deleted as a whole")
        folder = self._folder / prefix
        for left in reversed(range(_DELETE_TRIES)):
            try:
                shutil.rmtree(folder)
            except OSError as error:
                if error.errno == errno.ENOENT and str(error.filename) == str(folder):
                    return
                if left == 0 or error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise self._unavailable("delete", prefix, error) from error
            else:
                return

    def _make_folders(self, folder: Path) -> None:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            if self._durable:
                _fsync(each.parent)

    def _sync_folders(self, folder: Path) -> None:
        """Fsyncs each folder up to the table, whichever process made it, and the table's parent."""
        if not self._durable:
            return
        while folder != self._folder:
            _fsync(folder)
            folder = folder.parent
        _fsync(folder)
        try:
            _fsync(folder.parent)
        except PermissionError:
            return  # another user's folder, which we may traverse and not open: the process that made the table there has synced it


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(temporary: Path, final: Path) -> bool:
    try:
        os.link(temporary, final)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise OutputUnsafe(
                f"{final.parent} is on a file system without hard links, so create-if-absent is impossible there; "
                "put the output on another one"
            ) from None
        raise
    return True


def _reason(error: Exception) -> str:
    """A short explanation of an operating system error."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(found[1])
    return first_line(error) if number is None else _REASONS.get(number, os.strerror(number).lower())
