"""What a table of an Iceberg catalog shows of a request whose answer was lost: pure functions of the request and of what is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]


def stands_on(change: Json) -> dict[str, tuple[Any, Any]]:
    """Branches and tags that a change moves, from a snapshot that they must have to another one."""
    required = {
        str(each.get("ref")): each.get("snapshot-id")
        for each in map(as_mapping, as_list(change.get("requirements")))
        if each.get("type") == "assert-ref-snapshot-id"
    }
    moved = {
        str(each.get("ref-name")): each.get("snapshot-id")
        for each in map(as_mapping, as_list(change.get("updates")))
        if each.get("action") == "set-snapshot-ref"
    }
    return {ref: (at, moved[ref]) for ref, at in required.items() if ref in moved and moved[ref] != at}


def has_landed(metadata: Json, change: Json) -> bool:
    """Whether a table has the snapshots that a change adds; where it adds none, whether branches and tags are where it puts them."""
    if added := snapshots(change):
        return added <= _ids(metadata)
    refs, stands = as_mapping(metadata.get("refs")), stands_on(change)
    return bool(stands) and all(as_mapping(refs.get(ref)).get("snapshot-id") == to for ref, (_, to) in stands.items())


def was_overtaken(metadata: Json, change: Json) -> bool:
    """Whether a branch moved on without the snapshots that a change adds, so that it did not land and cannot land any more.

    The branch's history since the snapshot that the change was made on must be listed without a gap: where snapshots have expired, the
    change's own may be among them. A change without snapshots leaves no trace once others have moved what it moved."""
    added, refs = snapshots(change), as_mapping(metadata.get("refs"))
    for ref, (at, _) in stands_on(change).items():
        history = _history(metadata, as_mapping(refs.get(ref)).get("snapshot-id"), at)
        if added and history and not added & history:
            return True
    return False


def _history(metadata: Json, head: Any, at: Any) -> set[Any]:
    """Ids of the snapshots of a branch from its head back to `at`, without that (None: to the first one). Empty: `at` is the head, is not
    in its history, or not all of that is listed."""
    listed = {each.get("snapshot-id"): each for each in map(as_mapping, as_list(metadata.get("snapshots")))}
    found: set[Any] = set()
    while head != at:
        if head not in listed or head in found:
            return set()
        found.add(head)
        head = listed[head].get("parent-snapshot-id")
    return found


def _ids(metadata: Json) -> set[Any]:
    return {as_mapping(each).get("snapshot-id") for each in as_list(metadata.get("snapshots"))}


def lands_once(change: Json) -> bool:
    """Whether a change takes away what it requires: a second one of its kind is refused."""
    required = {each.get("type") for each in map(as_mapping, as_list(change.get("requirements")))}
    return "assert-create" in required or bool(stands_on(change))


def snapshots(change: Json) -> set[Any]:
    """Ids of the snapshots that a change adds."""
    updates = map(as_mapping, as_list(change.get("updates")))
    added = (
        as_mapping(each.get("snapshot")).get("snapshot-id") for each in updates if each.get("action") == "add-snapshot"
    )
    return {each for each in added if isinstance(each, int)}


def is_created(body: Json, loaded: Json, *, since: int) -> bool:
    """Whether a table is the one that this request creates, as far as it can be told: of these columns and partitions, without a snapshot,
    and not older than the key, which has the time at which the client made it."""
    metadata = as_mapping(loaded.get("metadata"))
    schemas = {each.get("schema-id"): each for each in map(as_mapping, as_list(metadata.get("schemas")))}
    specs = {each.get("spec-id"): each for each in map(as_mapping, as_list(metadata.get("partition-specs")))}
    schema = schemas.get(metadata.get("current-schema-id"))
    spec = specs.get(metadata.get("default-spec-id"))
    at = metadata.get("last-updated-ms")
    return (
        isinstance(at, int)
        and at >= since
        and not metadata.get("snapshots")
        and _without_ids(schema) == _without_ids(body.get("schema"))
        and _without_ids(as_mapping(spec).get("fields"))
        == _without_ids(as_mapping(body.get("partition-spec")).get("fields") or [])
    )


def is_registered(body: Json, loaded: Json) -> bool:
    return (
        isinstance(body.get("metadata-location"), str) and loaded.get("metadata-location") == body["metadata-location"]
    )


_IDS = frozenset(
    {
        "id",
        "element-id",
        "key-id",
        "value-id",
        "field-id",
        "source-id",
        "source-ids",
        "schema-id",
        "spec-id",
        "identifier-field-ids",
    }
)


def _without_ids(value: Any) -> Any:
    """A schema or spec without the numbers that the catalog gives anew."""
    if isinstance(value, dict):
        return {name: _without_ids(each) for name, each in value.items() if name not in _IDS}
    return [_without_ids(each) for each in value] if isinstance(value, list) else value


def json_object(body: bytes) -> Json:
    """A JSON object; empty if it is none."""
    try:
        return as_mapping(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def as_mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
