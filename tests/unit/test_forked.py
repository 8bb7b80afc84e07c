"""Commands that tests start as forks run the sparkonce that their own path leads to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.forked import SYS_CLONE
from harness.patience import completed
from sparkonce import __version__

TESTS = Path(__file__).parents[1]
BOTH = """
import os, subprocess, sys
sys.path.insert(0, {tests!r})
from harness.forked import forked

def said(path):
    started = forked(
        [sys.executable, "-m", "sparkonce", "--version"],
        env={{**os.environ, "PYTHONPATH": path}}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )
    return started.communicate(timeout=60)[0].strip()

print(said({other!r}))
del os.environ["PYTHONPATH"]
print(said(""))
print(said({other!r}))
"""


@pytest.mark.skipif(os.uname().machine not in SYS_CLONE, reason="without the system call's number nothing is forked")
def test_a_fork_runs_what_its_own_path_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sparkonce is found by PYTHONPATH in the first process, which makes the template, and in a later one; between them, ours."""
    other = tmp_path / "other" / "sparkonce"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "__main__.py").write_text("print('another one')")
    monkeypatch.setenv("PYTHONPATH", str(other.parent))
    done = completed([sys.executable, "-c", BOTH.format(tests=str(TESTS), other=str(other.parent))], 120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["another one", f"sparkonce {__version__}", "another one"]
