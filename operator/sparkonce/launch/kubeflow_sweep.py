"""The applications of one install as they stand in a cluster, and how one that has served its time is removed.

Read from what cannot be edited (the name) and from annotations, never from labels; a name that does not fit its annotations is not
ours. What is found is for the sweep and for `sparkonce doctor accept-restore`, which has nothing else left to look at.

An application of an opaque job leaves a placeholder under its name, so that a create call that was sent before and lands after finds
the name taken. Kubernetes cannot swap two objects in one step: between the deletion and the create call such a late application can
slip in. It is suspended on sight, within milliseconds, long before the Spark operator could have submitted it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from sparkonce.launch.answers import asking
from sparkonce.launch.kubeflow import (
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
from sparkonce.launch.kubeflow_observe import is_placeholder, observe, submission_over
from sparkonce.launch.kubeflow_spec import DRIVER_ENVIRONMENT, Wanting, placeholder
from sparkonce.launch.kubeflow_stop import Stopping
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS, AlreadyExists, Kubernetes
from sparkonce.launch.protocol import Phase
from sparkonce.model.assignment import ENVIRONMENT, Assignment
from sparkonce.model.record import Address, SpecBody

_NAME = re.compile(
    r"so-(?P<hash>[0-9a-f]{20})-g(?P<generation>[1-9]\d{0,8})-a(?P<attempt>[1-9]\d{0,8})(?:-s(?P<run>\d+))?"
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """One application of this install."""

    namespace: str
    name: str
    uid: str
    address: Address
    generation: int
    attempt: int
    settle_run: int | None
    """Of an application that settles the attempt; None for the attempt itself."""
    nonce: str
    fingerprint: str
    objects: tuple[str, ...]
    """UIDs of the objects that wanted it when it was created."""
    phase: Phase
    """As its status says it: a hint, nobody looked at its pods."""
    placeholder: bool
    """Nothing ever ran under this UID."""
    stopping: bool
    over: bool
    """The Spark operator will not submit it any more."""
    assignment: Assignment
    """Enough of it to stop the application, not to launch one: the spec is in the ledger."""


async def list_of(kubernetes: Kubernetes, install: str, namespaces: Sequence[str] | None) -> list[Found]:
    """In these namespaces, or in all. LaunchUnavailable."""
    with asking("the Spark applications of this install cannot be listed"):
        listed = [
            each
            for namespace in ([None] if namespaces is None else namespaces)
            for each in await kubernetes.list(SPARK_APPLICATIONS, namespace)
        ]
    return [found for each in listed if (found := found_of(each, install)) is not None]


def found_of(application: Mapping[str, Any], install: str) -> Found | None:
    """None: it is not of this install."""
    metadata = as_map(application.get("metadata"))
    annotations, name = as_map(metadata.get("annotations")), text_of(metadata.get("name"))
    key_hash, nonce = text_of(annotations.get(KEY_HASH)), text_of(annotations.get(NONCE))
    said = _NAME.fullmatch(name)
    if said is None or annotations.get(INSTALL) != install or not nonce or key_hash[:20] != said["hash"]:
        return None
    assignment = Assignment(
        install=install,
        realm=text_of(annotations.get(REALM)),
        key_hash=key_hash,
        key=f"the key of application {name}",
        generation=int(said["generation"]),
        attempt=int(said["attempt"]),
        nonce=nonce,
        fingerprint=text_of(annotations.get(FINGERPRINT)),
        spec=SpecBody(job={}),
    )
    seen = observe(application, [], assignment)
    assert seen is not None  # there is an application
    return Found(
        namespace=text_of(metadata.get("namespace")),
        name=name,
        uid=text_of(metadata.get("uid")),
        address=assignment.address,
        generation=assignment.generation,
        attempt=assignment.attempt,
        settle_run=int(said["run"]) if said["run"] else None,
        nonce=nonce,
        fingerprint=assignment.fingerprint,
        objects=tuple(filter(None, text_of(annotations.get(OBJECTS)).split(","))),
        phase=seen.phase,
        placeholder=is_placeholder(application),
        stopping=bool(annotations.get(STOPPING)),
        over=submission_over(application, assignment),
        assignment=assignment,
    )


def told_of(application: Mapping[str, Any]) -> Assignment | None:
    """What its driver was told, without what stayed in the ledger; None: it tells nothing (a placeholder), or it does not parse."""
    conf = as_map(as_map(application.get("spec")).get("sparkConf"))
    try:
        return Assignment.model_validate_json(text_of(conf.get(f"{DRIVER_ENVIRONMENT}{ENVIRONMENT}")))
    except ValidationError:
        return None


async def remove(kubernetes: Kubernetes, found: Found, *, keep_name: bool) -> bool:
    """After its generation was finalized. True: it is gone, and with `keep_name` (opaque jobs) its name is taken for good. False:
    not yet, try again at the next sweep; with `keep_name`, an application that may still be submitted is left to `stop`."""
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


async def _slipped_in(kubernetes: Kubernetes, found: Found, there: Mapping[str, Any] | None) -> bool:
    """Something else has the name. What is a placeholder, or nobody of ours, keeps it; a late application of ours is stopped."""
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
