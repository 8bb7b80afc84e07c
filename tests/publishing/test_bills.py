"""Bills of materials: valid CycloneDX, from what an archive holds and from the lock, the same text each time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from images import contents
from publishing.archives import jar, small
from release import sbom

STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u4
Description: GNU C Library: Shared libraries
 Contains the standard libraries.
 .
 Package: not-a-package

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""
JARS = "opt/sparkonce/lib/pyspark/jars"
FILES = {
    "var/lib/dpkg/status": STATUS.encode(),
    "opt/sparkonce/lib/PyYAML-6.0.2.dist-info/METADATA": b"Metadata-Version: 2.1\nName: PyYAML\nVersion: 6.0.2\n\nName: other\n",
    "opt/sparkonce/app/sparkonce-1.2.3.dist-info/METADATA": b"Metadata-Version: 2.4\nName: sparkonce\nVersion: 1.2.3\n",
    f"{JARS}/guava-33.1-jre.jar": jar(groupId="com.google.guava", artifactId="guava", version="33.1-jre"),
    f"{JARS}/shaded-1.0.jar": jar(groupId="org.inside", artifactId="inside", version="7"),
    f"{JARS}/plain-2.13-4.5.jar": jar(),
    "usr/local/bin/sparkonce": b"#!/bin/sh\n",
}


def checked(text: str) -> dict[str, Any]:
    """The document, valid by the schema of its version."""
    # Imported here: it parses the grammar of RFC 3987, five seconds that every worker would otherwise spend while it collects tests.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert problem is None, problem
    document: dict[str, Any] = json.loads(text)
    assert document["bomFormat"] == "CycloneDX"
    return document


@pytest.mark.further
def test_an_archive_names_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed packages of Debian, not removed ones; Python's by their metadata, not by its text; jars by the coordinates that their build
    wrote, and by name and digest where it wrote none or those of something inside."""
    archive = small(tmp_path, "spark", "amd64", FILES, monkeypatch)
    bill = checked(sbom.of_archive(archive, name="spark", version="1.2.3"))
    assert bill["metadata"]["component"]["name"] == "sparkonce/spark"
    assert {each.get("purl", each["name"]) for each in bill["components"]} == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u4?arch=amd64&distro=bookworm",
        "pkg:pypi/pyyaml@6.0.2",
        "pkg:pypi/sparkonce@1.2.3",
        "pkg:maven/com.google.guava/guava@33.1-jre",
        "shaded",
        "plain",
    }
    digests = {each["name"]: each["hashes"] for each in bill["components"] if "hashes" in each}
    assert set(digests) == {"guava", "shaded", "plain"}


def test_the_same_archive_gives_the_same_bill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No time and no random number is in it: a repeated step signs the same text."""
    archive = small(tmp_path, "spark", "amd64", FILES, monkeypatch)
    first, second = (sbom.of_archive(archive, name="spark", version="1.2.3") for _ in range(2))
    assert first == second
    assert first != sbom.of_archive(archive, name="spark", version="1.2.4")


def test_a_distribution_names_every_package_of_its_extras() -> None:
    """At the versions of the lock, and nothing of the tools that only develop it."""
    bill = checked(sbom.of_locked("1.2.3"))
    urls = {each["purl"] for each in bill["components"]}
    lock = (contents.ROOT / "requirements.lock").read_text()
    for name in ("pydantic", "typer", "kopf", "psycopg", "deltalake", "pyiceberg", "pyspark"):
        (version,) = re.findall(rf"^{name}==([\w.]+)", lock, re.MULTILINE)
        assert f"pkg:pypi/{name}@{version}" in urls
    assert not [each for each in urls if re.match(r"pkg:pypi/(pytest|ruff|moto|cyclonedx-python-lib)@", each)]
