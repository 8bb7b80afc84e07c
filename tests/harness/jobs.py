"""IdempotentJobs for the api tier, as small as a user would write them."""

from __future__ import annotations

from typing import Any


def job(name: str, *, key: str, arguments: tuple[str, ...] = (), **spec: Any) -> dict[str, Any]:
    """An opaque job; `spec` replaces or adds fields (camelCase)."""
    return {
        "apiVersion": "sparkonce.dev/v1alpha1",
        "kind": "IdempotentJob",
        "metadata": {"name": name},
        "spec": {
            "idempotencyKey": key,
            "template": {
                "apiVersion": "sparkoperator.k8s.io/v1beta2",
                "kind": "SparkApplication",
                "spec": {
                    "type": "Python",
                    "mode": "cluster",
                    "sparkVersion": "4.1.1",
                    "image": "registry.example/spark:4.1.1",
                    "mainApplicationFile": "local:///opt/job.py",
                    "arguments": list(arguments),
                    "driver": {"cores": 1, "memory": "512m"},
                    "executor": {"cores": 1, "instances": 1, "memory": "512m"},
                },
            },
            **spec,
        },
    }
