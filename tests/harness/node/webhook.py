"""The webhook of kubeflow's Spark operator, as its chart installs it: for every pod that it launches and every SparkApplication, on all
namespaces, with `failurePolicy: Fail`.

It mounts the volumes and sets the affinity, tolerations and environment that spark-submit cannot, fills in defaults, and refuses what its
validator refuses. Like the Spark operator it runs as a process of the node; the API server calls it through a Service without a selector.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.kube_api import Api, Json
from harness.node.network import NODE
from sparkonce.launch.kubernetes import Resource

NAME, NAMESPACE, PORT = "spark-operator-webhook", "spark-operator", 9443
GROUP = "admissionregistration.k8s.io"
CONFIGURATIONS = [
    Resource(GROUP, "v1", f"{kind.lower()}webhookconfigurations", f"{kind}WebhookConfiguration", namespaced=False)
    for kind in ("Mutating", "Validating")
]
APPLICATIONS = {
    "apiGroups": ["sparkoperator.k8s.io"],
    "apiVersions": ["v1beta2"],
    "resources": ["sparkapplications"],
    "operations": ["CREATE", "UPDATE"],
}
LAUNCHED_PODS = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
LAUNCHED = {"matchLabels": {"sparkoperator.k8s.io/launched-by-spark-operator": "true"}}


def command(folder: Path) -> list[str]:
    """The arguments that start it. `folder`: for its certificate, which it makes itself."""
    return [
        "webhook",
        "start",
        "--namespaces=",
        "--leader-election=false",
        "--enable-metrics=false",
        f"--webhook-port={PORT}",
        f"--webhook-cert-dir={folder / 'spark-webhook'}",
        f"--webhook-secret-name={NAME}-certs",
        f"--webhook-secret-namespace={NAMESPACE}",
        f"--webhook-svc-name={NAME}",
        f"--webhook-svc-namespace={NAMESPACE}",
        f"--mutating-webhook-name={NAME}",
        f"--validating-webhook-name={NAME}",
        "--health-probe-bind-address=127.0.0.1:8282",
        "--metrics-bind-address=0",
    ]


def objects() -> Sequence[Json]:
    """Its Service and its configurations. From then on no SparkApplication is accepted until it answers."""
    metadata = {"name": NAME, "namespace": NAMESPACE}
    ports = [{"name": "webhook", "port": PORT, "protocol": "TCP"}]
    mutating, validating = CONFIGURATIONS
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": NAME}},
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [NODE]}],
        },
        _configuration(
            mutating,
            _webhook("mutate--v1-pod", LAUNCHED_PODS, objectSelector=LAUNCHED),
            _webhook("mutate-sparkoperator-k8s-io-v1beta2-sparkapplication", APPLICATIONS),
        ),
        _configuration(validating, _webhook("validate-sparkoperator-k8s-io-v1beta2-sparkapplication", APPLICATIONS)),
    ]


def ready(api: Api) -> bool:
    """Whether it has given its CA to the API server."""
    found = [api.get(each, NAME) for each in CONFIGURATIONS]
    return all(each and all(hook["clientConfig"].get("caBundle") for hook in each["webhooks"]) for each in found)


def _configuration(kind: Resource, *webhooks: Json) -> Json:
    return {"apiVersion": f"{GROUP}/v1", "kind": kind.kind, "metadata": {"name": NAME}, "webhooks": list(webhooks)}


def _webhook(path: str, rule: Json, **more: Any) -> Json:
    return {
        "name": f"{path}.sparkoperator.k8s.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": NAME, "namespace": NAMESPACE, "port": PORT, "path": f"/{path}"}},
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 10,
        "rules": [rule],
        **more,
    }
