"""`sparkonce proxy --profile iceberg` before Iceberg's own REST server: commits whose replies are lost, clients that send them again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    RESTError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
)
from requests.adapters import HTTPAdapter

from harness.catalog_faults import SECRET, STRANGER, CatalogFault, FaultyCatalog, once, proxy

TRIES = 6
ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int64())})


def uuid7() -> str:
    digits = f"{int(time.time() * 1000):012x}7{secrets.token_hex(2)[:3]}8{secrets.token_hex(8)[:15]}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class Repeating(HTTPAdapter):
    """Sends requests as Iceberg's Java client 1.12 does: those that change something have a key, and the same key when they are repeated
    after a 5xx or a broken connection. Without keys: repeats them all the same, as clients and proxies do."""

    def __init__(self, *, keys: bool) -> None:
        super().__init__()
        self.keys = keys

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        changes = request.method in ("POST", "DELETE") and not str(request.url).endswith("/metrics")
        if changes and self.keys:
            request.headers["Idempotency-Key"] = uuid7()
        for left in reversed(range(TRIES if changes else 1)):
            try:
                answer = super().send(request, *args, **kwargs)
            except requests.ConnectionError:
                if not left:
                    raise
                continue
            if answer.status_code < 500 or not left:
                return answer
            time.sleep(min(1.0, float(answer.headers.get("Retry-After", 0))))  # as the server asks
        raise AssertionError("not reached")


def client(url: str, *, keys: bool = True) -> RestCatalog:
    catalog = RestCatalog("lake", uri=url)
    catalog._session.mount("http://", Repeating(keys=keys))
    return catalog


@pytest.fixture
def ours(tmp_path: Path, upstream: FaultyCatalog) -> Iterator[str]:
    with proxy(tmp_path, upstream.url) as (url, _):
        yield url


@pytest.fixture
def name() -> str:
    """A table of this test's own."""
    return f"sales{secrets.token_hex(4)}.orders"


def made(catalog: RestCatalog, name: str) -> Any:
    catalog.create_namespace_if_not_exists(name.partition(".")[0])
    return catalog.create_table(name, ROWS.schema)


def numbers(url: str, name: str) -> list[int]:
    return sorted(RestCatalog("reader", uri=url).load_table(name).scan().to_arrow()["n"].to_pylist())


def test_the_catalog_advertises_the_lifetime(ours: str) -> None:
    """Clients send keys to a catalog that does. The rest of its configuration stays, but for an address that would lead past the proxy."""
    config = httpx.get(f"{ours}/v1/config").json()
    assert config["idempotency-key-lifetime"] == "PT1H"
    assert {"defaults", "overrides"} <= config.keys()
    assert "uri" not in config["overrides"]


@pytest.mark.parametrize("fault", CatalogFault)
def test_a_commit_is_there_once(
    ours: str, upstream: FaultyCatalog, server: str, name: str, fault: CatalogFault
) -> None:
    """Its reply was lost, it was answered 503 although it landed, or it never arrived: one snapshot, and the client is told so."""
    table = made(client(ours), name)
    upstream.plan = once(fault, "/tables/orders")
    table.append(ROWS)
    assert numbers(server, name) == [1, 2, 3]
    assert len(RestCatalog("reader", uri=server).load_table(name).metadata.snapshots) == 1


@pytest.mark.parametrize("fault", [CatalogFault.LOST, CatalogFault.LIE])
def test_a_table_is_created_once(ours: str, upstream: FaultyCatalog, name: str, fault: CatalogFault) -> None:
    """The repetition finds the table that the first request made, and gets it; a second request for it is told that it exists."""
    catalog = client(ours)
    catalog.create_namespace(name.partition(".")[0])
    upstream.plan = once(fault, "/tables")
    assert catalog.create_table(name, ROWS.schema).schema().as_arrow() == ROWS.schema
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table(name, ROWS.schema)


def test_another_table_of_that_name_is_not_taken_for_it(
    ours: str, upstream: FaultyCatalog, server: str, name: str
) -> None:
    """A request that never arrived, and another client that made other columns meanwhile: the outcome is unknown, not a success."""
    client(ours).create_namespace(name.partition(".")[0])

    def plan(method: str, path: str) -> CatalogFault | None:
        if path.endswith("/tables") and not upstream.changes():
            upstream.requests.append((method, path, 0))
            RestCatalog("other", uri=server).create_table(name, pa.schema([("m", pa.string())]))
            return CatalogFault.BROKEN
        return None

    upstream.requests.clear()
    upstream.plan = plan
    with pytest.raises((ServiceUnavailableError, CommitStateUnknownException)):
        client(ours).create_table(name, ROWS.schema)


