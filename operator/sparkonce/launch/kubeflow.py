"""What sparkonce writes on kubeflow's SparkApplications (v1beta2) and on their pods, and how it reads that again. Pure.

An application is known by its annotations, written with the create call: install, realm and key hash say whose it is, the nonce
which grant of the attempt made it. Labels carry the same for people and selectors; they are copied to the pods, anybody may edit
them, and nothing is concluded from them where an annotation or an owner reference says it.

An object of ours with another nonce is not read as foreign: we would have granted it, so the ledger is older than it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from sparkonce.model.assignment import Assignment

API_VERSION = "sparkoperator.k8s.io/v1beta2"
KIND = "SparkApplication"

OURS = "sparkonce.dev/"
THEIRS = "sparkoperator.k8s.io/"
"""Of labels by which the Spark operator knows its pods."""

KEY_LABEL = OURS + "key"
GENERATION_LABEL = OURS + "generation"
ATTEMPT_LABEL = OURS + "attempt"
ROLE_LABEL = OURS + "role"
"""Of everything that is not the attempt itself."""

KEY_HASH = OURS + "key-hash"
REALM = OURS + "realm"
INSTALL = OURS + "install"
NONCE = OURS + "nonce"
FINGERPRINT = OURS + "fingerprint"
OBJECTS = OURS + "objects"
STOPPING = OURS + "stopping"
"""Our mark: whoever reads it knows that the attempt is being stopped, whatever the record says."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Its queue creates the application suspended, and lets it start by an edit of its own."""
DRIVER_CONTAINER = "spark-kubernetes-driver"


class Role(StrEnum):
    PLACEHOLDER = "placeholder"
    SETTLE = "settle"
    STUB = "stub"


APP_NAME_LABEL = THEIRS + "app-name"
"""By which the Spark operator's pods name their application, drivers and executors alike."""


def opaque(assignment: Assignment) -> bool:
    """It declares no outputs: nothing but its end says what it did."""
    return not as_list(as_map(assignment.spec.job.get("spec")).get("outputs"))


def driver_pod_name(application: str) -> str:
    """The Spark operator's rule; a template that names the pod itself is refused."""
    return f"{application}-driver"


def labels_of(assignment: Assignment, role: Role | None = None) -> dict[str, str]:
    labels = {
        KEY_LABEL: assignment.address.hash20,
        GENERATION_LABEL: str(assignment.generation),
        ATTEMPT_LABEL: str(assignment.attempt),
    }
    return labels if role is None else {**labels, ROLE_LABEL: role.value}


def identity_of(assignment: Assignment) -> dict[str, str]:
    """The annotations that say whose it is, and by which grant."""
    return {
        KEY_HASH: assignment.key_hash,
        REALM: assignment.realm,
        INSTALL: assignment.install,
        NONCE: assignment.nonce,
        FINGERPRINT: assignment.fingerprint,
    }


def nonce_of(document: Mapping[str, Any], assignment: Assignment) -> str:
    """As its creator wrote it; empty unless it was made by this install for this key."""
    found = as_map(as_map(document.get("metadata")).get("annotations"))
    expected = {KEY_HASH: assignment.key_hash, REALM: assignment.realm, INSTALL: assignment.install}
    return text_of(found.get(NONCE)) if all(found.get(name) == value for name, value in expected.items()) else ""


def rewound(nonce: str, assignment: Assignment) -> bool:
    """`nonce` as in `Seen`: of an application that this install made and the record does not know."""
    return nonce not in {"", assignment.nonce}


# What the API server returns is data of somebody else's: every look at it allows for a field that is missing or of another type.


def as_map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def number_of(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
