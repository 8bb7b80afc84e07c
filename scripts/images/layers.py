"""Layers: a folder becomes a tar file whose bytes depend on nothing but what is in the folder, kept under the key of what it was made from.

Names are sorted, times are one moment, owners are numbers. Compression is left out: an archive goes from this machine to the container
store beside it, and a registry's client compresses what it pushes.
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
"""Days for which what nobody used stays, by the beginning of its name: our own code's layers are many and made in seconds, and what a
killed run left half made is of no use."""
EPOCH = 1735689600
"""1 January 2025, the time of every file: what is compiled must not know when (see `python.compiled`)."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    path: Path
    digest: str
    """sha256:..., of the tar file."""
    size: int
    what: str
    """For people, in the image's history."""


def place() -> Path:
    """`$XDG_CACHE_HOME/sparkonce/images`, made if it is not there."""
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
    """The layer of this name, made by `fill(folder)` if it is not there (or `fresh`). `as_root`: every file is root's own.

    What is there is complete: its description is written last. Two processes make it one after the other.
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
    """What was made under this name, if it is there as it was; it is used from now on."""
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
    """Whoever reads the one that was made before is not disturbed."""
    path = place() / f"{name}-{made.digest[7:19]}.tar"
    made.path.rename(path)
    return replace(made, path=path)


def prune() -> None:
    """Removes what nobody used for a long time."""
    for path in place().iterdir():
        days = next(days for start, days in KEPT.items() if path.name.startswith(start))
        with contextlib.suppress(OSError):  # somebody else removes it, too
            if path.suffix == ".lock" or time.time() - path.stat().st_mtime < days * 86400:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def packed(folder: Path, target: Path, what: str, *, as_root: bool) -> Layer:
    """All of a folder as one layer at `target`."""
    part = target.with_suffix(".part.tar")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in _walk(folder):
            _add(tar, path, str(path.relative_to(folder)), as_root=as_root)
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    part.rename(target)
    return Layer(path=target, digest=f"sha256:{digest}", size=target.stat().st_size, what=what)


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below, a folder before what is in it, by name."""
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
        if as_root:  # what a umask and an installer's links left of the mode is chance
            entry.mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
        with path.open("rb") as file:
            tar.addfile(entry, file)
    # Devices, pipes and sockets: a container's runtime makes its own.


@contextmanager
def work_folder() -> Iterator[Path]:
    """In the cache's own file system, where there is room for a gigabyte and links to a package cache may work."""
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=place()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """One process at a time, for as long as that process lives: the kernel lets go of it when it dies."""
    with (place() / name).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """A sign of life: some layers take minutes."""
    print(f"images: {text}", file=sys.stderr, flush=True)
