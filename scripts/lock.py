"""Makes requirements.lock, and checks without a network whether it still fits pyproject.toml.

The lock holds an exact version and the hashes of every package of all extras and groups, for Python 3.11 and later. It names no package
index, since that depends on the machine (docs/decisions.md explains why this is not a uv.lock). Its first lines carry a digest of the
dependency tables it was made from, so that `--check` compares digests and needs no resolver. The check does not notice newer releases that
would fit; `make lock UPGRADE=1` upgrades to those.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
DIGEST_LINE = "# dependencies of pyproject.toml: sha256:"


def dependency_digest(pyproject: str) -> str:
    """SHA-256 (hex) of the dependency tables and the Python range, independent of their formatting."""
    document = tomllib.loads(pyproject)
    project = document["project"]
    tables = {
        "requires-python": project["requires-python"],
        "dependencies": project["dependencies"],
        "optional-dependencies": project["optional-dependencies"],
        "dependency-groups": document["dependency-groups"],
    }
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def is_fresh(pyproject: str, lock: str) -> bool:
    """Whether the lock was made from these dependency tables."""
    return f"{DIGEST_LINE}{dependency_digest(pyproject)}\n" in lock


def make_lock(pyproject: str, *, upgrade: bool) -> str:
    """Resolve and return the lock's text; versions already locked stay where they fit, unless `upgrade`.

    Raises CalledProcessError if no resolution exists; uv has then printed the reason to stderr.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--quiet"]
    command += ["--all-extras", "--group", "dev", "--group", "examples"]
    command += ["--universal", "--python-version", "3.11", "--generate-hashes"]
    # Keeps this machine's package index and package folders out of the lock.
    command += ["--no-header", "--no-emit-index-url", "--no-emit-find-links", "--output-file", LOCK.name]
    command += ["--upgrade"] if upgrade else []
    subprocess.run(command, cwd=ROOT, check=True)
    header = "# Made by `make lock`; do not edit. No package index is named here on purpose (docs/decisions.md).\n"
    return f"{header}{DIGEST_LINE}{dependency_digest(pyproject)}\n{LOCK.read_text()}"


def main() -> int:
    """Write the lock, or with --check exit 1 and one sentence when it is stale."""
    parser = argparse.ArgumentParser(description="Make or check requirements.lock.")
    parser.add_argument("--check", action="store_true", help="only check whether the lock fits pyproject.toml")
    parser.add_argument("--upgrade", action="store_true", help="take the newest releases that fit")
    options = parser.parse_args()
    pyproject = (ROOT / "pyproject.toml").read_text()
    if options.check:
        if is_fresh(pyproject, LOCK.read_text()):
            return 0
        sys.stderr.write("requirements.lock does not fit the dependencies in pyproject.toml: run `make lock`\n")
        return 1
    try:
        LOCK.write_text(make_lock(pyproject, upgrade=options.upgrade))
    except subprocess.CalledProcessError as failed:
        return failed.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
