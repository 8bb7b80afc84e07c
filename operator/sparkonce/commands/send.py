"""Creates one IdempotentJob in a cluster, for senders without kubectl: the pods of a CronJob.

The object is created, never changed. An existing object of this name is either the same job, sent before (after a lost reply, or by a pod
that was started twice), or another job, which is refused. The command does not wait for the key: the operator runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sparkonce.errors import InvalidInput
from sparkonce.launch.kubernetes import JOBS, AlreadyExists, ApiRefused, ApiUnavailable, Json, Kubernetes
from sparkonce.model.identity import derive, fingerprint
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
