"""Runs other programs and turns a failure into one sentence."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from images.contents import NotBuilt

TIMEOUT = 1500.0
"""Seconds for one step: apt fetches 150 MB and Go compiles etcd, possibly on slow machines and from slow mirrors."""


def run(command: Sequence[str], environment: dict[str, str] | None = None, *, cwd: Path | None = None) -> str:
    """The program's standard output. Raises NotBuilt with its last lines if it fails."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{command[0]} failed: {error}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        raise NotBuilt(f"{' '.join(command[:3])} failed: {' / '.join(lines[-4:]) or 'it printed nothing'}")
    return done.stdout
