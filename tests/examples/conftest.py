"""Some twenty JVMs are started here, each for one small job: they take the quick way up."""

from __future__ import annotations

import os

import pytest

# Without the second compiler, which would spend more on a job of seconds than the job itself: half the CPU time per job.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(autouse=True)
def quick_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all children of a test; nothing about the job changes, so keys and fingerprints do not."""
    options = os.environ.get("JAVA_TOOL_OPTIONS", "")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{options} {QUICK_JVM}".strip())