def test_a_commit_that_another_one_has_overtaken_is_refused(
    ours: str, upstream: FaultyCatalog, server: str, name: str
) -> None:
    """It never arrived, and the branch has moved on: 409, so that the client makes its commit anew on the new state."""
    table = made(client(ours), name)
    table.append(ROWS)
    other = RestCatalog("other", uri=server).load_table(name)

    def plan(method: str, path: str) -> CatalogFault | None:
        if "/tables/orders" in path and len(other.metadata.snapshots) == 1:
            other.append(ROWS)
            return CatalogFault.BROKEN
        return None

    upstream.plan = plan
    table.append(ROWS)  # this client makes it anew by itself
    assert numbers(server, name) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [status for path, status in upstream.changes() if path.endswith("/tables/orders")] == [200, 409, 200]


def test_what_is_dropped_is_sent_once(ours: str, upstream: FaultyCatalog, name: str) -> None:
    """Nothing shows whether a table was dropped by this request: it is not sent a second time, and the client gets 503."""
    catalog = client(ours)
    made(catalog, name)
    upstream.plan = once(CatalogFault.LOST, "/tables/orders")
    with pytest.raises(RESTError):
        catalog.drop_table(name)
    assert upstream.changes("DELETE") == [(f"/v1/namespaces/{name.partition('.')[0]}/tables/orders", 200)]


def commit_of(table: Any, key: str, *, tag: str = "seen") -> dict[str, Any]:
    """A request that sets a tag where `main` is."""
    at = table.metadata.current_snapshot_id
    updates = [{"action": "set-snapshot-ref", "ref-name": tag, "type": "tag", "snapshot-id": at}]
    required = [{"type": "assert-ref-snapshot-id", "ref": tag, "snapshot-id": None}]
    namespace, name = table.name()
    return {
        "url": f"/v1/namespaces/{namespace}/tables/{name}",
        "json": {"requirements": required, "updates": updates},
        "headers": {"Idempotency-Key": key},
    }


def test_without_the_proxy_a_commit_that_landed_is_told_as_failed(
    ours: str, upstream: FaultyCatalog, server: str, name: str
) -> None:
    """The defect that this is for: the catalog answers the repetition of a commit that landed with 409, after which clients delete its
    files. With the proxy and a key the same repetition gets the table."""
    table = made(client(server), name)
    table.append(ROWS)
    for url, told in ((upstream.url, 409), (ours, 200)):
        table.refresh()
        request = commit_of(table, uuid7(), tag=f"told{told}")
        upstream.plan = once(CatalogFault.LIE, "/tables/orders")
        answers = [httpx.post(**{**request, "url": url + request["url"]}).status_code for _ in range(2)]
        assert answers == [503, told]
        table.refresh()
        assert f"told{told}" in table.metadata.refs


class Caught(HTTPAdapter):
    """Keeps the body of a commit and sends nothing."""

    body: Any = None

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        if request.method == "POST" and str(request.url).endswith("/tables/orders"):
            self.body = request.body
            raise requests.ConnectionError
        return super().send(request, *args, **kwargs)


def append_of(server: str, name: str) -> dict[str, Any]:
    """A request that adds `ROWS`; their files are there."""
    catalog, caught = RestCatalog("caught", uri=server), Caught()
    catalog._session.mount("http://", caught)
    with pytest.raises((requests.ConnectionError, CommitStateUnknownException)):
        catalog.load_table(name).append(ROWS)
    assert caught.body is not None
    namespace, table = name.split(".")
    headers = {"Idempotency-Key": uuid7(), "Content-Type": "application/json"}
    return {"url": f"/v1/namespaces/{namespace}/tables/{table}", "content": caught.body, "headers": headers}


def test_a_commit_that_was_sent_twice_on_the_way_is_told_as_done(
    ours: str, upstream: FaultyCatalog, server: str, name: str
) -> None:
    """The proxy sends it once, a balancer behind it twice, and the catalog answers the second sending with 409: without the proxy the
    client is told so. With it the client gets the table, now and when it sends the request again."""
    made(client(server), name)
    answers: list[httpx.Response] = []
    for url, told in ((upstream.url, 409), (ours, 200)):
        request = append_of(server, name)
        upstream.plan = once(CatalogFault.TWICE, "/tables/orders")
        answers = [httpx.post(**{**request, "url": url + request["url"]}) for _ in range(1 if told == 409 else 2)]
        assert [each.status_code for each in answers] == [told] * len(answers)
    first, again = answers
    assert first.json()["metadata"]["current-snapshot-id"] == again.json()["metadata"]["current-snapshot-id"]
    assert ("idempotency-replayed" in first.headers, "idempotency-replayed" in again.headers) == (False, True)
    assert SECRET not in first.text
    assert numbers(server, name) == [1, 1, 2, 2, 3, 3]


