"""Fixtures of the cluster tier: one real cluster with the chart installed, and a team's namespace for each test.

One worker of a run has all of these tests, on one cluster (harness/scheduling.py). The cluster ends with the last
of them and not with the run: it uses a third of a core, and other tests run for most of an hour.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.binaries import or_skip
from harness.child import Child
from harness.node import given, packages
from harness.node.cluster import RealCluster
from harness.node.images import archives
from harness.node.mistakes import REGISTRY_PORT
from harness.node.release import Release
from harness.node.scene import Scene, remove, scene_of

REGISTRY = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Refusing(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="private"')
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_HEAD = do_GET
HTTPServer(("127.0.0.1", {port}), Refusing).serve_forever()
"""
LOGS = os.environ.get("SPARKONCE_CLUSTER_LOGS")
"""A folder: the logs of every component are copied there when a test fails."""


@dataclass
class Held:
    """The cluster of this process and its release: made for the first test that needs it, removed after the last one of this folder."""

    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    made: Release | None = None

    def release(self) -> Release:
        if self.made is None:
            made = Release(self.stack.enter_context(given.cluster(archives)))
            if given.KUBECONFIG in os.environ:
                self.stack.callback(made.remove)
            made.install()
            self.made = made
        return self.made

    def close(self) -> None:
        self.made = None
        self.stack.close()


HELD = Held()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    yield
    if nextitem is None or nextitem.path.parent != item.path.parent:
        HELD.close()


@pytest.fixture
def release(pytestconfig: pytest.Config) -> Release:
    """The chart, installed once. A test that damages the release restores it."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # the first build takes minutes: show its progress
        if given.KUBECONFIG not in os.environ:
            or_skip(packages.needed)
            or_skip(archives)
    return HELD.release()


@pytest.fixture
def cluster(release: Release) -> RealCluster:
    return release.cluster


@pytest.fixture
def scene(cluster: RealCluster, release: Release, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A fresh namespace for drivers; the release is ready when a test begins."""
    release.until_ready()
    made = scene_of(cluster)
    failed = request.session.testsfailed
    yield made
    if LOGS and request.session.testsfailed > failed:
        cluster.collect_logs(Path(LOGS) / request.node.name)
    remove(made)


@pytest.fixture
def registry(cluster: RealCluster, tmp_path: Path) -> Iterator[None]:
    """A registry on the node that lets nobody in."""
    script = tmp_path / "registry.py"
    script.write_text(REGISTRY.format(port=REGISTRY_PORT))
    child = Child("registry", cluster.network.inside(["python3", str(script)]), tmp_path / "registry.log")
    child.start()
    yield
    child.kill()
