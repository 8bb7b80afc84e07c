"""Leases of processes on one machine, as locks of the operating system: no clock decides who is dead.

`open` creates `<ledger>.leases/<id>` and locks it (flock, exclusive) for as long as the lease lasts; the kernel lets go when the process
ends, however it ends. `held(id)` asks for a *shared* lock on a descriptor of its own and lets go at once, so that any number of askers
never see each other: only an owner makes it fail. Ids are unique and the owner locks before any claim names the file, so a file that
once was unlocked, or is missing, is a lease that has ended for ever.

Children must not keep a dead parent's lease alive. Descriptors are close-on-exec, and a fork closes them in the child, which does not
unlock the parent's. POSIX record locks, which a fork does not inherit, were not taken: closing *any* descriptor of the file drops them, so
the owner could not even ask. A pid in the file was not taken, because pids are reused and differ between containers.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparkonce.errors import StoreUnavailable
from sparkonce.store.ledger import HeldLease

LITTER_AGE = 3600.0
"""Seconds after which a file that nobody locks is removed: far longer than the instant between its creation and its lock."""

_forking = threading.Lock()  # held while a descriptor is made known, so that no fork misses it
_descriptors: set[int] = set()


def _after_fork_in_child() -> None:
    for descriptor in _descriptors:
        with suppress(OSError):
            os.close(descriptor)  # never LOCK_UN: the lock belongs to the open file, which is the parent's, too
    _descriptors.clear()
    _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_after_fork_in_child)


class FileLease(HeldLease):
    def __init__(self, path: Path, *, owner: str, touch: Callable[[str], None], forget: Callable[[str], None]) -> None:
        """`touch` and `forget`: of the claims under a lease id, in the store. StoreUnavailable when the file cannot be made."""
        self.id = path.name
        self.owner = owner
        self._path, self._touch, self._forget = path, touch, forget
        self._pid = os.getpid()
        self._lock = threading.Lock()
        with _forking:
            self._descriptor: int | None = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            _descriptors.add(self._descriptor)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    @property
    def ended(self) -> bool:
        """Revoked, or this is a child of the process that holds it, or the file was removed under us."""
        with self._lock:
            if self._descriptor is None or os.getpid() != self._pid:
                return True
            return os.fstat(self._descriptor).st_nlink == 0

    async def keep_alive(self) -> bool:
        if self.ended:
            return False
        self._touch(self.id)
        return True

    async def revoke(self) -> None:
        if self.ended:
            return
        with suppress(StoreUnavailable):  # the claims end with the lock; removing their rows only tells watchers sooner
            self._forget(self.id)
        self._path.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """What the kernel does when the process dies: the lock goes, rows and file stay."""
        with self._lock, _forking:
            if self._descriptor is not None and os.getpid() == self._pid:
                _descriptors.discard(self._descriptor)
                os.close(self._descriptor)
            self._descriptor = None


class LeaseFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, *, owner: str, touch: Callable[[str], None], forget: Callable[[str], None]) -> FileLease:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._sweep()
            return FileLease(self._folder / uuid.uuid4().hex, owner=owner, touch=touch, forget=forget)
        except OSError as error:
            raise StoreUnavailable(
                f"no lease could be opened in {self._folder} ({error.strerror}); check its permissions and the disk"
            ) from None

    def held(self, lease: str) -> bool:
        """Whether the process that opened this lease still has it. StoreUnavailable when nobody can tell."""
        try:
            descriptor = os.open(self._folder / lease, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreUnavailable(f"the lease {self._folder / lease} cannot be looked at ({error.strerror})") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _sweep(self) -> None:
        """Removes what processes that were killed left behind."""
        old = time.time() - LITTER_AGE
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime < old and not self.held(entry.name):
                        Path(entry.path).unlink()
