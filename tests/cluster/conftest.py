"""What tests of the cluster tier share: one real cluster with the chart installed, and for each test a namespace of a team.

These tests come first in a run (tests/conftest.py), so that one of pytest's processes has them all and one cluster serves them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.binaries import PartMissing
from harness.node import packages
from harness.node.cluster import RealCluster, started_cluster
from harness.node.images import archives
from harness.node.release import Release
from harness.node.scene import Scene, remove, scene_of

LOGS = os.environ.get("SPARKONCE_CLUSTER_LOGS")
"""A folder: what every part said is copied there when a test fails."""


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[RealCluster]:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():  # minutes the first time are to be seen while they last
            packages.needed()
            archives()
    except PartMissing as missing:
        pytest.skip(str(missing))
    with started_cluster(archives) as started:
        yield started


@pytest.fixture(scope="session")
def release(cluster: RealCluster) -> Release:
    """The chart, installed once; a test that hurts it leaves it whole."""
    made = Release(cluster)
    made.install()
    return made


@pytest.fixture
def scene(cluster: RealCluster, release: Release, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A fresh namespace for drivers; the release is whole when a test begins."""
    release.until_ready()
    made = scene_of(cluster)
    failed = request.session.testsfailed
    yield made
    if LOGS and request.session.testsfailed > failed:
        cluster.collect_logs(Path(LOGS) / request.node.name)
    remove(made)
