"""The profile `iceberg` against the operations that take a key in Iceberg's REST specification."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, cast

import pytest

from harness.asgi import Got, ask
from sparkonce.asgi import Asgi, Receive, Send, send_reply
from sparkonce.proxy.iceberg import OPERATIONS, CatalogProxy, catalog_policy
from sparkonce.proxy.upstream import Upstream
from sparkonce.replies.exchange import document
from sparkonce.replies.protocol import Reply

# From open-api/rest-catalog-open-api.yaml of apache/iceberg at commit 7f879b1136 (2026-08-21): operationId, method and path of each
# operation whose parameters name `#/components/parameters/idempotency-key`.
SPECIFIED = """
createNamespace    POST    /v1/{prefix}/namespaces
dropNamespace      DELETE  /v1/{prefix}/namespaces/{namespace}
updateProperties   POST    /v1/{prefix}/namespaces/{namespace}/properties
createTable        POST    /v1/{prefix}/namespaces/{namespace}/tables
planTableScan      POST    /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan
cancelPlanning     DELETE  /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan/{plan-id}
fetchScanTasks     POST    /v1/{prefix}/namespaces/{namespace}/tables/{table}/tasks
registerTable      POST    /v1/{prefix}/namespaces/{namespace}/register
updateTable        POST    /v1/{prefix}/namespaces/{namespace}/tables/{table}
dropTable          DELETE  /v1/{prefix}/namespaces/{namespace}/tables/{table}
unregisterTable    POST    /v1/{prefix}/namespaces/{namespace}/tables/{table}/unregister
renameTable        POST    /v1/{prefix}/tables/rename
commitTransaction  POST    /v1/{prefix}/transactions/commit
replaceView        POST    /v1/{prefix}/namespaces/{namespace}/views/{view}
dropView           DELETE  /v1/{prefix}/namespaces/{namespace}/views/{view}
renameView         POST    /v1/{prefix}/views/rename
registerView       POST    /v1/{prefix}/namespaces/{namespace}/register-view
"""
SCANS = {"planTableScan", "cancelPlanning", "fetchScanTasks"}
"""They leave nothing behind, so they are passed on."""
# createView has no such parameter in that file; RESTSessionCatalog of the same commit sends a key with it.
SENT_BY_JAVA = {("createView", "POST", "/v1/{prefix}/namespaces/{namespace}/views")}

KEYED = {cast("tuple[str, str, str]", tuple(line.split())) for line in SPECIFIED.strip().splitlines()}
PROMISED = {each for each in KEYED if each[0] not in SCANS} | SENT_BY_JAVA

TABLE = {"metadata-location": "file:///m.json", "metadata": {"table-uuid": "u"}}
ANSWERS: dict[str, Any] = {
    "createNamespace": {"namespace": ["sales"], "properties": {}},
    "updateProperties": {"updated": ["owner"], "removed": [], "missing": []},
    **dict.fromkeys(("createTable", "registerTable", "updateTable", "unregisterTable"), TABLE),
    **dict.fromkeys(("createView", "registerView", "replaceView"), TABLE),
}
"""By operation; the others answer 204."""


class CountingCatalog:
    """An upstream that counts what it is asked to carry out, and lets every caller see everything."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.effects = answer, 0

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        self.effects += 1
        await send_reply(send, Reply(204) if self.answer is None else document(200, self.answer))

    async def ask(self, method: str, path: str, headers: object, body: bytes | None = None) -> Reply:
        return document(200, TABLE)


def filled(path: str, prefix: str) -> str:
    """A path of the specification with a value for each parameter."""
    return re.sub(r"\{[\w-]+\}", "x", path.replace("/{prefix}", prefix))


def test_the_profile_has_the_operations_of_the_specification() -> None:
    """OPERATIONS are those whose parameters name the key, without scans, and `createView`, for which Iceberg's Java client sends one."""
    assert {(name, method, f"/v1/{{prefix}}{path}") for name, method, path in OPERATIONS} == PROMISED
    assert len(OPERATIONS) == len(PROMISED)


@pytest.mark.parametrize("prefix", ["", "/ware", "/ware/house"])
@pytest.mark.parametrize(("name", "method", "path"), sorted(KEYED | SENT_BY_JAVA))
def test_r64_each_path_of_the_specification_takes_its_operations_keys(
    name: str, method: str, path: str, prefix: str
) -> None:
    """R-64: with a prefix of any depth or without one; a scan takes none."""
    scope = catalog_policy().scope_of(method, filled(path, prefix))
    assert (scope.operation if scope else None) == (None if name in SCANS else name)


@pytest.mark.parametrize(("name", "method", "path"), sorted(PROMISED))
def test_r64_each_operation_that_takes_a_key_is_carried_out_once(name: str, method: str, path: str) -> None:
    """R-64: its repetition gets the same answer. That of `unregisterTable` is a table that the catalog no longer has: 503 says that the
    request was carried out."""
    catalog = CountingCatalog(ANSWERS.get(name))
    body = {"name": "t", "source": {"namespace": ["a"], "name": "t"}, "destination": {"namespace": ["a"], "name": "u"}}

    async def twice() -> list[Got]:
        proxy = CatalogProxy(cast("Upstream", catalog), store="memory:")
        key = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"
        at, sent = filled(path, "/p"), json.dumps(body).encode()
        return [await ask(proxy, method=method, path=at, key=key, body=sent) for _ in range(2)]

    first, second = asyncio.run(twice())
    assert first.status == (204 if name not in ANSWERS else 200)
    assert catalog.effects == 1
    if name == "unregisterTable":
        assert (second.status, "was carried out" in json.loads(second.body)["error"]["message"]) == (503, True)
    else:
        assert (second.status, second.replayed) == (first.status, True)
        assert second.body == first.body
