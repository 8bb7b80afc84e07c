"""A signal ends `make cluster-demo`, however it was started, and the demo takes its cluster down first."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.eventually import assert_eventually
from harness.patience import cpu_of, until_ended

TESTS = Path(__file__).resolve().parent.parent
PATIENCE = 60.0
"""Seconds for an interpreter to start or to end."""

STAYS = """
import contextlib, sys, time
from pathlib import Path
from harness.node import demo
from harness.signals import interruptible

@contextlib.contextmanager
def cluster():
    Path("up").touch()
    try:
        yield
    finally:
        Path("taking-down").touch()
        while not Path("go").exists():
            time.sleep(0.02)  # until the test lets the clean-up end
        Path("down").touch()

def run():
    with cluster():
        demo.stay()
    return 0

demo.demo = run
sys.exit(demo.main())
"""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The demo while its cluster is up, started as a shell without job control starts a background command: with SIGINT ignored."""
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", STAYS]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            command, cwd=tmp_path, env={"PYTHONPATH": f"{TESTS}:{TESTS.parent / 'scripts'}"}, stdout=said
        )
    try:
        text = tmp_path / "said"
        assert_eventually(lambda: b"stays until" in text.read_bytes(), PATIENCE, progress=lambda: cpu_of(process.pid))
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_demo_in_the_background(
    demo: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    """SIGINT, although the shell made the process ignore it, and SIGTERM take the cluster down; a second signal does not interrupt that."""
    demo.send_signal(number)
    assert_eventually(lambda: (tmp_path / "taking-down").exists() or demo.poll() is not None, PATIENCE)
    assert demo.poll() is None, f"it ended with {demo.poll()} and took nothing down"
    demo.send_signal(number)
    assert_eventually(lambda: b"taken down already" in (tmp_path / "said").read_bytes(), PATIENCE)
    (tmp_path / "go").touch()
    assert until_ended(demo, PATIENCE) == 0
    assert (tmp_path / "down").exists()
