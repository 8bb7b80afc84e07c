"""Opaque attempts whose containers never started, with a real kubelet and scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from harness.eventually import assert_eventually
from harness.node.scene import LONG, Scene
from sparkonce.launch.kubernetes import JOBS

pytestmark = [pytest.mark.slow, pytest.mark.spark]

NO_IMAGE = {"image": "localhost/sparkonce/none:1"}
NO_CLAIM = {
    "driver": {
        "template": {
            "spec": {
                "containers": [{"name": "spark-kubernetes-driver", "volumeMounts": [{"name": "c", "mountPath": "/c"}]}],
                "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "none"}}],
            }
        }
    }
}


def send(scene: Scene, name: str, mistake: dict[str, Any]) -> None:
    job = scene.job(name, outputs=[], retry={"maxAttempts": 1, "submissionRetries": 0})
    template = job["spec"]["template"]["spec"]
    for field, value in mistake.items():
        template[field] = {**template[field], **value} if isinstance(value, dict) else value
    scene.cluster.api.apply(job)


def test_what_never_started_is_failed_and_not_unknown(scene: Scene) -> None:
    """One job's image is not on the node, which ends the attempt at once; the other's volume claim does not exist, so that the pod is never
    scheduled and the deadline ends it. Both are Failed: the pod's final state shows that no container ran, and no person has to decide."""
    send(scene, "image", NO_IMAGE)
    send(scene, "claim", NO_CLAIM)

    def waits(name: str) -> bool:
        conditions = scene.driver(name).get("status", {}).get("conditions") or []
        return any(each.get("reason") == "Unschedulable" for each in conditions)

    assert_eventually(lambda: waits("claim"), LONG)
    scene.cluster.api.patch(JOBS, "claim", {"spec": {"activeDeadlineSeconds": 1}}, namespace=scene.namespace)
    for name, why in (("image", "its image is not on the node"), ("claim", "activeDeadlineSeconds")):
        message = scene.until(name, "Failed")["result"]["failure"]["message"]
        assert why in message
        assert "unknown" not in message
    assert not scene.marks("image")
    assert not scene.marks("claim")
