"""Creates one IdempotentJob in a cluster, for senders without kubectl: the pods of a CronJob.

The object is created, never changed. An existing object of this name is either the same job, sent before (after a lost reply, or by a pod
that was started twice), or another job, which is refused. The command does not wait for the key: the operator runs it. `check` asks
beforehand what the API server would refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sparkonce.errors import InvalidInput, LaunchRefused
from sparkonce.launch.answers import invalid, short
from sparkonce.launch.kubeflow.spec import application, only_ours
from sparkonce.launch.kubernetes import (
    JOBS,
    SPARK_APPLICATIONS,
    AlreadyExists,
    ApiRefused,
    ApiUnavailable,
    Json,
    Kubernetes,
    Resource,
)
from sparkonce.model.identity import Key, derive, fingerprint
from sparkonce.model.record import Assignment, SpecBody
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob

TRIES, PAUSE = 5, 1.0
"""Attempts while the API server does not answer, and seconds between them."""


async def send(
    kubernetes: Kubernetes, create: Callable[[Json], Awaitable[Json]], job: IdempotentJob, *, namespace: str
) -> bool:
    """Creates the object; False: it exists already. `create` refuses fields that the API server does not know.

    Raises: InvalidInput: another job has its name, or the API server refuses it. ApiUnavailable: it may be created; send it again."""
    name = job.metadata.name
    if name is None:
        raise InvalidInput("metadata.name is required: it identifies a job that is sent twice")
    for tries in range(1, TRIES + 1):
        try:
            await create(job.document())
        except AlreadyExists:
            there = await kubernetes.get(JOBS, namespace, name)
            if there is None:
                continue  # deleted since
            if not _same(there, job, namespace):
                raise InvalidInput(
                    f"IdempotentJob {name} of namespace {namespace} is another job; give this one another metadata.name"
                ) from None
            return tries > 1  # our own, whose reply was lost
        except ApiUnavailable:
            if tries == TRIES:
                raise
            await asyncio.sleep(PAUSE)
        except ApiRefused as refusal:
            raise InvalidInput(f"the API server refuses IdempotentJob {name}: {refusal}") from None
        else:
            return True
    raise ApiUnavailable(f"IdempotentJob {name} is created and deleted again and again; send it again")


async def check(create: Callable[[Resource, Json], Awaitable[Json]], job: IdempotentJob, *, namespace: str) -> Key:
    """Asks the API server whether it takes the object, and the application of its first attempt. `create` is a strict dry run, of which
    nothing is stored: schemas, admission webhooks and quotas answer as for the create itself. Returns the job's key.

    Raises: InvalidInput: refused, with the field's path where the object itself is wrong. ApiUnavailable: not known."""
    name = job.metadata.name
    if name is None:
        raise InvalidInput("metadata.name is required: by it a job that is sent twice is known")
    body = {**job.document(), "metadata": {**job.document()["metadata"], "namespace": namespace}}
    key = derive(job.spec, namespace)
    await _taken(create, JOBS, body, what=f"IdempotentJob {name}")
    if job.spec.bind is None:
        await _taken(
            create,
            SPARK_APPLICATIONS,
            _first(job, body, key, namespace),
            what="the application of its attempts",
            job=job,
        )
    return key


async def _taken(
    create: Callable[[Resource, Json], Awaitable[Json]],
    resource: Resource,
    body: Json,
    *,
    what: str,
    job: IdempotentJob | None = None,
) -> None:
    """`job`: whose application it is."""
    try:
        await create(resource, body)
    except AlreadyExists:
        return  # whether a name is free is asked last
    except ApiRefused as refused:
        if job is not None and only_ours(refused.unknown, job):
            return
        if refused.code == 403 and not refused.over_quota and "admission webhook" not in str(refused):
            raise InvalidInput(
                f"{what} is not checked, because you may not create one here: {short(refused)}"
            ) from None
        where = f"the API server refuses {what}"
        if job is not None:
            raise InvalidInput(
                str(invalid(where, refused) if refused.invalid else f"{where}: {short(refused)}")
            ) from None
        raise InvalidInput(f"{where}: {short(refused)}") from None


def _first(job: IdempotentJob, body: Json, key: Key, namespace: str) -> Json:
    """The application of the first attempt, as the operator would create it for the object."""
    assignment = Assignment(
        install="plan",
        realm=namespace,
        key_hash=key.key_hash,
        key=key.text,
        generation=1,
        attempt=1,
        nonce="plan",
        fingerprint=fingerprint(job).digest,
        spec=SpecBody(job=body),
        gateway="https://gateway.invalid",
    )
    try:
        return application(assignment, job, (), namespace=namespace)
    except LaunchRefused as refused:
        raise InvalidInput(str(refused)) from None


def _same(there: dict[str, Any], job: IdempotentJob, namespace: str) -> bool:
    """Whether the object asks for this job under this key."""
    try:
        known = IdempotentJob.of(there)
        return (derive(known.spec, namespace).key_hash, fingerprint(known)) == (
            derive(job.spec, namespace).key_hash,
            fingerprint(job),
        )
    except InvalidJob:
        return False
