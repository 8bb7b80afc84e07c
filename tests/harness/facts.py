"""Runs a program of `harness` with Spark's Delta engine in a process of its own, and returns the facts that it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.delta_jars import delta_jars

LIMIT = 900
"""Seconds: one JVM and some sixty calls on a busy machine."""


def delta_facts(module: str, folder: Path) -> dict[str, Any]:
    """What the program wrote to `facts.json` in the folder, its first argument; the second one is the engine's jars. Skips the test without
    them."""
    jars = ":".join(map(str, delta_jars()))
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), jars],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads((folder / "facts.json").read_text()))
