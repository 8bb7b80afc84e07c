"""Whether the objects of a key show its end: asked before its record is forgotten, since nobody could tell them afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sparkonce.engine.objects import ObjectRef
from sparkonce.errors import InvalidInput
from sparkonce.model.record import Record

ENDS = frozenset({"Succeeded", "Failed", "Cancelled", "Mismatch", "Expired"})
"""Phases after which an object waits for nothing."""


async def check_told(record: Record, live: Callable[[str, str], Awaitable[dict[str, Any] | None]]) -> None:
    """InvalidInput: some object waits for what is to be forgotten. `live`: the object of this namespace and name, as the API server has
    it; raises what that raises."""
    for ref in map(ObjectRef.parse, record.objects):
        found = await live(ref.namespace, ref.name)
        mine = found is not None and found["metadata"]["uid"] == ref.uid
        if mine and ((found or {}).get("status") or {}).get("phase") not in ENDS:
            raise InvalidInput(
                f"IdempotentJob {ref.namespace}/{ref.name} does not show the end of {record.key} yet; wait until it does, or delete it"
            )
