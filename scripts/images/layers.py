"""Image layers: packs a folder as a reproducible tar file and caches it under a key of its inputs.

Entries are sorted by name, have one fixed time, and numeric owners. Layers are not compressed: an archive is loaded into a container store
on the same machine, and a registry's client compresses what it pushes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

KEPT = {"ours-": 1, "work-": 1, "": 30}
"""Days for which unused entries are kept, by prefix of their name: layers of our own code are many and rebuilt in seconds, and work folders
left by a killed run are useless."""
EPOCH = 1735689600
"""1 January 2025, the time of every file: compiled modules must not depend on the time of the build (see `python.compiled`)."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    path: Path
    digest: str
    """Digest of the tar file, as sha256:HEX."""
    size: int
    what: str
    """Description for people, in the image's history."""


def place() -> Path:
    """`$XDG_CACHE_HOME/sparkonce/images`, created if necessary."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "sparkonce" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def key(*parts: str | bytes) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(f"{len(data)}\n".encode() + data)
    return hashed.hexdigest()[:20]


def cached(name: str, what: str, fill: Callable[[Path], None], *, as_root: bool, fresh: bool = False) -> Layer:
    """The layer of this name, made by `fill(folder)` if it is not cached, or if `fresh`. `as_root`: root owns every file.

    A cached layer is complete, since its description is written last. A lock keeps two processes from building it at once.
    """
    with one_at_a_time(f"{name}.lock"):
        found = None if fresh else _told(name)
        if found is None:
            say(f"making {what}")
            with work_folder() as folder:
                fill(folder)
                found = packed(folder, place() / f"{name}.new", what, as_root=as_root)
            found = under_its_digest(found, name)
            part = place() / f"{name}.part"
            part.write_text(json.dumps({**asdict(found), "path": found.path.name}))
            part.rename(place() / f"{name}.json")
            prune()
    return found


def _told(name: str) -> Layer | None:
    """The cached layer of this name, if its files still exist; marks it as recently used."""
    told = place() / f"{name}.json"
    try:
        said = json.loads(told.read_text())
        path = place() / said.pop("path")
        for each in (path, told):
            os.utime(each)
    except FileNotFoundError:
        return None
    return Layer(path=path, **said)


def under_its_digest(made: Layer, name: str) -> Layer:
    """Moves the layer to a name that contains its digest, so that processes that read an earlier layer are not disturbed."""
    path = place() / f"{name}-{made.digest[7:19]}.tar"
    made.path.rename(path)
    return replace(made, path=path)


def prune() -> None:
    """Removes entries that have not been used for `KEPT` days."""
    for path in place().iterdir():
        days = next(days for start, days in KEPT.items() if path.name.startswith(start))
        with contextlib.suppress(OSError):  # another process may be removing it
            if path.suffix == ".lock" or time.time() - path.stat().st_mtime < days * 86400:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def packed(folder: Path, target: Path, what: str, *, as_root: bool) -> Layer:
    """Packs all of a folder as one layer at `target`."""
    part = target.with_suffix(".part.tar")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in _walk(folder):
            _add(tar, path, str(path.relative_to(folder)), as_root=as_root)
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    part.rename(target)
    return Layer(path=target, digest=f"sha256:{digest}", size=target.stat().st_size, what=what)


def _walk(folder: Path) -> Iterator[Path]:
    """All paths below, sorted by name, a folder before its contents."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _add(tar: tarfile.TarFile, path: Path, name: str, *, as_root: bool) -> None:
    found = path.lstat()
    entry = tarfile.TarInfo(name)
    entry.mtime, entry.mode = EPOCH, stat.S_IMODE(found.st_mode)
    entry.uid, entry.gid = (0, 0) if as_root else (found.st_uid, found.st_gid)
    if stat.S_ISLNK(found.st_mode):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        tar.addfile(entry)
    elif stat.S_ISDIR(found.st_mode):
        entry.type = tarfile.DIRTYPE
        entry.mode = 0o755 if as_root else entry.mode
        tar.addfile(entry)
    elif stat.S_ISREG(found.st_mode):
        entry.size = found.st_size
        if as_root:  # other mode bits depend on the umask and on how the installer links files
            entry.mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
        with path.open("rb") as file:
            tar.addfile(entry, file)
    # Devices, pipes and sockets are left out: the container runtime makes its own.


@contextmanager
def work_folder() -> Iterator[Path]:
    """A temporary folder on the cache's file system, which has room for a gigabyte and where links to a package cache may work."""
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=place()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Holds an exclusive file lock; the kernel releases it if the process dies."""
    with (place() / name).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """Prints progress to stderr, since some layers take minutes."""
    print(f"images: {text}", file=sys.stderr, flush=True)
