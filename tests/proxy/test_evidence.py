"""What a table shows of a commit whose answer was lost, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from sparkonce.proxy.evidence import has_landed, is_created, is_registered, json_object, lands_once, was_overtaken
from sparkonce.proxy.iceberg import CatalogPolicy, Operation, catalog_policy
from sparkonce.replies.coordinator import KeyedRequest
from sparkonce.replies.protocol import Reply

MADE = 1_700_000_000_000
"""When the request was made, in ms."""


def change(at: int | None, to: int | None = 2, *, ref: str = "main", adds: bool = True) -> dict[str, Any]:
    """A commit that moves a branch from one snapshot to another."""
    return {
        "requirements": [
            {"type": "assert-table-uuid"},
            {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": at},
        ],
        "updates": [
            *([{"action": "add-snapshot", "snapshot": {"snapshot-id": to}}] if adds else []),
            {"action": "set-snapshot-ref", "ref-name": ref, "snapshot-id": to},
        ],
    }


def table(head: int | None, *history: tuple[int, int | None]) -> dict[str, Any]:
    """Metadata of a table with these snapshots and their parents."""
    return {
        "snapshots": [{"snapshot-id": each, "parent-snapshot-id": parent} for each, parent in history],
        "refs": {} if head is None else {"main": {"snapshot-id": head}},
    }


@pytest.mark.parametrize(
    ("metadata", "landed", "overtaken"),
    [
        pytest.param(table(1, (1, None)), False, False, id="not yet"),
        pytest.param(table(2, (1, None), (2, 1)), True, False, id="it is there"),
        pytest.param(table(3, (1, None), (2, 1), (3, 2)), True, False, id="others came after it"),
        pytest.param(table(1, (1, None), (2, 1)), True, False, id="it was rolled back"),
        pytest.param(table(3, (1, None), (3, 1)), False, True, id="another one won"),
        pytest.param(table(4, (1, None), (3, 1), (4, 3)), False, True, id="two others won"),
        pytest.param(table(4, (1, None), (4, 3)), False, False, id="what came between has expired"),
        pytest.param(table(4, (4, 3)), False, False, id="all before the head has expired"),
        pytest.param(table(5, (1, None), (5, None)), False, False, id="the branch was replaced"),
        pytest.param({}, False, False, id="no table"),
    ],
)
def test_a_commit_on_a_snapshot(metadata: dict[str, Any], landed: bool, overtaken: bool) -> None:
    """Landed only where its snapshot is listed; refused for good only where the history since its base has no gap."""
    assert (has_landed(metadata, change(1)), was_overtaken(metadata, change(1))) == (landed, overtaken)


@pytest.mark.parametrize(
    ("metadata", "landed", "overtaken"),
    [
        pytest.param(table(None), False, False, id="still empty"),
        pytest.param(table(2, (2, None)), True, False, id="it is the first one"),
        pytest.param(table(3, (3, None)), False, True, id="another one was the first"),
        pytest.param(table(3, (3, 2)), False, False, id="the first one has expired"),
    ],
)
def test_the_first_commit_of_a_table(metadata: dict[str, Any], landed: bool, overtaken: bool) -> None:
    """It requires that there is no branch."""
    assert (has_landed(metadata, change(None)), was_overtaken(metadata, change(None))) == (landed, overtaken)


def test_a_tag_is_there_or_not_known() -> None:
    """A change without snapshots has landed where its reference stands where it puts it; nothing proves that it has not."""
    tag = change(None, 1, ref="main", adds=False)
    assert has_landed(table(1, (1, None)), tag)
    assert not has_landed(table(3, (1, None), (3, 1)), tag)
    assert not was_overtaken(table(3, (1, None), (3, 1)), tag)


@pytest.mark.parametrize(
    ("sent", "once"),
    [
        (change(1), True),
        (change(None), True),
        (change(2), False),  # it moves the branch to where it must be
        ({"requirements": [{"type": "assert-create"}], "updates": []}, True),
        ({"requirements": [{"type": "assert-table-uuid"}], "updates": [{"action": "set-properties"}]}, False),
        ({"requirements": change(1)["requirements"], "updates": [{"action": "set-properties"}]}, False),
        ({}, False),
        ({"requirements": "all", "updates": 7}, False),
    ],
)
def test_what_is_sent_again(sent: dict[str, Any], once: bool) -> None:
    """Only a change that takes away what it requires."""
    assert lands_once(sent) is once


FIELD = {"id": 1, "name": "n", "type": "long", "required": False}
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [FIELD]}
SPEC = {"spec-id": 0, "fields": []}


def created(**metadata: Any) -> dict[str, Any]:
    whole = {
        "last-updated-ms": MADE + 5,
        "schemas": [SCHEMA],
        "current-schema-id": 0,
        "partition-specs": [SPEC],
        "default-spec-id": 0,
        "snapshots": [],
    }
    return {"metadata": {**whole, **metadata}}


def test_a_table_is_the_one_that_was_asked_for() -> None:
    """Alike but for ids, empty, and not older than the key."""
    body = {"name": "t", "schema": {"type": "struct", "fields": [{**FIELD, "id": 7}]}}
    other = {"type": "struct", "schema-id": 0, "fields": [{**FIELD, "type": "int"}]}
    by_n = {"spec-id": 0, "fields": [{"name": "n", "transform": "identity", "source-id": 1, "field-id": 1000}]}
    assert is_created(body, created(), since=MADE)
    assert not is_created(body, created(**{"last-updated-ms": MADE - 1}), since=MADE)
    assert not is_created(body, created(snapshots=[{"snapshot-id": 1}]), since=MADE)
    assert not is_created(body, created(schemas=[other]), since=MADE)
    assert not is_created(body, created(**{"partition-specs": [by_n]}), since=MADE)
    assert is_created({**body, "partition-spec": by_n}, created(**{"partition-specs": [by_n]}), since=MADE)
    assert not is_created(body, {}, since=MADE)
    assert is_registered({"metadata-location": "a"}, {"metadata-location": "a"})
    assert not is_registered({}, {})


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_an_empty_one(body: bytes) -> None:
    """Whatever a client sends, or a catalog answers."""
    assert json_object(body) == {}


@pytest.mark.parametrize(
    ("method", "path", "name", "root", "namespace"),
    [
        ("POST", "/v1/namespaces", "createNamespace", "/v1", ""),
        ("POST", "/v1/ware/house/namespaces", "createNamespace", "/v1/ware/house", ""),
        ("DELETE", "/v1/namespaces/namespaces", "dropNamespace", "/v1", "namespaces"),
        ("POST", "/v1/p/namespaces/a%1Fb/tables/rename", "updateTable", "/v1/p", "a%1Fb"),
        ("POST", "/v1/p/tables/rename", "renameTable", "/v1/p", ""),
        ("POST", "/v1/transactions/commit", "commitTransaction", "/v1", ""),
        ("POST", "/v1/namespaces/a/register", "registerTable", "/v1", "a"),
    ],
)
def test_an_operation_is_told_by_its_path(method: str, path: str, name: str, root: str, namespace: str) -> None:
    """With a prefix or without; tables and namespaces may have the names of operations."""
    request = KeyedRequest("k" * 64, "k", "", "f", method, path, "", (), b"")
    found = Operation.of(request)
    assert (found.name, found.root, found.namespace) == (name, root, namespace)
    scope = catalog_policy().scope_of(method, path)
    assert scope is not None and scope.operation == name


@pytest.mark.parametrize(
    "path", ["/v1/namespaces/a/tables/t/metrics", "/v1/namespaces/a/tables/t/plan", "/v1/oauth/tokens"]
)
def test_what_leaves_nothing_takes_no_key(path: str) -> None:
    """Reports, plans of scans, tokens."""
    assert catalog_policy().scope_of("POST", path) is None


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        (Reply(200, (), b'{"namespace": ["a"], "properties": {}}'), True),
        (Reply(200, (), b'{"metadata": {}, "config": {"secret": "x"}}'), False),
        (Reply(200, (("content-encoding", "gzip"),), b"\x1f\x8b"), False),
        (Reply(409, (), b'{"error": {"message": "metadata"}}'), True),
        (Reply(204), True),
        (Reply(200), True),
    ],
)
def test_a_body_is_kept_only_if_nothing_in_it_was_vended(reply: Reply, kept: bool) -> None:
    """Of a success only fields that are known; never what cannot be read."""
    policy = catalog_policy()
    assert isinstance(policy, CatalogPolicy)
    found = policy.kept(reply)
    assert (found.body == reply.body and not found.omitted) == kept
