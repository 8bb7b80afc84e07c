"""Properties of every status, for any record, object and earlier status: it fits the CRD and is stable at once."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given

from controller.key_objects import LATER, NOW, condition, ended, obj, result, view
from controller.key_strategies import lives, objects
from sparkonce.controller.objects import ObjectView
from sparkonce.controller.plan import UNANSWERED, asked, place
from sparkonce.controller.status import COMPLETE, READY, STANDARD, next_status, project
from sparkonce.model.crd_status import status_schema
from sparkonce.sink.protocol import Evidence
from sparkonce.store.protocol import View

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def violations(value: Any, schema: Mapping[str, Any], path: str = "status") -> Iterator[str]:
    """The places where a value violates a structural schema, that is, where the API server would refuse or prune it."""
    match schema["type"]:
        case "object":
            if not isinstance(value, dict):
                yield f"{path} is no object"
                return
            known = schema.get("properties", {})
            yield from (f"{path}.{name} is required" for name in schema.get("required", ()) if name not in value)
            for name, each in value.items():
                if name in known:
                    yield from violations(each, known[name], f"{path}.{name}")
                elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                    yield f"{path}.{name} is not in the schema"
        case "array":
            if not isinstance(value, list):
                yield f"{path} is no list"
                return
            for index, each in enumerate(value):
                yield from violations(each, schema["items"], f"{path}[{index}]")
            names = [
                tuple(each[key] for key in schema.get("x-kubernetes-list-map-keys", ()))
                for each in value
                if isinstance(each, dict)
            ]
            if "x-kubernetes-list-map-keys" in schema and len(set(names)) != len(names):
                yield f"{path} names something twice"
        case "string":
            fits = isinstance(value, str) and value in schema.get("enum", [value])
            if not fits or (schema.get("format") == "date-time" and not TIME.fullmatch(value)):
                yield f"{path} is {value!r}"
        case "integer":
            if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
                yield f"{path} is {value!r}"
        case kind:
            assert kind == "boolean"
            if not isinstance(value, bool):
                yield f"{path} is {value!r}"


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"phase": "Superseded"}, "status.phase is 'Superseded'"),
        ({"epoch": "1"}, "status.epoch is '1'"),
        ({"generation": True}, "status.generation is True"),
        ({"replayed": 1}, "status.replayed is 1"),
        ({"nonce": "n"}, "status.nonce is not in the schema"),
        ({"conditions": [{"type": "Held"}]}, "status.conditions[0].status is required"),
        ({"conditions": [{"type": "Held", "status": "True"}] * 2}, "status.conditions names something twice"),
        (
            {"conditions": [{"type": "Held", "status": "True", "lastTransitionTime": "now"}]},
            "status.conditions[0].lastTransitionTime is 'now'",
        ),
        ({"result": {"outputs": [{"rows": 1}]}}, "status.result.outputs[0].name is required"),
    ],
)  # fmt: skip
def test_the_check_refuses_what_the_schema_refuses(broken: dict[str, Any], says: str) -> None:
    """The check used below notices wrong types, words and times, and fields that are unknown, missing or duplicate."""
    assert list(violations(broken, status_schema())) == [says]


def live(
    of: ObjectView, life: list[tuple[View | None, dict[str, Any], str | None]]
) -> Iterator[tuple[ObjectView, View | None, dict[str, Any], dict[str, Any]]]:
    """Yields for each write the object before it, what was read, and the status."""
    for at, known, edit in life:
        if edit is not None:
            of = replace(of, generation=of.generation + 1, fingerprints={1: edit} if edit else {})
        status = project(at, of, now_text=NOW, **known)
        yield of, at, known, status
        of = replace(of, status=json.loads(json.dumps(status)))


@given(objects(), lives)
def test_every_status_fits_the_schema(of: ObjectView, life: list[Any]) -> None:
    """The API server would neither refuse nor prune any status; no status is Complete and Failed at once."""
    for *_, status in live(of, life):
        assert list(violations(status, status_schema())) == []
        json.dumps(status, allow_nan=False)
        assert {"Complete", "Failed"} - {
            kind for kind in ("Complete", "Failed") if condition(status, kind).get("status") == "True"
        }
        assert all(each["reason"] and TIME.fullmatch(each["lastTransitionTime"]) for each in status["conditions"])


@given(objects(), lives)
@example(obj(), [(view(ended()), {"result": result()}, None), (view(None, floor=1), {}, None)])
@example(
    obj(), [(view(ended()), {"result": result()}, None), (view(ended()), {"evidence": {"orders": Evidence.GONE}}, None)]
)
def test_one_standard_condition_is_true(of: ObjectView, life: list[Any]) -> None:
    """Exactly one of Ready, Reconciling and Stalled is True, for the object's newest edit. Ready is True as long as Complete; an object
    stays Ready until it is edited or its key has another generation or epoch."""
    for before, *_, status in live(of, life):
        one = [kind for kind in STANDARD if condition(status, kind)["status"] == "True"]
        assert len(one) == 1
        assert {each["observedGeneration"] for each in status["conditions"]} == {before.generation}
        assert (one == [READY]) == (condition(status, COMPLETE).get("status") == "True")
        was = condition(before.status, READY).get("status") == "True"
        about = [
            (each.get("observedGeneration"), each.get("generation"), each.get("epoch"))
            for each in (before.status, status)
        ]
        assert one == [READY] or not was or about[0] != about[1]


@given(objects(), lives)
def test_a_status_is_settled_at_once(of: ObjectView, life: list[Any]) -> None:
    """The same look gives the same status, does not change its input, and finds nothing to write once the status is stored."""
    for before, at, known, status in live(of, life):
        untouched = copy.deepcopy(before.status)
        assert project(at, before, now_text=NOW, **known) == status
        assert before.status == untouched
        after = replace(before, status=status)
        assert next_status(status, project(at, after, now_text=LATER, **known)) is None


@given(objects(), lives)
def test_times_move_when_statuses_flip(of: ObjectView, life: list[Any]) -> None:
    """lastTransitionTime is kept exactly as long as the condition's status is."""
    for before, at, known, _ in live(of, life):
        status = project(at, before, now_text=LATER, **known)
        if status == {**before.status, "observedGeneration": before.generation}:
            continue  # unchanged
        for each in status["conditions"]:
            was = condition(before.status, each["type"])
            same = was.get("status") == each["status"]
            assert each["lastTransitionTime"] == (was["lastTransitionTime"] if same else LATER)


