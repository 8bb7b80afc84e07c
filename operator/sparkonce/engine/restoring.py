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
    newest: dict[Address, tuple[Found, Assignment | None]] = {}
    for scope in scopes:
        for body in await kubernetes.list(SPARK_APPLICATIONS, scope):
            _see(newest, body, install)
    rebuilt: list[str] = []
    for found, told in newest.values():
        shown = _shown(found, told, jobs)
        done = await restorable.rebuild(shown, by=by)
        on_key(shown.key, done)
        if done:
            rebuilt.append(shown.key)
    epoch = await restorable.raise_epoch(seen=seen.epoch)
    return Accepted(epoch, tuple(rebuilt), len(newest) - len(rebuilt))


def _see(newest: dict[Address, tuple[Found, Assignment | None]], body: Mapping[str, Any], install: str) -> None:
    found = found_of(body, install)
    if found is None or found.settle_run is not None:
        return  # of somebody else, or beside an attempt
    before = newest.get(found.address)
    if before is None or (before[0].generation, before[0].attempt) < (found.generation, found.attempt):
        newest[found.address] = found, told_of(body)


def _shown(found: Found, told: Assignment | None, jobs: Sequence[Wanted]) -> Shown:
    """The spec of a live object that is this job; without one, what its driver was told, which is enough to settle and no more; none
    where nothing ever ran under the name."""
    same = [each for each in jobs if each.address == found.address]
    versions = [(each, fingerprints.version_of(found.fingerprint, each.job)) for each in same]
    same = [each for each, version in versions if version is not None]
    version = next((version for _, version in versions if version is not None), fingerprints.CURRENT)
    wanting = [each for each in same if each.ref.uid in found.objects]
    leader = next(iter([*wanting, *same]), None)
    spec = None
    if told is not None:
        spec = leader.spec_body() if leader is not None else told.spec
    return Shown(
        address=found.address,
        key=leader.key.text if leader is not None else (told or found.assignment).key,
        generation=found.generation,
        attempt=found.attempt,
        nonce=found.nonce,
        fingerprint=found.fingerprint,
        fingerprint_version=version,
        spec=spec,
        led=leader is not None and told is not None,
        objects=tuple(str(each.ref) for each in wanting),
    )
