"""How long objects have been in their phases, computed from the objects alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from sparkonce.controller.desired import DesiredReader
from sparkonce.kube.events import EventRecorder
from sparkonce.kube.jobs import KnownJobs, Pages
from sparkonce.launch.kubernetes import Kubernetes
from sparkonce.model.record import Address

NOW = datetime(2026, 11, 24, 12, 0, 0, tzinfo=UTC)
Json = dict[str, Any]


class OneKey:
    """A reader for which all objects belong to one key."""

    def read(self, body: Json) -> OneKey:
        del body
        return self

    @property
    def address(self) -> Address:
        return Address(realm="-", key_hash="0" * 64)


def ages(*objects: Json) -> dict[str, float]:
    """The ages that a process reports which has just started and received these objects."""
    none = cast("Any", None)
    known = KnownJobs(
        cast("Kubernetes", none),
        cast("Pages", none),
        cast("DesiredReader", OneKey()),
        namespaces=None,
        recorder=cast("EventRecorder", none),
        listed=lambda: True,
        on_change=lambda *_: None,
    )
    for number, each in enumerate(objects):
        meta = {"uid": str(number), "namespace": "a", "name": str(number), "resourceVersion": "1", **each["metadata"]}
        known.told(None, {**each, "metadata": meta})
    return dict(known.ages(NOW))


def at(created: str, phase: str = "", changed: Sequence[str] = (), generation: int = 1, **spec: Any) -> Json:
    """An object created at this time of today, whose conditions changed at these times."""
    conditions = [{"type": str(number), "lastTransitionTime": each} for number, each in enumerate(map(day, changed))]
    status = {"phase": phase, "generation": generation, "conditions": conditions} if phase else {}
    return {"metadata": {"creationTimestamp": day(created)}, "spec": spec, "status": status}


def day(time: str) -> str:
    return f"2026-11-24T{time}Z" if time[:1].isdigit() else time


def test_the_oldest_of_each_phase_counts() -> None:
    """An object without a status is Pending; ended objects have no age."""
    found = ages(
        at("11:00:00"), at("10:00:00"), at("09:00:00", "Running"), at("11:59:00", "Running"), at("01:00:00", "Failed")
    )
    assert found == {"Pending": 7200, "Running": 10800}
    assert ages() == {}


def test_an_age_begins_with_the_last_change() -> None:
    """The age of a rerun or superseded job counts from its new generation, at whose start the conditions changed, not from the object's
    creation."""
    assert ages(at("01:00:00", "Running", ["02:00:00", "11:30:00", "03:00:00"])) == {"Running": 1800}


def test_an_object_without_a_reservation_waits_since_it_was_created() -> None:
    """Without a reservation the age counts from creation: conditions that change as the ledger comes and goes do not shorten it."""
    assert ages(at("10:00:00", "Pending", ["11:59:59"], generation=0)) == {"Pending": 7200}


def test_suspended_objects_wait_for_a_person() -> None:
    """Suspended objects have no age, whatever their phase."""
    assert ages(at("01:00:00", "Pending", suspend=True), at("11:00:00", "Pending", suspend=False)) == {"Pending": 3600}


@pytest.mark.parametrize("false", ["", "soon", "9999-99-99T99:99:99Z", "9999-01-01T00:00:00Z", "0001-01-01T00:00:00Z"])
def test_a_false_time_hides_its_own_object_at_most(false: str) -> None:
    """A status is input: an invalid time never makes its object look older than it is, and does not affect the ages of other objects."""
    found = ages(at("10:00:00", "Running", [false]), at("11:00:00", "Running", ["11:00:00"]))
    assert found == {"Running": 7200 if false in ("", "0001-01-01T00:00:00Z") else 3600}
    assert ages(at("10:00:00", "Running", [false])).get("Running", 0) in (0, 7200)
