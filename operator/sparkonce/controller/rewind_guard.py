"""Detects a store that was rolled back, and raises the alarm of one operator process.

A store restored from a backup, or emptied while statuses exist, would run finished jobs again and grant tokens twice. It is consistent in
itself; only reports outside of it can disprove it. Each object's status is a witness: it names the epoch, the ledger revision and the
generation that were reported to its object. `rewound` compares the witnesses with what the store answers: a status of this epoch names
a later revision than the store has, or a later generation than the key's record and floor, or a later revision of this generation than
its record has. A status of an older epoch proves nothing: a person has accepted a restored store since.

`RewindGuard.check` reads the statuses first and the store after them, and raises the alarm only if the proof still holds after the store
was read once more: a status written between two reads may well be ahead of the first.

A status is evidence for its own realm only: a user who may edit statuses in one namespace can write any number. So a proof freezes the
realm of its object, and all realms only while several of them have one; the alarm names those. While a realm is frozen this process starts
and ends nothing in it: its drives are dropped, and a reconcile only reports the alarm. Numbers that no ledger can have are not evidence
(`controller/objects.py`, `implausible`).

A person ends the alarm by `sparkonce doctor accept-restore`, which raises the store's epoch, or by restoring the newer store; the guard
finds either when it reads the store again. A revision that has caught up does not end the alarm, since other writers advance it as well:
the newest record that a status names must be back. Source: docs/design.md, section 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

from sparkonce.controller.objects import ObjectView
from sparkonce.controller.status import EPOCHS_AHEAD
from sparkonce.errors import SparkonceError
from sparkonce.model.record import Address
from sparkonce.store.protocol import IdempotencyStore, View


@dataclass(frozen=True, kw_only=True)
class Witness:
    """What one status reports about the ledger."""

    epoch: int
    revision: int
    key_hash: str
    generation: int
    """Generation of the record; 0: the status names none."""
    phase: str = ""
    name: str = ""
    """Namespace and name of the object, for messages."""

    @classmethod
    def of(cls, obj: ObjectView) -> Self | None:
        """The witness in an object's status; None: the status was never written from the ledger."""
        status = obj.status
        if "ledgerRevision" not in status:
            return None
        return cls(
            epoch=int(status.get("epoch") or 0),
            revision=int(status["ledgerRevision"]),
            key_hash=str(status.get("keyHash") or ""),
            generation=int(status.get("generation") or 0),
            phase=str(status.get("phase") or ""),
            name=f"{obj.ref.namespace}/{obj.ref.name}",
        )


class Proof(NamedTuple):
    """Proof that the store was rolled back."""

    said: str
    witness: str
    """Namespace and name of the object whose status says so; empty: an application does."""


def rewound(witnesses: Iterable[Witness], view: View, key_hash: str) -> str | None:
    """One sentence that names the proof; None: no proof. `view`: of the key with this hash, read after the statuses; statuses of other
    keys are compared by the store's revision alone."""
    found = (_proof(witness, view, key_hash) for witness in witnesses)
    return next((said for said in found if said is not None), None)


def behind(witness: Witness, *, epoch: int, revision: int) -> str | None:
    """The proof by the store's epoch and revision alone; None: no proof."""
    if (witness.epoch, witness.revision) <= (epoch, revision):
        return None
    seen = f"revision {witness.revision} of epoch {witness.epoch}"
    return _said(witness, f"it has seen {seen} of the ledger, which is at revision {revision} of epoch {epoch}")


def implausible(witness: Witness, epoch: int) -> str | None:
    """Why a status proves nothing to a store of this epoch; None: it may."""
    if witness.epoch <= epoch + EPOCHS_AHEAD:
        return None
    return f"status.epoch is {witness.epoch}, and the ledger's is {epoch}: no restore explains that; it is ignored and written anew"


