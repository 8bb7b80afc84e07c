"""Object stores of tests: import the fixtures into a folder's `conftest.py`.

One server of each kind per module; a module that wants only some says so: `pytestmark = only_on("versitygw")`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import store_servers
from harness.store_servers import StoreServer


def only_on(*names: str) -> pytest.MarkDecorator:
    """For a test, or a module's `pytestmark`: on servers of these kinds."""
    return pytest.mark.parametrize("running", names, indirect=True)


@pytest.fixture(scope="module", params=sorted(store_servers.STORES))
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """One server of each kind."""
    with store_servers.STORES[request.param](tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """An S3-compatible one, for whoever uses it beside other things."""
    with store_servers.versitygw(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def server(running: StoreServer, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    """The store of this process, found by its environment."""
    store_servers.no_proxy(monkeypatch)
    running.use(monkeypatch)
    return running
