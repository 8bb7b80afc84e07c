"""How a run's tests are divided among its workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
CONFTEST = """
import os, pathlib, time
import pytest
from harness.scheduling import OneWorkerPerCluster

def pytest_xdist_make_scheduler(config, log):
    return OneWorkerPerCluster(config, log)

@pytest.fixture
def ran(request):
    where = pathlib.Path(os.environ["RAN"]) / request.node.path.parent.name
    where.mkdir(exist_ok=True)
    (where / f"{request.node.name}.{os.environ['PYTEST_XDIST_WORKER']}").touch()
"""
SLOW = "import time, pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_slow(ran, n): time.sleep(0.1)\n"
FAST = "import pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_fast(ran, n): pass\n"


def workers(folder: Path) -> list[str]:
    return [each.name.rpartition(".")[2] for each in folder.iterdir()]


def test_one_worker_has_all_tests_on_the_cluster(tmp_path: Path) -> None:
    """While this worker has tests of both kinds and others are idle, they steal its other tests, but none of those on the cluster."""
    run, ran = tmp_path / "run", tmp_path / "ran"
    ran.mkdir()
    for name, text in (("cluster", SLOW), ("unit", FAST)):
        (run / name).mkdir(parents=True)
        (run / name / f"test_{name}.py").write_text(text)
    (run / "conftest.py").write_text(CONFTEST)
    (run / "pytest.ini").write_text("[pytest]")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--dist", "worksteal"],
        cwd=run,
        # No other plugins: three processes would load hypothesis and all others for nothing.
        env={**environment, "PYTHONPATH": str(TESTS), "RAN": str(ran), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert "18 passed" in done.stdout, done.stdout + done.stderr
    assert len(workers(ran / "cluster")) == len(workers(ran / "unit")) == 9
    assert len(set(workers(ran / "cluster"))) == 1
    assert set(workers(ran / "unit")) - set(workers(ran / "cluster")), "the idle worker had nothing to do"
