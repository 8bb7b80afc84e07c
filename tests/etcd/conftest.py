"""One etcd shared by tests that disturb nothing, each with a key prefix of its own; other tests start their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.etcd import Etcd, running

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member, shared: no test kills it, freezes it, or turns authentication on."""
    with running(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def own(tmpfs_path: Path) -> Iterator[Etcd]:
    """One member for this test alone."""
    with running(tmpfs_path) as etcd:
        yield etcd


@pytest.fixture
def three(tmpfs_path: Path) -> Iterator[Etcd]:
    """Three members for this test alone."""
    with running(tmpfs_path, members=3) as etcd:
        yield etcd


@pytest.fixture
def prefix() -> bytes:
    """A key prefix for this test alone."""
    return b"/%d/" % next(_NUMBERS)
