"""States of an application and of a driver pod, as the Spark operator and the kubelet write them, with their meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launch.kubeflow_scene import ASSIGNMENT, NOTED, UID, at, disrupted, pod
from sparkonce.launch.kubeflow.observe import observe
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.record import Application

UNSEEN = Application(name="so", uid=UID)
"""As in the record before a driver was seen."""
MARK: dict[str, Any] = {"annotations": {"sparkonce.dev/stopping": "nonce-3"}, "generation": 2, "suspend": True}
EXITED = "driver container failed with ExitCode: 3, Reason: Error"
EXISTS = (
    'failed to submit spark application: failed to run spark-submit: driver pod already exist: pods "x" already exists'
)
NOT_FOUND = "driver pod not found"
SUBMIT = "failed to submit spark application: signal: killed"
SPARKS_OWN: dict[str, Any] = {
    "labels": {
        "sparkonce.dev/key": ASSIGNMENT.address.hash20,
        "sparkonce.dev/generation": "2",
        "sparkonce.dev/attempt": "3",
    }
}

STATUS = [
    # state, message, phase without a noted driver, phase if the noted driver's pod is missing
    (None, "", Phase.ACCEPTED, Phase.UNKNOWN),
    ("", "", Phase.ACCEPTED, Phase.UNKNOWN),
    ("SUBMITTED", "", Phase.STARTING, Phase.UNKNOWN),
    ("RUNNING", "", Phase.RUNNING, Phase.UNKNOWN),
    ("UNKNOWN", "", Phase.RUNNING, Phase.UNKNOWN),
    ("SUCCEEDING", "", Phase.FINISHING, Phase.FINISHING),
    ("FAILING", EXITED, Phase.FINISHING, Phase.FINISHING),
    ("SUBMISSION_FAILED", SUBMIT, Phase.FINISHING, Phase.FINISHING),
    ("RESUMING", "", Phase.ACCEPTED, Phase.ACCEPTED),
    ("PENDING_RERUN", "", Phase.ACCEPTED, Phase.ACCEPTED),
    ("INVALIDATING", "", Phase.ACCEPTED, Phase.ACCEPTED),
    ("SUSPENDING", "", Phase.HELD, Phase.HELD),
    ("SUSPENDED", "", Phase.HELD, Phase.HELD),
    ("COMPLETED", "", Phase.UNKNOWN, Phase.UNKNOWN),  # its pod was deleted, before its end or after it
    ("FAILED", EXITED, Phase.FAILED_KNOWN, Phase.FAILED_KNOWN),
    ("FAILED", "driver container failed with ExitCode: 137, Reason: OOMKilled", Phase.FAILED_KNOWN, Phase.FAILED_KNOWN),
    ("FAILED", "driver container failed with ExitCode: 143", Phase.FAILED_KNOWN, Phase.FAILED_KNOWN),
    ("FAILED", EXISTS, Phase.UNKNOWN, Phase.UNKNOWN),
    ("FAILED", NOT_FOUND, Phase.UNKNOWN, Phase.UNKNOWN),
    ("FAILED", "driver container status missing", Phase.UNKNOWN, Phase.UNKNOWN),
    ("FAILED", SUBMIT, Phase.UNKNOWN, Phase.UNKNOWN),
    ("FAILED", f"{SUBMIT}\n{EXITED}", Phase.UNKNOWN, Phase.UNKNOWN),
    ("FAILED", "driver container failed with ExitCode: 0, Reason: Completed", Phase.UNKNOWN, Phase.UNKNOWN),
    ("FAILED", f"driver container failed with ExitCode: {'9' * 5000}", Phase.UNKNOWN, Phase.UNKNOWN),
    ("FAILED", "", Phase.UNKNOWN, Phase.UNKNOWN),
    ("BRAND_NEW", "", Phase.ACCEPTED, Phase.ACCEPTED),
]
LEAVING: dict[str, Any] = {"deletionTimestamp": at(35), "deletionGracePeriodSeconds": 30}  # deleted at 12:00:05
LEFT_LATER: dict[str, Any] = {"deletionTimestamp": at(50), "deletionGracePeriodSeconds": 30}  # deleted at 12:00:20
TAINTED = disrupted("DeletionByTaintManager", second=5)
GIVEN_UP: dict[str, Any] = {"conditions": [*TAINTED["conditions"], {"type": "Ready", "status": "False"}]}
NO_TIMES = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "2026-05-01T12:00:50"]
SIDECAR = {"name": "proxy", "state": {"terminated": {"exitCode": 1, "finishedAt": at(10)}}}
ENDED_WELL = {"name": "spark-kubernetes-driver", "state": {"terminated": {"exitCode": 0, "finishedAt": at(10)}}}
PODS = [
    # the pod, its phase, exit code
    (pod("Pending"), Phase.STARTING, None),
    (pod("Running"), Phase.RUNNING, None),
    (pod("Unknown"), Phase.RUNNING, None),
    (pod("Running", status={"reason": "NodeLost"}), Phase.RUNNING, None),
    (pod("Running", status={"reason": "NodeLost"}, **LEAVING), Phase.UNKNOWN, None),
    (pod("Running", status=GIVEN_UP, **LEAVING), Phase.UNKNOWN, None),
    (pod("Running", status=TAINTED, **LEAVING), Phase.FINISHING, None),
    (pod("Running", status={**GIVEN_UP, "containerStatuses": []}, **LEAVING), Phase.FINISHING, None),  # by its kubelet
    (pod("Running", **LEAVING), Phase.FINISHING, None),
    (pod("Succeeded", code=0), Phase.SUCCEEDED, 0),
    (pod("Succeeded", status={"containerStatuses": []}), Phase.SUCCEEDED, 0),
    (pod("Running", code=0), Phase.SUCCEEDED, 0),  # a sidecar is still running
    (pod("Failed", code=0), Phase.SUCCEEDED, 0),  # a sidecar failed
    (pod("Failed", code=1), Phase.FAILED_KNOWN, 1),
    (pod("Failed", code=143), Phase.FAILED_KNOWN, 143),
    (pod("Failed", code=137, reason="OOMKilled"), Phase.FAILED_KNOWN, 137),
    (pod("Failed", code=137, status={"reason": "DeadlineExceeded"}), Phase.FAILED_KNOWN, 137),
    (pod("Failed", status={"reason": "DeadlineExceeded", "containerStatuses": []}), Phase.FAILED_KNOWN, None),
    (pod("Failed"), Phase.UNKNOWN, None),  # container status missing
    (pod("Failed", status={"containerStatuses": None}), Phase.UNKNOWN, None),
    (pod("Failed", status={"reason": "NodeLost"}), Phase.UNKNOWN, None),
    (pod("Failed", status={"reason": "Evicted"}), Phase.FAILED_INFRA, None),
    (pod("Failed", status={"reason": "Preempting"}), Phase.FAILED_INFRA, None),
    (pod("Failed", status={"reason": "UnexpectedAdmissionError", "containerStatuses": None}), Phase.FAILED_INFRA, None),
    (pod("Failed", code=137, status={"reason": "Evicted"}), Phase.FAILED_INFRA, None),
    (pod("Failed", code=143, status=disrupted("PreemptionByScheduler", second=5)), Phase.FAILED_INFRA, None),
    # A driver that traps SIGTERM and exits 0 was interrupted. Two clocks cannot show whether it had ended before.
    (pod("Failed", code=1, status=disrupted("EvictionByEvictionAPI", second=20)), Phase.FAILED_INFRA, None),
    (pod("Succeeded", code=0, status=disrupted("EvictionByEvictionAPI", second=5)), Phase.FAILED_INFRA, None),
    (pod("Succeeded", code=0, status=disrupted("EvictionByEvictionAPI", second=10)), Phase.FAILED_INFRA, None),
    (pod("Succeeded", code=0, status=disrupted("DeletionByPodGC", second=20)), Phase.FAILED_INFRA, None),
    (pod("Succeeded", code=0, **LEAVING), Phase.UNKNOWN, None),
    (pod("Succeeded", code=0, deletionTimestamp="soon"), Phase.UNKNOWN, None),
    *((pod("Succeeded", code=0, deletionTimestamp=time), Phase.UNKNOWN, None) for time in NO_TIMES),
    (pod("Succeeded", code=0, **LEFT_LATER), Phase.UNKNOWN, None),
    (pod("Succeeded", code=0, reason="OOMKilled"), Phase.SUCCEEDED, 0),
    (pod("Failed", status={"containerStatuses": [SIDECAR, ENDED_WELL]}), Phase.SUCCEEDED, 0),
    (pod("Failed", status={"containerStatuses": [SIDECAR, {**SIDECAR, "name": "other"}]}), Phase.UNKNOWN, None),
    (pod("Failed", code=1, **LEAVING), Phase.FAILED_KNOWN, 1),
]


def seen(
    application: Mapping[str, Any], pods: list[Any] | None = None, noted: Application | None = NOTED
) -> ApplicationState:
    return observe(application, pods, ASSIGNMENT, noted)
