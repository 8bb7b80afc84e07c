"""Lists the applications of one install, and removes those that are no longer needed.

Applications are identified by their name, which cannot be edited, and by annotations, never by labels; one whose name does not match its
annotations is not ours. Used by the sweep, and by `sparkonce doctor accept-restore`, whose only source they are.

The application of an opaque job is replaced by a placeholder with its name, so that a create sent earlier and applied later finds the name
taken. Kubernetes cannot swap two objects atomically: between delete and create such a late application may appear. It is suspended as soon
as it is seen, within milliseconds, long before the Spark operator could submit it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from sparkonce.launch.answers import asking
from sparkonce.launch.kubeflow.labels import (
    FINGERPRINT,
    INSTALL,
    KEY_HASH,
    NONCE,
    OBJECTS,
    REALM,
    STOPPING,
    as_map,
    text_of,
)
from sparkonce.launch.kubeflow.observe import is_placeholder, observe, submission_over
from sparkonce.launch.kubeflow.spec import DRIVER_ENVIRONMENT, Wanting, placeholder
from sparkonce.launch.kubeflow.stop import Stopping
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS, AlreadyExists, Kubernetes, time_of
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import ENVIRONMENT, Address, Assignment, SpecBody

_NAME = re.compile(
    r"so-(?P<hash>[0-9a-f]{20})-g(?P<generation>[1-9]\d{0,8})-a(?P<attempt>[1-9]\d{0,8})(?:-s(?P<run>\d+))?"
)
_HASH = re.compile(r"[0-9a-f]{64}")
TEXT_LIMIT = 256
"""Characters of a nonce or fingerprint; they have 32 and 64."""


@dataclass(frozen=True, kw_only=True)
class FoundApplication:
    """One application of this install."""

    namespace: str
    name: str
    uid: str
    address: Address
    generation: int
    attempt: int
    settle_run: int | None
    """Number of the settle run; None for the attempt itself."""
    nonce: str
    fingerprint: str
    created: datetime | None
    """By the API server's clock; None if it does not say."""
    objects: tuple[str, ...]
    """UIDs of the key's objects when it was created."""
    phase: Phase
    """Phase in its status: a hint, because its pods are not read."""
    placeholder: bool
    """Whether it is a placeholder, so that nothing ever ran under this UID."""
    stopping: bool
    over: bool
    """Whether the Spark operator will not submit it any more."""
    assignment: Assignment
    """Sufficient to stop the application, not to launch it: the spec is in the ledger."""


async def list_of(kubernetes: Kubernetes, install: str, namespaces: Sequence[str] | None) -> list[FoundApplication]:
    """Lists the applications of an install in these namespaces, or in all.

    Raises:
        LaunchUnavailable: the API server did not answer.
    """
    with asking("the Spark applications of this install cannot be listed"):
        listed = [
            each
            for namespace in ([None] if namespaces is None else namespaces)
            for each in await kubernetes.list(SPARK_APPLICATIONS, namespace)
        ]
    return [found for each in listed if (found := found_of(each, install)) is not None]


def found_of(application: Mapping[str, Any], install: str) -> FoundApplication | None:
    """Parses an application; None if it is not of this install."""
    metadata = as_map(application.get("metadata"))
    annotations, name = as_map(metadata.get("annotations")), text_of(metadata.get("name"))
    key_hash, nonce = text_of(annotations.get(KEY_HASH)), text_of(annotations.get(NONCE))
    fingerprint = text_of(annotations.get(FINGERPRINT))
    said = _NAME.fullmatch(name)
    if said is None or annotations.get(INSTALL) != install or key_hash[:20] != said["hash"]:
        return None
    if not _HASH.fullmatch(key_hash) or not 0 < len(nonce) <= TEXT_LIMIT or len(fingerprint) > TEXT_LIMIT:
        return None  # an operator writes no such annotations, and a record that holds them could not be stored or found again
    assignment = Assignment(
        install=install,
        realm=text_of(annotations.get(REALM)),
        key_hash=key_hash,
        key=f"the key of application {name}",
        generation=int(said["generation"]),
        attempt=int(said["attempt"]),
        nonce=nonce,
        fingerprint=fingerprint,
        spec=SpecBody(job={}),
    )
    seen = observe(application, [], assignment)
    return FoundApplication(
        namespace=text_of(metadata.get("namespace")),
        name=name,
        uid=text_of(metadata.get("uid")),
        address=assignment.address,
        generation=assignment.generation,
        attempt=assignment.attempt,
        settle_run=int(said["run"]) if said["run"] else None,
        nonce=nonce,
        fingerprint=assignment.fingerprint,
        created=time_of(metadata.get("creationTimestamp")),
        objects=tuple(filter(None, text_of(annotations.get(OBJECTS)).split(","))),
        phase=seen.phase,
        placeholder=is_placeholder(application),
        stopping=bool(annotations.get(STOPPING)),
        over=submission_over(application, assignment),
        assignment=assignment,
    )


def handed_assignment(application: Mapping[str, Any]) -> Assignment | None:
    """The assignment that its driver got; None if it has none (a placeholder) or it does not parse."""
    conf = as_map(as_map(application.get("spec")).get("sparkConf"))
    try:
        return Assignment.model_validate_json(text_of(conf.get(f"{DRIVER_ENVIRONMENT}{ENVIRONMENT}")))
    except ValidationError:
        return None


async def remove(kubernetes: Kubernetes, found: FoundApplication, *, keep_name: bool) -> bool:
    """Removes an application whose generation is finalized. True: it is gone; with `keep_name` (opaque jobs) a placeholder has its name.
    False: retry at the next sweep; with `keep_name`, an application that may still be submitted is left to `stop`."""
    keep_name = keep_name and found.settle_run is None
    with asking(f"application {found.name} cannot be removed"):
        there = await kubernetes.get(SPARK_APPLICATIONS, found.namespace, found.name)
        if there is not None and as_map(there.get("metadata")).get("uid") == found.uid:
            if keep_name and is_placeholder(there):
                return True
            if keep_name and not submission_over(there, found.assignment):
                return False
            await kubernetes.delete(SPARK_APPLICATIONS, found.namespace, found.name, uid=found.uid)
            there = await kubernetes.get(SPARK_APPLICATIONS, found.namespace, found.name)
            if there is not None and as_map(there.get("metadata")).get("uid") == found.uid:
                return False
        if not keep_name:
            return True
        if there is None:
            try:
                body = placeholder(found.assignment, namespace=found.namespace)
                await kubernetes.create(SPARK_APPLICATIONS, found.namespace, body)
                return True
            except AlreadyExists:
                there = await kubernetes.get(SPARK_APPLICATIONS, found.namespace, found.name)
    return await _slipped_in(kubernetes, found, there)


async def _slipped_in(kubernetes: Kubernetes, found: FoundApplication, there: Mapping[str, Any] | None) -> bool:
    """Handles another application with the name: a late one of ours is stopped; a placeholder or a foreign one stays."""
    if there is None:
        return False
    late = found_of(there, found.assignment.install)
    if late is None or late.placeholder:
        return True
    await Stopping(
        kubernetes=kubernetes, assignment=late.assignment, namespace=late.namespace, objects_of=_nobody, timeout=0
    ).once(0)
    return False


async def _nobody(_assignment: Assignment) -> Sequence[Wanting]:
    return ()
