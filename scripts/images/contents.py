"""Reads `images.toml` into typed values, and selects the locked packages that an image's extras need."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIST = HERE / "images.toml"


class NotBuilt(Exception):
    """An image cannot be built here; one sentence with the cause and what to do."""


@dataclass(frozen=True, kw_only=True)
class User:
    name: str
    uid: int
    """Also the group's id."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """Fields as in images.toml, whose comments explain them."""

    name: str
    title: str
    user: User
    entrypoint: Sequence[str]
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    packages: Sequence[str] = ()
    extras: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """Executable files: path in the image to a file beside images.toml."""
    folders: Sequence[str] = ()
    """Empty folders that belong to the image's user."""
    maven: Sequence[str] = ()
    maven_excludes: Sequence[str] = ()
    gomodule: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Name in /usr/local/bin to Go package."""

    def settings(self) -> dict[str, str]:
        """Environment of the image's processes. /opt/sparkonce/app takes precedence over the installed packages."""
        path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        python = {"PYTHONPATH": f"{APP}:{LIB}"} if self.extras else {}
        return {**path, **python, **self.environment}


BACKEND = frozenset({"hatchling"})
"""Packages that build the wheel."""
LIB, APP = "/opt/sparkonce/lib", "/opt/sparkonce/app"
"""Folders of the locked packages and of sparkonce itself, separate so that a change of our code makes only a small new layer."""


@dataclass(frozen=True, kw_only=True)
class Debian:
    suite: str
    python: str


@cache
def images() -> Mapping[str, Image]:
    """Images by name, in the order of the list."""
    said = _read()
    return {
        name: Image(name=name, user=User(**said[name].pop("user")), **said[name]) for name in said if name != "debian"
    }


@cache
def debian() -> Debian:
    return Debian(**_read()["debian"])


def image(name: str) -> Image:
    """The image of this name. Raises NotBuilt if the list does not have it."""
    if name not in images():
        raise NotBuilt(f"there is no image {name!r} in {LIST.name}; there are {', '.join(images())}")
    return images()[name]


@cache
def extras() -> Sequence[str]:
    """Every extra of pyproject.toml."""
    return tuple(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def _read() -> dict[str, Any]:
    return tomllib.loads(LIST.read_text())


def requirements(extras: Sequence[str], *, pyproject: str | None = None, lock: str | None = None) -> str:
    """The part of requirements.lock that an installation of sparkonce with these extras needs, hashes included.

    It needs no resolver, since the lock names the dependents of each package ("via"). A package that is needed only by an extra of another
    package is included whenever that other package is: slightly more than needed, never less.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text() if pyproject is None else pyproject)["project"]
    wanted = {_name(each) for each in project["dependencies"]}
    for extra in extras:
        wanted |= _of_extra(extra, project["optional-dependencies"])
    return locked(wanted, lock=lock)


def locked(names: AbstractSet[str], *, lock: str | None = None) -> str:
    """The lock's lines for these packages and their dependencies. Raises NotBuilt if it lacks one of them."""
    entries = _entries((ROOT / "requirements.lock").read_text() if lock is None else lock)
    wanted = set(names)
    while more := {name for name, (_, via) in entries.items() if name not in wanted and via & wanted}:
        wanted |= more
    if lost := sorted(wanted - entries.keys()):
        raise NotBuilt(f"requirements.lock has no {', '.join(lost)}; run `make lock`")
    return "".join(text for name, (text, _) in sorted(entries.items()) if name in wanted)


def _of_extra(extra: str, extras: Mapping[str, Sequence[str]]) -> set[str]:
    if extra not in extras:
        raise NotBuilt(f"pyproject.toml has no extra {extra!r}; there are {', '.join(extras)}")
    found: set[str] = set()
    for each in extras[extra]:
        ours = re.fullmatch(r"sparkonce\[(.*)\]", each)
        if ours is None:
            found.add(_name(each))
        else:
            found = found.union(*(_of_extra(inner.strip(), extras) for inner in ours[1].split(",")))
    return found


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _entries(lock: str) -> dict[str, tuple[str, set[str]]]:
    """By package name: the lines that pin it, for each Python range with a pin of its own, and the names of its dependents."""
    found: dict[str, tuple[str, set[str]]] = {}
    name = ""
    for line in lock.splitlines(keepends=True):
        if line.strip() and line[0] not in " #":
            name = _name(line)
        if not name:
            continue
        text, via = found.setdefault(name, ("", set()))
        if line.lstrip().startswith("#"):
            via |= {_name(each) for each in re.findall(r"#\s+(?:via )?([A-Za-z0-9._-]+)\s*$", line)} - {"via"}
        else:
            found[name] = (text + line, via)
    return found