def test_a_commit_whose_ledger_was_lost_is_told_as_done(
    tmp_path: Path, upstream: FaultyCatalog, server: str, name: str
) -> None:
    """The request is new to the proxy, and the catalog has it already."""
    made(client(server), name)
    request, told = append_of(server, name), []
    for ledger in ("one", "other"):
        (tmp_path / ledger).mkdir()
        with proxy(tmp_path / ledger, upstream.url) as (url, _):
            told.append(httpx.post(**{**request, "url": url + request["url"]}).status_code)
    assert told == [200, 200]
    assert [status for _, status in upstream.changes()[-2:]] == [200, 409]
    assert numbers(server, name) == [1, 2, 3]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_lost_reply_is_told_in_the_form_of_icebergs_errors(
    ours: str, upstream: FaultyCatalog, name: str, *, keyed: bool
) -> None:
    """502 as Iceberg's OpenAPI has it: clients take it for a commit whose state is unknown, and read the sentence."""
    table = made(client(ours), name)
    table.append(ROWS)
    table.refresh()
    commit = commit_of(table, uuid7())["json"]
    upstream.plan = once(CatalogFault.LOST, "/tables/orders")
    path = f"{ours}/v1/namespaces/{name.partition('.')[0]}/tables/orders"
    answer = httpx.post(path, json=commit, headers={"Idempotency-Key": uuid7()} if keyed else {})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (502, 502, "CommitStateUnknownException")
    assert "whether the request took effect is not known" in error["message"]
    assert answer.headers["content-type"] == "application/json"


def test_a_409_that_is_true_stays(ours: str, upstream: FaultyCatalog, server: str, name: str) -> None:
    """Another commit was faster, or a tag is there: the client is told, and makes its commit anew. Where the table cannot be read, whether
    the commit landed is unknown."""
    made(client(server), name)
    late = append_of(server, name)
    made_first = RestCatalog("first", uri=server).load_table(name)
    made_first.append(ROWS)
    tagged = commit_of(made_first.refresh(), uuid7(), tag="there")
    assert httpx.post(**{**tagged, "url": server + tagged["url"]}).status_code == 200
    for request in (late, tagged):
        answers = [httpx.post(**{**request, "url": ours + request["url"]}).status_code for _ in range(2)]
        assert answers == [409, 409]
    late["headers"]["Idempotency-Key"] = uuid7()
    upstream.reads = False
    assert httpx.post(**{**late, "url": ours + late["url"]}).status_code == 503
    upstream.reads = True
    assert httpx.post(**{**late, "url": ours + late["url"]}).status_code == 409
    assert numbers(server, name) == [1, 2, 3]


def test_a_replay_is_loaded_and_not_kept(ours: str, tmp_path: Path, server: str, name: str) -> None:
    """No credential that the catalog vends is in the ledger. A replay has the table and says that it is one. A caller without rights gets
    the catalog's refusal and no replay; another request with that key is refused in Iceberg's form."""
    table = made(client(ours), name)
    table.append(ROWS)
    table.refresh()
    with httpx.Client(base_url=ours) as web:
        request = commit_of(table, uuid7())
        first, second = web.post(**request), web.post(**request)
        assert (first.status_code, second.status_code) == (200, 200)
        assert second.json().keys() == {"metadata-location", "metadata"}
        assert second.json()["metadata-location"] == first.json()["metadata-location"]
        assert second.headers["idempotency-replayed"] == "true"
        assert SECRET in first.text and SECRET not in second.text
        stranger = web.post(**{**request, "headers": {**request["headers"], "Authorization": STRANGER}})
        assert (stranger.status_code, stranger.json()["error"]["type"]) == (403, "ForbiddenException")
        other = web.post(**{**request, "json": {**request["json"], "updates": []}})
        assert (other.status_code, other.json()["error"]["code"]) == (422, 422)
        bad = web.post(**{**request, "headers": {"Idempotency-Key": "not-a-uuid"}})
        assert (bad.status_code, bad.json()["error"]["type"]) == (400, "BadRequestException")
    for file in tmp_path.glob("replies.db*"):
        assert SECRET.encode() not in file.read_bytes()


