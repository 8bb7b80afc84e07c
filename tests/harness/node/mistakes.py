"""Mistakes that people make with a job on Kubernetes: what each looks like in the object or the namespace, and the cause to be named.

A mistake changes a job that is otherwise right, or its namespace. The right job is the correction. The same mistakes are made with plain
SparkApplications, to have beside them what the Spark operator says of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.eventually import assert_eventually
from harness.kube_api import ApiError, Json, path_of
from harness.node.scene import SHARED, Scene
from sparkonce.launch.kubernetes import NAMESPACES, SPARK_APPLICATIONS, Resource

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
GUESTS = Resource("", "v1", "configmaps", "ConfigMap")
REGISTRY_PORT = 5000
"""Of a registry on the node that refuses everyone. containerd speaks HTTP to it, since it is at localhost."""
POLICY_GROUP = "admissionregistration.k8s.io/v1"
POLICY = "drivers-have-a-team"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    cause: str
    """Regular expression for what the status has to say."""
    asks: bool = False
    """The author of the corrected object may have to do what its status says: a driver had started, or the job has ended and the correction
    is of nothing that must match."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Merged into the SparkApplication's spec; None removes a field."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Merged into the IdempotentJob's spec."""
    before: Callable[[Scene], None] = lambda scene: None
    """Makes the namespace wrong."""
    after: Callable[[Scene], None] = lambda scene: None
    """Makes it right again."""

    def mistaken(self, right: Json) -> Json:
        made = copy.deepcopy(right)
        _merge(_template(made), self.template)
        if made["kind"] == "IdempotentJob":
            _merge(made["spec"], self.job)
        return made


def _template(body: Json) -> Any:
    return body["spec"]["template"]["spec"] if body["kind"] == "IdempotentJob" else body["spec"]


def _merge(into: Any, what: Mapping[str, Any]) -> None:
    for name, value in what.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = copy.deepcopy(value)


def _quota(**hard: str) -> tuple[Callable[[Scene], None], Callable[[Scene], None]]:
    def made(scene: Scene) -> None:
        metadata = {"name": "small", "namespace": scene.namespace}
        scene.cluster.api.create(QUOTAS, {"metadata": metadata, "spec": {"hard": hard}}, scene.namespace)
        scene.cluster.api.wait(QUOTAS, "small", scene.namespace, until=lambda each: each.get("status", {}).get("hard"))

    def removed(scene: Scene) -> None:
        scene.cluster.api.delete(QUOTAS, "small", scene.namespace)

    return made, removed


def _policy(scene: Scene) -> None:
    """The cluster's own rule for this namespace: a driver has a label that names its team."""
    here = {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}}
    rule = {
        "apiGroups": ["sparkoperator.k8s.io"],
        "apiVersions": ["v1beta2"],
        "resources": ["sparkapplications"],
        "operations": ["CREATE"],
    }
    labelled = "has(object.spec.driver.labels) && 'team' in object.spec.driver.labels"
    scene.cluster.api.apply({
        "apiVersion": POLICY_GROUP,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": labelled, "message": "every driver has the label team"}],
        },
    })  # fmt: skip
    scene.cluster.api.apply({
        "apiVersion": POLICY_GROUP,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY},
        "spec": {"policyName": POLICY, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here}},
    })  # fmt: skip
    body = scene.job("tried")
    tried = {**(body["spec"]["template"] if body["kind"] == "IdempotentJob" else body), "metadata": {"name": "tried"}}

    def denies() -> bool:
        try:
            scene.cluster.api.request("POST", path_of(SPARK_APPLICATIONS, scene.namespace), tried, dryRun="All")
        except ApiError as refused:
            return "label team" in refused.message
        return False

    assert_eventually(denies, 60, interval=0.5)  # a policy is in force some seconds after it was made


def _no_policy(scene: Scene) -> None:
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        scene.cluster.kubectl("delete", kind, POLICY)


