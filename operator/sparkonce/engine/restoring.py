"""Accepts a store that is older than it was, on a person's word: what applications show is written into it, then its epoch is raised.

Run by `sparkonce doctor accept-restore` while operators stand in their alarm, or while none runs. Repeatable at any point: rebuilding finds
what it did, and the epoch is raised last. Of a key without an application nothing is rebuilt: its objects expire, and a job that is sent
again finds what it committed in its outputs. Source: DESIGN section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkonce.engine.rewinding import OUTSIDE
from sparkonce.engine.wanted import Reader, Wanted
from sparkonce.launch.kubeflow_sweep import Found, found_of, told_of
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS, Kubernetes
from sparkonce.model import fingerprint as fingerprints
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Address
from sparkonce.store.protocol import IdempotencyStore
from sparkonce.store.restore import Restorable, Shown


@dataclass(frozen=True)
class Accepted:
    epoch: int
    rebuilt: tuple[str, ...]
    """Keys."""
    kept: int
    """Keys whose records were not older than what applications show."""


async def accept(
    store: IdempotencyStore,
    restorable: Restorable,
    kubernetes: Kubernetes,
    *,
    install: str,
    namespaces: Sequence[str] | None,
    by: str,
    on_key: Callable[[str, bool], None] = lambda *_: None,
) -> Accepted:
    """`on_key`: told of each key, and whether its record was rebuilt. StoreUnavailable, ApiUnavailable, ApiRefused: do it again."""
    seen = await store.load(OUTSIDE)
    scopes: Sequence[str | None] = [None] if namespaces is None else namespaces
    reader = Reader()
    wanted = [reader.read(each) for scope in scopes for each in await kubernetes.list(JOBS, scope)]
    jobs = [each for each in wanted if isinstance(each, Wanted)]
    newest: dict[Address, tuple[Found, Assignment]] = {}
    for scope in scopes:
        for body in await kubernetes.list(SPARK_APPLICATIONS, scope):
            _see(newest, body, install)
    rebuilt: list[str] = []
    for found, assignment in newest.values():
        shown = _shown(found, assignment, jobs)
        done = await restorable.rebuild(shown, by=by)
        on_key(shown.key, done)
        if done:
            rebuilt.append(shown.key)
    epoch = await restorable.raise_epoch(seen=seen.epoch)
    return Accepted(epoch, tuple(rebuilt), len(newest) - len(rebuilt))


def _see(newest: dict[Address, tuple[Found, Assignment]], body: Mapping[str, Any], install: str) -> None:
    found, assignment = found_of(body, install), told_of(body)
    if found is None or found.settle_run is not None or assignment is None:
        return  # of somebody else, or a name that is only kept taken
    before = newest.get(found.address)
    if before is None or (before[0].generation, before[0].attempt) < (found.generation, found.attempt):
        newest[found.address] = found, assignment


def _shown(found: Found, assignment: Assignment, jobs: Sequence[Wanted]) -> Shown:
    """The spec of a live object that is this job; without one, what its driver was told, which is enough to settle and no more."""
    same = [each for each in jobs if each.ref.uid in found.objects]
    versions = [(each, fingerprints.version_of(found.fingerprint, each.job)) for each in same]
    leader, version = next(((each, at) for each, at in versions if at is not None), (None, None))
    return Shown(
        address=found.address,
        key=assignment.key,
        generation=found.generation,
        attempt=found.attempt,
        nonce=found.nonce,
        fingerprint=found.fingerprint,
        fingerprint_version=version or fingerprints.CURRENT,
        spec=leader.spec_body() if leader is not None else assignment.spec,
        objects=tuple(str(each.ref) for each in same),
    )
