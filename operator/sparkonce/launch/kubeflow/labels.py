"""Labels and annotations of the Kubeflow Spark operator's SparkApplications (v1beta2) and of their pods. Pure.

An application is identified by its annotations, written with the create call: install, realm and key hash identify the owner, the nonce the
grant of the attempt. Labels repeat this for users and selectors and are copied to the pods; they can be edited, so an annotation or an
owner reference takes precedence.

An object of ours with another nonce is not foreign: its grant is missing from the ledger, so the ledger was restored to an older state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from sparkonce.model.record import Assignment
from sparkonce.model.reserved import OURS, THEIRS

API_VERSION = "sparkoperator.k8s.io/v1beta2"
KIND = "SparkApplication"

KEY_LABEL = OURS + "key"
GENERATION_LABEL = OURS + "generation"
ATTEMPT_LABEL = OURS + "attempt"
ROLE_LABEL = OURS + "role"
"""Role of an object other than the attempt itself."""

KEY_HASH = OURS + "key-hash"
REALM = OURS + "realm"
INSTALL = OURS + "install"
NONCE = OURS + "nonce"
FINGERPRINT = OURS + "fingerprint"
OBJECTS = OURS + "objects"
PODS_SINCE = OURS + "pods-since"
"""resourceVersion of the pods, read before the application existed: where the history of the driver pod's name begins."""
WAITED_UNTIL = OURS + "waited-until"
"""While a driver waits: up to where that history shows no start, as resourceVersions of the pods and of the driver pod (`starts`)."""
TEMPLATE = OURS + "template"
"""`SpecBody.template_digest` of the job as it was launched. Applications of earlier versions lack it."""
STOPPING = OURS + "stopping"
"""Our stop mark: the attempt is being stopped, whatever the record says."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""A queue suspends the application when it is created, and starts it by an edit of its own."""
DRIVER_CONTAINER = "spark-kubernetes-driver"


class Role(StrEnum):
    PLACEHOLDER = "placeholder"
    SETTLE = "settle"
    STUB = "stub"


APP_NAME_LABEL = THEIRS + "app-name"
"""Names the application on the Spark operator's pods, drivers and executors alike."""


def opaque(assignment: Assignment) -> bool:
    """Whether the job declares no outputs, so that only its end shows its effect."""
    return not as_list(as_map(assignment.spec.job.get("spec")).get("outputs"))


def driver_pod_name(application: str) -> str:
    """The driver pod's name by the Spark operator's rule; a template that names the pod is refused."""
    return f"{application}-driver"


def labels_of(assignment: Assignment, role: Role | None = None) -> dict[str, str]:
    labels = {
        KEY_LABEL: assignment.address.hash20,
        GENERATION_LABEL: str(assignment.generation),
        ATTEMPT_LABEL: str(assignment.attempt),
    }
    return labels if role is None else {**labels, ROLE_LABEL: role.value}


def identity_of(assignment: Assignment) -> dict[str, str]:
    """Annotations that identify the owner and the grant."""
    return {
        KEY_HASH: assignment.key_hash,
        REALM: assignment.realm,
        INSTALL: assignment.install,
        NONCE: assignment.nonce,
        FINGERPRINT: assignment.fingerprint,
    }


def nonce_of(document: Mapping[str, Any], assignment: Assignment) -> str:
    """Nonce that the creator wrote; empty unless this install created the object for this key."""
    found = as_map(as_map(document.get("metadata")).get("annotations"))
    expected = {KEY_HASH: assignment.key_hash, REALM: assignment.realm, INSTALL: assignment.install}
    return text_of(found.get(NONCE)) if all(found.get(name) == value for name, value in expected.items()) else ""


def rewound(nonce: str, assignment: Assignment) -> bool:
    """Whether a nonce (see `nonce_of`) belongs to a grant of this install that the record lacks."""
    return nonce not in {"", assignment.nonce}


# Objects from the API server are untrusted data: any field may be missing or have another type.


def as_map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def number_of(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