@given(objects(), lives)
def test_only_an_answer_names_what_was_asked(of: ObjectView, life: list[Any]) -> None:
    """A status answers its object exactly if the object's relation is an answered one: an object that may still open a generation has no
    answer, and an answered one keeps it."""
    for before, at, known, status in live(of, life):
        if at is None or not before.fingerprints:
            continue
        ask = asked(before, at.record)
        after = asked(replace(before, status=status), at.record)
        placed = place(at, before, leader=known.get("leader"), evidence=known.get("evidence"))
        if placed.relation in UNANSWERED:
            assert (after.answered, after.number) == (ask.answered, ask.number)
        assert after.known or not ask.known
        assert after.number == ask.number


@given(objects(), lives)
def test_an_end_is_only_ever_the_records(of: ObjectView, life: list[Any]) -> None:
    """Succeeded, Failed or Cancelled with a generation is that generation's recorded outcome, now or when it was last written."""
    ends: dict[int, set[str]] = {}
    for before, at, _, status in live(of, life):
        if at is not None and at.record is not None and at.record.outcome is not None:
            ends.setdefault(at.record.generation, set()).add(at.record.outcome)
        if status["phase"] in ("Succeeded", "Failed", "Cancelled") and "generation" in status:
            assert status["phase"] in ends[status["generation"]]
        elif status["phase"] == "Failed":
            assert "fingerprint" not in status and not before.asks(status.get("fingerprint"))
