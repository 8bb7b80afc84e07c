"""Binds the applications of a namespace that run when sparkonce is installed, each to a key of its own.

Writes only IdempotentJobs with `spec.bind`, each created under its application's name. So of two concurrent runs one creates the object,
and a repetition, after a lost reply or a crash, finds it. An API server that does not know `spec.bind` must refuse the object: without that
field the operator would launch the application's spec a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sparkonce.launch.kubernetes import (
    JOBS,
    SPARK_APPLICATIONS,
    AlreadyExists,
    ApiRefused,
    ApiUnavailable,
    Json,
    Kubernetes,
)
from sparkonce.model.convert import ConvertOptions, convert
from sparkonce.model.identity import derive
from sparkonce.model.reserved import OURS
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob

TRIES, PAUSE = 5, 1.0
"""Attempts at one object while the API server does not answer, and seconds between them."""
ENDS = frozenset({"COMPLETED", "FAILED"})


class Adoption(StrEnum):
    BOUND = "bound"
    PLANNED = "would be bound"
    KNOWN = "already bound"
    LEFT_OUT = "left out"
    """Outcome: nothing has to be done for the application."""
    REFUSED = "not bound"
    """Outcome: it runs and cannot be bound; a person must look."""


@dataclass(frozen=True)
class Adopted:
    """What was done for one application."""

    name: str
    what: Adoption
    why: str = ""
    key: str = ""


async def adopt(
    kubernetes: Kubernetes,
    create: Callable[[Json], Awaitable[Json]],
    *,
    namespace: str,
    labels: Mapping[str, str],
    operation: str | None,
    dry_run: bool,
    on_each: Callable[[Adopted], None],
) -> None:
    """Binds every plain application with these labels that has not ended, in the order of their names. `create` creates an
    IdempotentJob and refuses fields that the API server does not know. `on_each` is called with every application.

    Raises: ApiUnavailable: the API server did not answer; a repetition continues. ApiRefused: it does not let this user list."""
    bound = dict(_bindings(await kubernetes.list(JOBS, namespace)))
    found = await kubernetes.list(SPARK_APPLICATIONS, namespace, labels=labels)
    for application in sorted(found, key=lambda each: str(each["metadata"]["name"])):
        metadata = application["metadata"]
        name, uid = str(metadata["name"]), str(metadata["uid"])
        if uid in bound:
            on_each(Adopted(name, Adoption.KNOWN, f"by IdempotentJob {bound[uid]}"))
        elif why := _nothing_to_do(application):
            on_each(Adopted(name, Adoption.LEFT_OUT, why))
        else:
            on_each(await _adopt(kubernetes, create, application, operation, dry_run=dry_run))


def _bindings(jobs: Any) -> Iterator[tuple[str, str]]:
    for job in jobs:
        bind = (job.get("spec") or {}).get("bind")
        if isinstance(bind, Mapping) and isinstance(uid := bind.get("uid"), str):
            yield uid, str(job["metadata"]["name"])


def _nothing_to_do(application: Mapping[str, Any]) -> str:
    metadata = application["metadata"]
    if any(label.startswith(OURS) for label in metadata.get("labels") or {}):
        return "it is an attempt of sparkonce"
    if metadata.get("deletionTimestamp"):
        return "it is being deleted"
    state = ((application.get("status") or {}).get("applicationState") or {}).get("state")
    return f"it has ended ({state}); `sparkonce bind` makes its end the result of a key" if state in ENDS else ""


async def _adopt(
    kubernetes: Kubernetes,
    create: Callable[[Json], Awaitable[Json]],
    application: Mapping[str, Any],
    operation: str | None,
    *,
    dry_run: bool,
) -> Adopted:
    name, namespace = str(application["metadata"]["name"]), str(application["metadata"]["namespace"])
    try:
        job = dict(convert(application, ConvertOptions(operation=operation, bind=True)).document)
        key = derive(IdempotentJob.of(job).spec, namespace).text
    except InvalidJob as problem:
        return Adopted(name, Adoption.REFUSED, str(problem))
    if dry_run:
        return Adopted(name, Adoption.PLANNED, key=key)
    tries = 0
    while True:
        tries += 1
        try:
            await create(job)
        except AlreadyExists:
            there = await kubernetes.get(JOBS, namespace, name)
            if there is None:
                continue  # deleted since
            if dict(_bindings([there])) == {application["metadata"]["uid"]: name}:
                how = (
                    Adoption.BOUND if tries > 1 else Adoption.KNOWN
                )  # our own, whose reply was lost, or made by a concurrent run
                return Adopted(name, how, "" if tries > 1 else f"by IdempotentJob {name}", key)
            return Adopted(
                name, Adoption.REFUSED, f"another IdempotentJob is called {name}; bind it with `sparkonce bind`"
            )
        except ApiUnavailable:
            if tries >= TRIES:
                raise
            await asyncio.sleep(PAUSE)
        except ApiRefused as refusal:
            return Adopted(name, Adoption.REFUSED, str(refusal))
        else:
            return Adopted(name, Adoption.BOUND, key=key)