def _proof(witness: Witness, view: View, key_hash: str) -> str | None:
    if witness.epoch < view.epoch or implausible(witness, view.epoch) is not None:
        return None
    if said := behind(witness, epoch=view.epoch, revision=view.revision):
        return said
    if witness.key_hash != key_hash:
        return None
    record = view.record
    known = record.generation if record is not None else view.floor
    if witness.generation > known:
        return _said(witness, f"it has seen generation {witness.generation} of its key, and the ledger knows {known}")
    if record is not None and witness.generation == record.generation and witness.revision > record.revision:
        seen = f"generation {witness.generation} of its key at revision {witness.revision}"
        return _said(witness, f"it has seen {seen}, and the record is at revision {record.revision}")
    return None


def _said(witness: Witness, evidence: str) -> str:
    who = f"the status of {witness.name}" if witness.name else "a status"
    return (
        f"the ledger is older than it was, says {who}: {evidence}; nothing is started until the newer ledger is back, or "
        "`sparkonce doctor accept-restore` was run"
    )


OUTSIDE = Address(realm="-", key_hash="0" * 64)
"""An address that no key has: loading it returns the store's revision and epoch."""

AGREE = 2
"""Realms that must have a proof before all realms are frozen."""
NAMED = 5
"""Witnesses that a sentence names."""
CHECK_AGAIN = 2.0
"""Seconds between two checks whether the alarm is over; each is one or two reads, and every job waits for it."""

log = logging.getLogger(__name__)


@dataclass
class _FrozenRealm:
    """Why one realm is frozen."""

    said: str
    epoch: int
    """Of the store, when the alarm was raised."""
    witness: str
    """Namespace and name of the object whose status proves it; empty: an application does."""
    proof: tuple[Address, Callable[[View], str | None]] | None = None
    """Key and check that show the newer store is back; None: there is no such check, and only a person ends the alarm."""


