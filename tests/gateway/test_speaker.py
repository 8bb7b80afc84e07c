"""Which pod may speak for an attempt: each test changes one part of a pod."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sparkonce.launch.kubeflow.labels import ATTEMPT_LABEL, GENERATION_LABEL, KEY_LABEL, NONCE, ROLE_LABEL
from sparkonce.launch.kubeflow.speaker import Speaker, speaker_of
from sparkonce.model.record import Address

ADDRESS = Address(realm="ns", key_hash="ab" * 32)
NAME = f"so-{'ab' * 10}-g2-a3"


def pod(application: str = NAME, *, role: str = "", owned: bool = True) -> dict[str, Any]:
    labels = {KEY_LABEL: "ab" * 10, GENERATION_LABEL: "2", ATTEMPT_LABEL: "3"} | ({ROLE_LABEL: role} if role else {})
    owner = {"kind": "SparkApplication", "name": application, "uid": "app-1"}
    return {
        "metadata": {
            "name": f"{application}-driver",
            "uid": "pod-1",
            "labels": labels,
            "annotations": {NONCE: "n"},
            **({"ownerReferences": [owner]} if owned else {}),
        }
    }


def heard(body: object, *, nonce: str = "n", generation: int = 2, attempt: int = 3) -> Speaker | None:
    assert isinstance(body, dict)
    return speaker_of(body, ADDRESS, generation, attempt, nonce=nonce)


def changed(*path: str | int, to: object) -> dict[str, Any]:
    body = copy.deepcopy(pod())
    place: Any = body["metadata"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return body


def test_the_driver_and_a_settle_run_are_known() -> None:
    """A driver and a settle run are recognised by their application's UID; without an owner reference all labels must match."""
    assert heard(pod()) == Speaker(settles=False, pod_uid="pod-1", application_uid="app-1")
    assert heard(pod(owned=False)) == Speaker(settles=False, pod_uid="pod-1", application_uid=None)
    assert heard(pod(f"{NAME}-s2", role="settle")) == Speaker(settles=True, pod_uid="pod-1", application_uid="app-1")


@pytest.mark.parametrize(
    "body",
    [
        changed("annotations", NONCE, to="m"),
        changed("annotations", to={}),
        changed("name", to=f"{NAME}-driver-2"),
        changed("name", to=f"x{NAME}-driver"),
        changed("name", to=f"{NAME}-s0-driver"),
        changed("name", to=f"{NAME}-s1x-driver"),
        changed("name", to=f"{NAME}-s1-driver"),
        changed("name", to=f"so-{'ab' * 10}-g2-a30-driver"),
        changed("ownerReferences", 0, "name", to="another"),
        changed("labels", ROLE_LABEL, to="stub"),
        changed("labels", ROLE_LABEL, to="settle"),
        changed("annotations", to=None),
        changed("ownerReferences", to=[{"kind": "SparkApplication"}]),
        {"metadata": None},
        {},
    ],
)
def test_any_other_pod_is_nobody(body: dict[str, Any]) -> None:
    """One mismatched part is enough to reject a pod, and no malformed pod raises."""
    assert heard(body) is None


def test_numbers_and_nonces_are_compared() -> None:
    """The pod of one attempt cannot speak for another, and an empty nonce matches none."""
    assert heard(pod(), attempt=4) is None
    assert heard(pod(), generation=1) is None
    assert heard(pod(), nonce="") is None
    body = pod(owned=False)
    del body["metadata"]["labels"][KEY_LABEL]
    assert heard(body) is None
