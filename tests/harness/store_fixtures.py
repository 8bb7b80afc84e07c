"""Object stores for tests; import the fixtures into a folder's `conftest.py`.

There is one server of each kind per module; a module that needs only some declares them: `pytestmark = only_on("versitygw")`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import store_servers
from harness.store_servers import StoreServer


def only_on(*names: str) -> pytest.MarkDecorator:
    """Restricts a test, or as `pytestmark` a module, to servers of these kinds."""
    return pytest.mark.parametrize("running", names, indirect=True)


@pytest.fixture(scope="module", params=sorted(store_servers.STORES))
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """One server of each kind."""
    with store_servers.STORES[request.param](tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """An S3-compatible server for tests that use it beside other things."""
    with store_servers.versitygw(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def server(running: StoreServer, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    """The store that this process finds through its environment."""
    store_servers.no_proxy(monkeypatch)
    running.use(monkeypatch)
    return running
