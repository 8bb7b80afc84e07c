"""Schemathesis, which makes requests from an OpenAPI document and checks each answer against it: from PyPI, once per machine.

It is kept outside the checkout, in an environment of its own: its versions of what it needs are not those that this repository locks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.binaries import PartMissing, cache, one_at_a_time, or_skip, to_stderr
from harness.patience import completed

VERSION = "4.32.5"
CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
"""Each answer is one of the document's. Which request deserves which of them is not checked: a proxy knows nothing of bodies."""
INSTALL = 600.0
"""Seconds for thirty packages, from wherever the machine's pip downloads them."""
RUN = 900.0
"""Seconds for some thousand requests; for a hundred usually ten."""


def conforms(folder: Path, document: Mapping[str, Any], url: str, *, examples: int, seed: int) -> int:
    """Sends generated requests, valid ones and others, to `url`, and fails unless each answer is one of the document's. Returns the number
    of requests. Skips the test if Schemathesis cannot be had. `examples`: for each operation."""
    program = or_skip(_installed)
    file = folder / "openapi.json"
    file.write_text(json.dumps(document))
    command = [
        str(program),
        "run",
        str(file),
        "--url",
        url,
        "--checks",
        ",".join(CHECKS),
        "--max-examples",
        str(examples),
    ]
    command += ["--phases", "examples,coverage,fuzzing", "--seed", str(seed), "--no-color", "--warnings", "off"]
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }  # it has packages of its own
    done = completed(command, RUN, cwd=folder, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = re.search(r"(\d+) generated", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])


def _installed() -> Path:
    """The program. Raises: PartMissing: pip cannot install it."""
    place = cache().parent / f"schemathesis-{VERSION}"
    whole = place / "installed"
    with one_at_a_time("schemathesis.lock", to_stderr):
        if not whole.exists():
            venv.create(place, clear=True, with_pip=True)
            pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", f"schemathesis=={VERSION}"]
            done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL, check=False)
            if done.returncode != 0:
                said = (done.stderr.strip().splitlines() or ["no word"])[-1][:200]
                raise PartMissing(f"pip of {sys.executable} could not install schemathesis {VERSION}: {said}")
            whole.touch()
    return place / "bin" / "schemathesis"