def test_each_kind_of_answer_is_replayed(ours: str, upstream: FaultyCatalog, name: str) -> None:
    """A namespace, a staged table (of which the catalog keeps nothing), a table, an error, a drop: each sent twice."""
    space = name.partition(".")[0]
    columns = [{"id": 1, "name": "n", "type": "long", "required": False}]
    table = {"name": "t", "schema": {"type": "struct", "fields": columns}}
    sent: list[tuple[str, str, Any]] = [
        ("POST", "/v1/namespaces", {"namespace": [space], "properties": {"owner": "us"}}),
        ("POST", f"/v1/namespaces/{space}/tables", {**table, "stage-create": True}),
        ("POST", f"/v1/namespaces/{space}/tables", table),
        ("POST", f"/v1/namespaces/{space}/tables", table),
        ("DELETE", f"/v1/namespaces/{space}/tables/t", None),
    ]
    upstream.requests.clear()
    with httpx.Client(base_url=ours) as web:
        for at, (method, path, body) in enumerate(sent):
            headers = {"Idempotency-Key": uuid7()}
            first, second = (web.request(method, path, json=body, headers=headers) for _ in range(2))
            assert first.status_code == second.status_code == (409 if at == 3 else 200), (path, first.text, second.text)
            assert second.headers.get("idempotency-replayed") == (None if at == 1 else "true")
            if at != 4:
                assert first.json().keys() - {"config"} == second.json().keys() - {"config"}
    assert [status for _, status in upstream.changes()] == [200, 200, 200, 200, 409]  # a staged one may be made twice
    assert len(upstream.changes("DELETE")) == 1


def test_a_repetition_of_a_running_commit_is_never_told_409(ours: str, upstream: FaultyCatalog, name: str) -> None:
    """Both get the one answer; the catalog has got one request."""
    table = made(client(ours), name)
    table.append(ROWS)
    table.refresh()
    upstream.delay = 1.0
    upstream.requests.clear()
    request = commit_of(table, uuid7())
    with httpx.Client(base_url=ours) as web, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: web.post(**request, timeout=60), range(8)))
    assert [each.status_code for each in answers] == [200] * 8
    assert len(upstream.changes()) == 1


@pytest.mark.parametrize("point", ["replies.reserved", "replies.effect.after", "replies.finalize.after"])
def test_a_proxy_that_dies_is_followed_by_another_one(
    tmp_path: Path, upstream: FaultyCatalog, server: str, name: str, point: str
) -> None:
    """Before the commit was sent, after it landed, after its answer was recorded: the next proxy on the ledger answers, and the commit is
    there once."""
    with proxy(tmp_path, upstream.url) as (url, _):
        made(client(url), name).append(ROWS)
    table = RestCatalog("reader", uri=server).load_table(name)
    request = commit_of(table, uuid7())
    with proxy(tmp_path, upstream.url, failpoints=f"{point}=kill") as (url, _), pytest.raises(httpx.TransportError):
        httpx.post(**{**request, "url": url + request["url"]})
    with proxy(tmp_path, upstream.url) as (url, _), httpx.Client(base_url=url) as web:
        answer = web.post(**request, timeout=60)  # the dead one's claim ends after ten seconds
        assert answer.status_code == 200
        assert "seen" in answer.json()["metadata"]["refs"]


def test_many_commits_under_faults(
    ours: str, upstream: FaultyCatalog, server: str, name: str, say: Callable[[str], None]
) -> None:
    """Two clients append 12 times each, and every third request meets a fault: each of them is told the truth, and every row is there as
    often as it was committed."""
    made(client(ours), name)
    struck = [0]

    def plan(_: str, path: str) -> CatalogFault | None:
        if "/tables/orders" not in path:
            return None
        struck[0] += 1
        return list(CatalogFault)[struck[0] // 3 % 3] if struck[0] % 3 == 0 else None

    upstream.plan = plan

    def appends(number: int) -> int:
        catalog, done = client(ours), 0
        for _ in range(12):
            while True:
                try:
                    catalog.load_table(name).append(pa.table({"n": pa.array([number], pa.int64())}))
                except CommitFailedException:
                    continue  # the other one was faster: once more on the new state, as clients do
                done += 1
                break
        return done

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(appends, (1, 2))) == [12, 12]
    assert numbers(server, name) == [1] * 12 + [2] * 12
    say(f"24 commits, {struck[0]} requests, {struck[0] // 3} faults")
