"""The alarm of one operator process: the store is older than what statuses and applications say they have seen.

While it stands, this process starts nothing and ends nothing: every drive is dropped, every look only says so. A person ends it by
`sparkonce doctor accept-restore`, which raises the store's epoch, or by bringing the newer store back; both are seen by reading the
store again. That its revision has caught up is no sign of either, since other writers move it on as well: the record that was seen last
must be there again. What proves a rewound store is in `rewound.py`; here it is only raised after the store was read once more *after*
the statuses, since a status that was written between two readings has honestly seen more. Source: DESIGN section 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from sparkonce.engine.object_view import ObjectView
from sparkonce.engine.rewound import Witness, behind, rewound
from sparkonce.errors import SparkonceError
from sparkonce.model.record import Address
from sparkonce.store.protocol import IdempotencyStore, View

OUTSIDE = Address(realm="-", key_hash="0" * 64)
"""No key has this address: looking it up tells the store's revision and epoch."""

LOOK_AGAIN = 2.0
"""Seconds between two looks at whether a person has ended the alarm: everybody waits for it, and one look is one read."""

log = logging.getLogger(__name__)


class Rewinding:
    def __init__(
        self,
        store: IdempotencyStore,
        *,
        newest: Callable[[], tuple[Address, Witness] | None],
        on_alarm: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        """`newest`: of all statuses known to this process, the one that has seen most of the ledger, with the address of its key."""
        self._store, self._newest, self._on_alarm, self._on_end = store, newest, on_alarm, on_end
        self._epoch = 0
        self._proof: tuple[Address, Callable[[View], str | None]] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self.alarm: str | None = None
        """One sentence: what proves it, and what to do."""

    async def check(self, view: View, address: Address, objects: Sequence[ObjectView]) -> str | None:
        """The alarm, if there is one. `view` was read of this key; it is read again before anything is concluded."""
        if self.alarm is not None:
            return self.alarm
        witnesses = [witness for each in objects if (witness := Witness.of(each)) is not None]
        newest = self._newest()

        def proof(seen: View) -> str | None:
            said = None if newest is None else behind(newest[1], epoch=seen.epoch, revision=seen.revision)
            return said or rewound(witnesses, seen, address.key_hash)

        if proof(view) is None:
            return None
        again = await self._store.load(address)
        said = proof(again)
        if said is not None:
            self._proof = address, proof
            self.raise_it(said, epoch=again.epoch)
        return said

    def raise_it(self, said: str, *, epoch: int) -> None:
        if self.alarm is None:
            log.error("%s", said)
            self.alarm, self._epoch = said, epoch
            self._on_alarm(said)
            self._waiting = asyncio.get_running_loop().create_task(self._wait(), name="the store is older than it was")

    async def _wait(self) -> None:
        while self.alarm is not None:
            await asyncio.sleep(LOOK_AGAIN)
            try:
                await self.look_again()
            except SparkonceError as problem:
                log.warning("the ledger cannot be read: %s", problem)

    async def look_again(self) -> None:
        """Ends the alarm when a person has accepted the store, or when what proved it does not hold any more."""
        if self.alarm is None:
            return
        address, proof = self._proof or (OUTSIDE, None)
        view = await self._store.load(address)
        if view.epoch > self._epoch or (proof is not None and proof(view) is None and await self._is_back()):
            log.warning("the ledger is at revision %d of epoch %d; going on", view.revision, view.epoch)
            self.alarm = self._proof = None
            self._on_end()

    async def _is_back(self) -> bool:
        """What was seen last is there."""
        newest = self._newest()
        if newest is None:
            return True
        address, witness = newest
        view = await self._store.load(address)
        found = view.record.revision if view.record is not None else 0
        return view.epoch > witness.epoch or found >= witness.revision or view.floor >= witness.generation
