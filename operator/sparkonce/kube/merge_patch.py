"""JSON merge patches (RFC 7386): what must be sent so that the stored object becomes the wanted one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkonce.launch.kubernetes import Json


def difference(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> Json:
    """Empty: they are the same. A null means that a key goes, so a null in `wanted` counts as a key that is not there."""
    patch: Json = {}
    for name in stored:
        if wanted.get(name) is None and stored[name] is not None:
            patch[name] = None
    for name, value in wanted.items():
        if value is None:
            continue
        before = stored.get(name)
        if isinstance(value, Mapping):
            inner = difference(before if isinstance(before, Mapping) else {}, value)
            if inner or not isinstance(before, Mapping):
                patch[name] = inner
        elif not _same(before, value):
            patch[name] = value
    return patch


def _same(one: Any, other: Any) -> bool:
    """Python takes True for 1; JSON does not."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