class RewindGuard:
    """See the module."""

    def __init__(
        self,
        store: IdempotencyStore,
        *,
        newest: Callable[[], Mapping[str, tuple[Address, Witness]]],
        on_alarm: Callable[[str, str | None], None],
        on_end: Callable[[], None],
    ) -> None:
        """`newest` returns, of each realm, the cached status with the newest epoch and revision, with its key's address. `on_alarm` gets
        the sentence and the realm that is frozen; None: all are."""
        self._store, self._newest, self._on_alarm, self._on_end = store, newest, on_alarm, on_end
        self._alarms: dict[str, _FrozenRealm] = {}
        self._waiting: asyncio.Task[None] | None = None
        self.alarm: str | None = None
        """One sentence: the proofs, and what to do, while several realms agree; None: no alarm of all realms."""

    @property
    def realms(self) -> Collection[str]:
        """Realms whose statuses or applications say that the store is older than it was."""
        return self._alarms.keys()

    @property
    def nothing_left(self) -> str | None:
        """Why this process can do nothing: every realm that it knows is frozen. None: some realm is not."""
        if self.alarm is None and self._alarms and self._alarms.keys() >= self._newest().keys():
            return next(iter(self._alarms.values())).said
        return self.alarm

    def alarm_of(self, realm: str) -> str | None:
        """Why nothing is done for this realm; None: no alarm."""
        own = self._alarms.get(realm)
        return self.alarm or (own.said if own is not None else None)

    async def check(self, view: View, address: Address, objects: Sequence[ObjectView]) -> str | None:
        """Returns the alarm of this key's realm, raising it if the store proves to be rolled back. `view`: of this key, read after
        `objects`; the key is read again before an alarm is raised.

        Raises: StoreUnavailable: the second read failed; nothing is proved."""
        if (said := self.alarm_of(address.realm)) is not None:
            return said
        witnesses = [witness for each in objects if (witness := Witness.of(each)) is not None]
        newest = self._newest().get(address.realm)

        def proof(seen: View) -> Proof | None:
            whole = None if newest is None else _behind(newest[1], seen)
            return whole or _first(witnesses, seen, address.key_hash)

        if proof(view) is None:
            return None
        again = await self._store.load(address)
        found = proof(again)
        if found is None:
            return None
        self._raise(address.realm, found, again.epoch, (address, lambda seen: _sentence(proof(seen))))
        self._ask_the_others(again)
        return self.alarm_of(address.realm)

    def _ask_the_others(self, view: View) -> None:
        """Raises the alarm of each realm whose newest status is ahead of the store, too: a restored store is older for all of them."""
        for realm, (address, witness) in self._newest().items():
            if realm not in self._alarms and (found := _behind(witness, view)) is not None:
                self._raise(realm, found, view.epoch, (address, partial(_still_behind, witness)))

    def _raise(
        self, realm: str, found: Proof, epoch: int, proof: tuple[Address, Callable[[View], str | None]] | None
    ) -> None:
        if realm in self._alarms:  # by a key that was checked meanwhile
            return
        log.error("realm %s: %s", realm, found.said)
        self._alarms[realm] = _FrozenRealm(found.said, epoch, found.witness, proof)
        self._on_alarm(found.said, realm)
        self._agree()
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.get_running_loop().create_task(self._wait(), name="the store is older than it was")

    def _agree(self) -> None:
        """Freezes all realms while several have a proof: one of them alone may have been written by a tenant."""
        if len(self._alarms) < AGREE:
            self.alarm = None
        elif self.alarm is None:
            named = [f"{each.witness or 'an application'} (realm {realm})" for realm, each in self._alarms.items()]
            some = ", ".join(named[:NAMED]) + (f" and {len(named) - NAMED} more" if len(named) > NAMED else "")
            first = next(iter(self._alarms.values()))
            self.alarm = f"{len(named)} realms agree, witnessed by {some}: {first.said}"
            log.error("%s", self.alarm)
            self._on_alarm(self.alarm, None)

    def raise_it(self, said: str, *, realm: str, epoch: int) -> None:
        """Raises the alarm of a realm by the evidence of an application, unless it is raised already."""
        self._raise(realm, Proof(said, ""), epoch, None)

    async def _wait(self) -> None:
        while self._alarms:
            await asyncio.sleep(CHECK_AGAIN)
            try:
                await self.check_again()
            except SparkonceError as problem:
                log.warning("the ledger cannot be read: %s", problem)

    async def check_again(self) -> None:
        """Ends each alarm if a person has accepted the store, or its proof does not hold any more."""
        for realm, alarm in list(self._alarms.items()):
            address, proof = alarm.proof or (OUTSIDE, None)
            view = await self._store.load(address)
            if view.epoch <= alarm.epoch and (
                proof is None or proof(view) is not None or not await self._is_back(realm)
            ):
                continue
            log.warning(
                "realm %s: the ledger is at revision %d of epoch %d; work continues", realm, view.revision, view.epoch
            )
            del self._alarms[realm]
            self._agree()
            self._on_end()

    async def _is_back(self, realm: str) -> bool:
        """Whether the newest record that any status of the realm names is in the store."""
        newest = self._newest().get(realm)
        if newest is None:
            return True
        address, witness = newest
        view = await self._store.load(address)
        found = view.record.revision if view.record is not None else 0
        return view.epoch > witness.epoch or found >= witness.revision or view.floor >= witness.generation


def _behind(witness: Witness, view: View) -> Proof | None:
    if witness.epoch > view.epoch + EPOCHS_AHEAD:
        return None
    said = behind(witness, epoch=view.epoch, revision=view.revision)
    return None if said is None else Proof(said, witness.name)


def _still_behind(witness: Witness, view: View) -> str | None:
    return _sentence(_behind(witness, view))


def _first(witnesses: Iterable[Witness], view: View, key_hash: str) -> Proof | None:
    found = (Proof(said, each.name) for each in witnesses if (said := _proof(each, view, key_hash)) is not None)
    return next(found, None)


def _sentence(found: Proof | None) -> str | None:
    return None if found is None else found.said
