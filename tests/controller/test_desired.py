"""What a generation in progress takes from the object that opened it: its job as it is now, as long as that is the same job."""

from __future__ import annotations

import pytest

from harness.jobs import job
from sparkonce.controller.desired import Desired, describe
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.identity import FINGERPRINT_VERSION
from sparkonce.model.record import Opener, Record

REALM = "loads"
SEEN = ApplicationState(name="so-1", uid="u1", nonce="n", phase=Phase.HELD)


def desired(memory: str = "1g", argument: str = "--month=5", *, uid: str = "X") -> Desired:
    """An object as the API server has it."""
    body = job("load", key="load", arguments=(argument,))
    body["metadata"] |= {"namespace": REALM, "uid": uid, "generation": 1}
    body["spec"]["template"]["spec"]["driver"]["memory"] = memory
    return Desired.of(body, realm=REALM)


OPENED = desired()
RECORD = Record(
    realm=REALM,
    key_hash=OPENED.key.key_hash,
    key="load",
    fingerprint=OPENED.fingerprint(),
    fingerprint_version=FINGERPRINT_VERSION,
    generation=1,
    attempt=1,
    nonce="n",
    openers=(Opener(uid="X", number=1, fingerprint=OPENED.fingerprint()),),
)


@pytest.mark.parametrize(
    ("leader", "memory", "edited"),
    [
        pytest.param(OPENED, "1g", False, id="not edited"),
        pytest.param(desired("2g"), "2g", True, id="edited"),
        pytest.param(desired("2g", "--month=6"), "1g", False, id="another job by now"),
        pytest.param(desired("2g", uid="Y"), "1g", False, id="another object"),
        pytest.param(None, "1g", False, id="gone"),
    ],
)
def test_an_application_is_outdated_by_an_edit_of_its_leader_alone(
    leader: Desired | None, memory: str, edited: bool
) -> None:
    """The next attempt runs the leader's job, and only where that is the object's own does its application count as edited."""
    recorded = OPENED.spec_body()
    made = describe(RECORD, recorded, leader)
    assert made.spec.job["spec"]["template"]["spec"]["driver"]["memory"] == memory
    first = ApplicationState(name="so-1", uid="u1", nonce="n", phase=Phase.HELD, template=recorded.template_digest)
    assert made.edited(first) is edited
    assert not made.edited(None)
    assert not made.edited(SEEN)  # an earlier version made it


def test_a_job_that_went_back_to_its_recorded_template() -> None:
    """An application of an edited job is outdated once the edit was taken back, but not once the leader is gone."""
    recorded = OPENED.spec_body()
    of_the_edit = describe(RECORD, recorded, desired("2g")).spec.template_digest
    seen = ApplicationState(name="so-1", uid="u1", nonce="n", phase=Phase.HELD, template=of_the_edit)
    assert describe(RECORD, recorded, OPENED).edited(seen)
    assert not describe(RECORD, recorded, None).edited(seen)
