"""Documents of IdempotentJobs for tests: one with nearly every field, and functions that change it."""

from __future__ import annotations

import copy
from typing import Any

from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import Loc


def document() -> dict[str, Any]:
    """A job with a field of every class, as parsed YAML; a new one on each call."""
    return {
        "apiVersion": "sparkonce.dev/v1alpha1",
        "kind": "IdempotentJob",
        "metadata": {"name": "flights-2013-01", "namespace": "etl", "labels": {"team": "air"}},
        "spec": {
            "operation": "load",
            "resource": "flights/2013-01",
            "template": {
                "apiVersion": "sparkoperator.k8s.io/v1beta2",
                "kind": "SparkApplication",
                "metadata": {"labels": {"queue": "night"}},
                "spec": {
                    "type": "Python",
                    "sparkVersion": "4.1.1",
                    "image": "registry.example/flights:7",
                    "mainApplicationFile": "flights.py",
                    "arguments": ["--month", "1", "--threads", "4", "--strict"],
                    "sparkConf": {"spark.sql.shuffle.partitions": "8", "spark.executor.memory": "2g"},
                    "deps": {"pyFiles": ["lib.py"], "packages": ["org.example:parser:1.0"]},
                    "driver": {
                        "cores": 1,
                        "memory": "1g",
                        "serviceAccount": "spark",
                        "env": [
                            {"name": "TZ", "value": "UTC"},
                            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "api", "key": "token"}}},
                        ],
                        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                    },
                    "executor": {"cores": 2, "instances": 3, "memory": "4g", "labels": {"tier": "batch"}},
                    "volumes": [{"name": "scratch", "emptyDir": {}}],
                },
            },
            "outputs": [
                {"name": "flights", "slotLog": {"path": "out/flights"}, "expect": {"columns": ["carrier"]}},
                {"name": "rejects", "slotLog": {"path": "out/rejects"}, "onRerun": "Append"},
            ],
            "tunableArguments": ["--threads"],
        },
    }


def job(changes: dict[Loc, Any] | None = None) -> IdempotentJob:
    """The job of `document()` with these changes."""
    return IdempotentJob.of(changed(document(), changes or {}))


def template(*loc: str | int) -> Loc:
    """The path of a field in the application's spec."""
    return ("spec", "template", "spec", *loc)


def changed(original: dict[str, Any], changes: dict[Loc, Any]) -> dict[str, Any]:
    """A copy with other values at these paths; missing maps are created."""
    result = copy.deepcopy(original)
    for loc, value in changes.items():
        place: Any = result
        for step in loc[:-1]:
            place = place.setdefault(step, {}) if isinstance(step, str) else place[step]
        place[loc[-1]] = value
    return result