def _ending(scene: Scene) -> None:
    """Begins to delete the namespace, which a guest with a finalizer keeps from ending."""
    guest = {"metadata": {"name": "guest", "namespace": scene.namespace, "finalizers": ["tests.sparkonce.dev/stays"]}}
    scene.cluster.api.create(GUESTS, guest, scene.namespace)
    scene.cluster.api.delete(NAMESPACES, scene.namespace)
    scene.cluster.api.wait(NAMESPACES, scene.namespace, until=lambda each: each["metadata"].get("deletionTimestamp"))


def ended(scene: Scene) -> None:
    scene.cluster.api.patch(GUESTS, "guest", {"metadata": {"finalizers": None}}, namespace=scene.namespace)


def _script(how: str) -> Mapping[str, Any]:
    return {"mainApplicationFile": f"local://{SHARED}/jobs/mistaken.py", "arguments": [how]}


_pods, _pods_again = _quota(pods="0")
_cores, _cores_again = _quota(**{"requests.cpu": "10m"})

MISTAKES: Mapping[str, Mistake] = {
    "typo": Mistake(cause="driver.memroy", template={"driver": {"memroy": "512m"}}),
    "wrong image": Mistake(
        cause="image cannot be pulled", template={"image": "localhost:1/none:1", "imagePullPolicy": "IfNotPresent"}
    ),
    "private image": Mistake(
        cause=r"(?s)image cannot be pulled.*(401|[Uu]nauthorized|authorization)",
        template={"image": f"localhost:{REGISTRY_PORT}/private/spark:1", "imagePullPolicy": "IfNotPresent"},
    ),
    "missing claim": Mistake(
        cause='persistentvolumeclaim "none" not found',
        template={
            "volumes": [{"name": "lost", "persistentVolumeClaim": {"claimName": "none"}}],
            "driver": {"volumeMounts": [{"name": "lost", "mountPath": "/lost"}]},
        },
    ),
    "missing ConfigMap": Mistake(
        cause='configmap "none" not found', template={"driver": {"configMaps": [{"name": "none", "path": "/lost"}]}}
    ),
    "missing Secret": Mistake(
        cause='secret "none" not found',
        template={"driver": {"secrets": [{"name": "none", "path": "/lost", "secretType": "Generic"}]}},
    ),
    "missing service account": Mistake(
        cause="service account [^ ]*/nobody", template={"driver": {"serviceAccount": "nobody"}}
    ),
    "quota of pods": Mistake(cause="exceeded quota: small", before=_pods, after=_pods_again),
    "quota of cores": Mistake(cause="exceeded quota: small", before=_cores, after=_cores_again),
    "no such node": Mistake(
        cause="no node takes its driver pod", template={"driver": {"nodeSelector": {"disk": "none"}}}
    ),
    "out of memory": Mistake(cause="OOMKilled", asks=True, template=_script("memory")),
    "exit code 1": Mistake(cause="exited with code 1", asks=True, template=_script("exit")),
    "exception": Mistake(cause="KeyError: 'departure_delay'", asks=True, template=_script("exception")),
    "deadline": Mistake(cause="activeDeadlineSeconds", asks=True, job={"activeDeadlineSeconds": 15}),
    "wrong main class": Mistake(
        cause="flights.NoSuchMain",
        asks=True,
        template={
            "type": "Java",
            "mainClass": "flights.NoSuchMain",
            "mainApplicationFile": f"local://{SHARED}/jobs/empty.jar",
            "arguments": [],
        },
    ),
    "refused by the webhook": Mistake(
        cause="node selector cannot be defined at both",
        template={"nodeSelector": {"disk": "ssd"}, "driver": {"nodeSelector": {"disk": "ssd"}}},
    ),
    "refused by a policy": Mistake(
        cause="every driver has the label team", asks=True, before=_policy, after=_no_policy
    ),
    "namespace ending": Mistake(cause="because it is being terminated", before=_ending),
    "suspended": Mistake(cause="(?i)suspended", job={"suspend": True}),
    "submission timeout": Mistake(
        cause="(?i)time(d )?-?out", template={"sparkConf": {"spark.kubernetes.submission.requestTimeout": "1"}}
    ),
}
"""By what a person would call them. A node that is gone is no mistake of a job's; it is the fault *kubelet stopped* of tests/cluster."""
