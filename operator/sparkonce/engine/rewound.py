"""Is the store older than it was? Statuses are the witnesses: each says how much of the ledger its object has been told. Pure.

A store that was restored from a backup, or that is empty while statuses exist, would start finished jobs again and grant tokens twice. It
looks sound from inside; only what was told outside can tell. So before anything is started or ended for a key, the statuses of its
objects are compared with what was read: a status of this epoch has seen a later revision than the store has, or a later generation
than the key has (neither in its record nor in its floor, which a forgotten record leaves behind), or a later revision of this very
generation than its record has.

Read the statuses first and the store after them, and raise the alarm only if it still holds after the store was read once more: a status
that was written between two readings has honestly seen more. A status of an older epoch says nothing: a person has accepted the
restored store since. Source: DESIGN section 4, and `rewound` in the executable model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from sparkonce.engine.object_view import ObjectView
from sparkonce.store.protocol import View


@dataclass(frozen=True, kw_only=True)
class Witness:
    """What one status says of the ledger."""

    epoch: int
    revision: int
    key_hash: str
    generation: int
    """Of the record; 0 where the status names none."""
    phase: str = ""
    name: str = ""
    """Of the object, for a person."""

    @classmethod
    def of(cls, obj: ObjectView) -> Self | None:
        """None: nobody has told this object anything of the ledger."""
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


def rewound(witnesses: Iterable[Witness], view: View, key_hash: str) -> str | None:
    """A sentence that says what proves it; None: nothing does. `view`: of the key with this hash, read after the statuses; statuses of
    other keys speak of the store's revision alone."""
    found = (_proof(witness, view, key_hash) for witness in witnesses)
    return next((said for said in found if said is not None), None)


def behind(witness: Witness, *, epoch: int, revision: int) -> str | None:
    """The store as a whole, without looking at any key."""
    if (witness.epoch, witness.revision) <= (epoch, revision):
        return None
    seen = f"revision {witness.revision} of epoch {witness.epoch}"
    return _said(witness, f"it has seen {seen} of the ledger, which is at revision {revision} of epoch {epoch}")


def _proof(witness: Witness, view: View, key_hash: str) -> str | None:
    if witness.epoch < view.epoch:
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
