"""An informer's cache, indexed by name and by one label."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.kube.watch import ObjectCache, pauses
from sparkonce.launch.kubernetes import Json

steps = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.none() | st.sampled_from(["k1", "k2"]), st.booleans())
)


@given(steps)
def test_the_index_is_the_objects(history: list[tuple[str, str, str | None, bool]]) -> None:
    """After any history of objects put, relabelled and removed, each label's value finds exactly the objects that carry it now."""
    seen = ObjectCache("key")
    there: dict[tuple[str, str], Json] = {}
    for namespace, name, value, removed in history:
        if removed:
            assert seen.remove(namespace, name) == there.pop((namespace, name), None)
            continue
        found: Json = {"metadata": {"name": name, "labels": {"key": value} if value else None}}
        there[namespace, name] = found
        seen.put(namespace, name, found)
    assert len(seen) == len(there)
    assert seen.names() == there.keys()
    carrying = defaultdict(list)
    for (namespace, name), found in sorted(there.items(), key=lambda each: each[0]):
        assert seen.get(namespace, name) is found
        if found["metadata"]["labels"]:
            carrying[namespace, found["metadata"]["labels"]["key"]].append(found)
    for namespace in "ab":
        for value in ("k1", "k2"):
            assert seen.labelled(namespace, "key", value) == carrying[namespace, value]


def test_another_label_is_a_defect() -> None:
    """A lookup by a label that is not indexed raises: an empty answer would look like absence."""
    with pytest.raises(ValueError, match="only key is indexed"):
        ObjectCache("key").labelled("a", "role", "driver")


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_pauses_double_up_to_their_cap(chance: float) -> None:
    """Each pause is between half and all of the doubled first one, and never above the cap."""
    waits = pauses(0.1, 1.0, chance=lambda: chance)
    assert [next(waits) for _ in range(6)] == pytest.approx(
        [each * (0.5 + chance / 2) for each in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0)]
    )
