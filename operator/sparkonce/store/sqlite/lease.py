"""Leases of processes on one machine as file locks: the kernel, not a clock, decides whether an owner is dead. Detects network disks.

`open` creates `<ledger>.leases/<id>` and holds an exclusive flock on it for as long as the lease lasts; the kernel releases it when the
process ends, however it ends. `held(id)` tries a *shared* lock on a separate descriptor and releases it at once, so that concurrent
checks do not conflict: only an owner makes it fail. Ids are unique, and the owner locks the file before any claim names it, so a file
that is found unlocked or missing is a lease that has ended for good.

Children must not keep a dead parent's lease alive. Descriptors are close-on-exec, and a forked child closes them, which does not unlock
the parent's. POSIX record locks are not inherited by a fork, but closing *any* descriptor of the file drops them, so the owner could not
even check its own lease. A pid in the file does not work either: pids are reused and differ between containers.

`network_file_system` looks a folder up in the kernel's mount table, because SQLite's shared memory and file locks do not work over a
network. Trying a lock would prove nothing: many network file systems grant locks that only this machine sees.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparkonce.errors import StoreUnavailable, StoreUnusable
from sparkonce.store.ledger import HeldLease

LITTER_AGE = 3600.0
"""Age in seconds at which an unlocked file is removed: far longer than the moment between its creation and its lock."""

_forking = threading.Lock()  # held while a descriptor is registered, so that no fork misses it
_descriptors: set[int] = set()


def _after_fork_in_child() -> None:
    for descriptor in _descriptors:
        with suppress(OSError):
            os.close(descriptor)  # never LOCK_UN: the lock belongs to the open file, which the parent shares
    _descriptors.clear()
    _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_after_fork_in_child)


class FileLease(HeldLease):
    """A lease held as an exclusive lock on a file."""

    def __init__(self, path: Path, *, owner: str, touch: Callable[[str], None], forget: Callable[[str], None]) -> None:
        """Creates and locks the file. `touch` and `forget` renew and delete the claims under a lease id in the store.

        Raises:
            OSError: the file cannot be created or locked; there is no lease.
        """
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
        """True if revoked, in a forked child, or if the file was removed or is no longer at its path, where other processes look for it."""
        if os.getpid() != self._pid:  # before the lock: a thread that held it at the fork does not exist here
            return True
        with self._lock, suppress(OSError):
            return self._descriptor is None or not os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        return True

    async def keep_alive(self) -> bool:
        if self.ended:
            return False
        self._touch(self.id)
        return True

    async def revoke(self) -> None:
        try:
            if not self.ended:
                # The claims end with the lock; removing their rows only notifies watchers sooner, and a file that stays is swept.
                with suppress(StoreUnavailable, StoreUnusable):
                    self._forget(self.id)
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Releases the lock and keeps rows and file, as the kernel does when the process dies. In a forked child it is not held."""
        if os.getpid() != self._pid:
            return
        with self._lock, _forking:
            if self._descriptor is not None:
                _descriptors.discard(self._descriptor)
                os.close(self._descriptor)
            self._descriptor = None


class LeaseFiles:
    """The folder of lease files beside a ledger."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, *, owner: str, touch: Callable[[str], None], forget: Callable[[str], None]) -> FileLease:
        """Opens a lease for this process and removes old files of ended ones.

        Raises:
            StoreUnavailable: the file cannot be created or locked; there is no lease.
        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._sweep()
            return FileLease(self._folder / uuid.uuid4().hex, owner=owner, touch=touch, forget=forget)
        except OSError as error:
            raise StoreUnavailable(
                f"no lease could be opened in {self._folder} ({error.strerror}); check its permissions and the disk"
            ) from None

    def held(self, lease: str) -> bool:
        """Whether the process that opened this lease still holds it. Raises: StoreUnavailable when it cannot be determined."""
        try:
            descriptor = os.open(self._folder / lease, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreUnavailable(f"the lease {self._folder / lease} cannot be checked ({error.strerror})") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _sweep(self) -> None:
        """Removes old files of killed processes."""
        old = time.time() - LITTER_AGE
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime < old and not self.held(entry.name):
                        Path(entry.path).unlink()


MOUNTS = Path("/proc/mounts")
NETWORK = re.compile(
    r"(9p|afs|beegfs|ceph|cifs|coda|gfs2?|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|prl_fs|pvfs2|smb2|smb3|smbfs|sshfs|vboxsf)"
    r"|fuse\.(ceph|cephfs|curlftpfs|davfs|gcsfuse|glusterfs|goofys|juicefs|mount-s3|rclone|s3fs|sshfs)"
)
"""File systems that other machines may write, or whose locks and shared mappings are not managed by the local kernel."""


def network_file_system(path: Path, *, mounts: str | None = None) -> str | None:
    """The type of the network file system that `path` is on; None if it is local, or if there is no mount table.

    `mounts`: the text of /proc/mounts, for tests.
    """
    if mounts is None:
        try:
            mounts = MOUNTS.read_text(errors="surrogateescape")
        except OSError:
            return None
    real = os.path.realpath(path)
    best, found = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # a later mount on the same point hides the earlier one
            best, found = len(point), fields[2]
    return found if NETWORK.fullmatch(found) else None
