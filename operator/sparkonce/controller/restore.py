"""Accepts a restored store on a person's decision: rebuilds records from the applications in the cluster, then raises the epoch.

Run by `sparkonce doctor accept-restore` while the operators' rewind alarm is raised, or while no operator runs. May be repeated after any
crash: rebuilding is idempotent, and the epoch is raised last. A key without an application is not rebuilt: its objects expire, and a job
that is sent again finds its earlier commits in its outputs. Whoever may create applications in a namespace may write anything into one, so
an application is evidence of the realm of its own namespace alone, as a status is. Source: docs/design.md, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkonce.controller.desired import Desired, DesiredReader
from sparkonce.controller.objects import ObjectView
from sparkonce.controller.rewind_guard import OUTSIDE, Witness, implausible
from sparkonce.errors import InvalidInput
from sparkonce.launch.kubeflow.labels import as_map
from sparkonce.launch.kubeflow.sweep import FoundApplication, found_of, handed_assignment
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS, Kubernetes
from sparkonce.model import identity
from sparkonce.model.record import Address, Assignment
from sparkonce.store.protocol import IdempotencyStore
from sparkonce.store.restore import NewestAttempt, Restorable


@dataclass(frozen=True)
class Accepted:
    """The outcome of `accept`."""

    epoch: int
    """The store's epoch from now on."""
    rebuilt: tuple[str, ...]
    """Keys whose records were rebuilt."""
    kept: int
    """Number of keys whose records were at least as new as their applications."""


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
    """Rebuilds, then raises the epoch. `on_key` is called with each key and whether its record was rebuilt.

    Raises: StoreUnavailable, ApiUnavailable, ApiRefused: some keys may be rebuilt, the epoch is not raised (after StoreUnavailable: may
    be); repeat the call."""
    seen = await store.load(OUTSIDE)
    scopes: Sequence[str | None] = [None] if namespaces is None else namespaces
    reader = DesiredReader()
    bodies = [each for scope in scopes for each in await kubernetes.list(JOBS, scope)]
    desired = [reader.read(each) for each in bodies]
    jobs = [each for each in desired if isinstance(each, Desired)]
    newest: dict[Address, tuple[FoundApplication, Assignment | None]] = {}
    for scope in scopes:
        for body in await kubernetes.list(SPARK_APPLICATIONS, scope):
            _see(newest, body, install)
    rebuilt: list[str] = []
    for found, assignment in newest.values():
        shown = _shown(found, assignment, jobs)
        try:
            done = await restorable.rebuild(shown, by=by)
        except InvalidInput:
            # What it shows cannot be stored, so no operator made it: its name is taken, and nothing else is known.
            shown = _shown(found, None, ())
            done = await restorable.rebuild(shown, by=by)
        on_key(shown.key, done)
        if done:
            rebuilt.append(shown.key)
    epoch, beyond = seen.epoch, _newest_epoch(bodies, seen.epoch)
    while epoch <= beyond:
        epoch = await restorable.raise_epoch(seen=epoch)
    return Accepted(epoch, tuple(rebuilt), len(newest) - len(rebuilt))


def _newest_epoch(bodies: Sequence[Mapping[str, Any]], epoch: int) -> int:
    """The newest epoch that a status names, among those that a restore can explain, and at least the store's own. The new epoch must be
    above it, so that no status, true or forged, proves a rewind afterwards."""
    witnesses = (Witness.of(ObjectView.of(dict(body), None)) for body in bodies)
    known = (each.epoch for each in witnesses if each is not None and implausible(each, epoch) is None)
    return max([epoch, *known])


def _see(
    newest: dict[Address, tuple[FoundApplication, Assignment | None]], body: Mapping[str, Any], install: str
) -> None:
    found = found_of(body, install)
    if found is None or found.settle_run is not None:
        return  # not of this install, or a settle run
    if found.namespace != found.address.realm:
        return  # it speaks of another namespace's key
    before = newest.get(found.address)
    if before is None or (before[0].generation, before[0].attempt) < (found.generation, found.attempt):
        handed = handed_assignment(body)
        newest[found.address] = found, handed if handed is not None and _is_its_own(handed, found) else None


def _is_its_own(handed: Assignment, found: FoundApplication) -> bool:
    """Whether the driver's assignment is that of this application, for a job in its namespace: it is launched where its job says."""
    names = ("install", "realm", "key_hash", "generation", "attempt", "nonce", "fingerprint")
    where = as_map(handed.spec.job.get("metadata")).get("namespace")
    return where == found.namespace and all(getattr(handed, name) == getattr(found.assignment, name) for name in names)


def _shown(found: FoundApplication, assignment: Assignment | None, jobs: Sequence[Desired]) -> NewestAttempt:
    """The newest attempt as its application shows it. The spec is that of a live object with the same job; without one, the spec in the
    driver's assignment, which suffices to settle; None for a placeholder that never ran."""
    same = [each for each in jobs if each.address == found.address]
    versions = [(each, identity.version_of(found.fingerprint, each.job)) for each in same]
    same = [each for each, version in versions if version is not None]
    version = next((version for _, version in versions if version is not None), identity.FINGERPRINT_VERSION)
    wanting = [each for each in same if each.ref.uid in found.objects]
    leader = next(iter([*wanting, *same]), None)
    spec = None
    if assignment is not None:
        spec = leader.spec_body(version) if leader is not None else assignment.spec
    return NewestAttempt(
        address=found.address,
        key=leader.key.text if leader is not None else (assignment or found.assignment).key,
        generation=found.generation,
        attempt=found.attempt,
        nonce=found.nonce,
        fingerprint=found.fingerprint,
        fingerprint_version=version,
        spec=spec,
        led=leader is not None and assignment is not None,
        objects=tuple(str(each.ref) for each in wanting),
    )
