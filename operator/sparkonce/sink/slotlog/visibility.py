"""What readers of a slot log see: a pure function of its committed slots. No I/O.

A table is the union over the outputs of all keys; of one output of a key (a *lineage*) it shows every committed generation that no later
committed generation replaced (`stream.shown`). What an overwrite replaces is taken away from that.

**An overwrite** is a slot like any other: rule R decides whether it is committed, by the create of its key's slot, and there is no second
object and no lock. Just before that create its writer *looks*: it lists the table, and the slot names the slots that were visible then, and
has an *order* that is at least the number of committed slots seen, and above the order of every overwrite seen. Readers sort overwrites by
(order, sink key). **The last overwrite hides all others; a slot of any other kind is hidden once a committed overwrite names it.** Slots
never change, so what is hidden stays hidden.

So an overwrite takes effect as of its look:

1. An overwrite that saw another has a greater order: the sorting extends what was seen, and nothing hides in a circle.
2. A later look sees all that an earlier one saw. So if two overwrites saw different numbers of slots, the one with fewer looked first; if
   they saw equally many, no slot was committed between their looks, and either may count as the first. The sorting is an order of the
   looks, and readers agree on it for ever. Two overwrites that did not see one another are concurrent: one of them is last. Never are
   both visible.
3. A slot that only adds rows is hidden if and only if some overwrite looked after it was committed. One that no overwrite saw came after
   all of them.
4. So readers see what they would see if all writers had taken turns, each at one moment between its beginning and its end: an overwrite at
   its look, any other at its create. Rows that are added between look and create, by a writer that is not seen, stay beside the new ones.
   If the writer freezes there for an hour, it replaces what there was an hour ago, unless an attempt that took over has closed its slot.

An order that counts only overwrites (one more than the greatest one seen) would do for tables that are replaced as a whole, but not for
partitions: there an overwrite that looked earlier could come after one that has seen more rows, in a partition that both write.

The generations of a key combine with this: the rows that an overwrite has hidden do not come back when the key is run again, and a rerun of
a key that adds rows adds its new ones. A generation that overwrote and was replaced by a later generation keeps what it replaced hidden.
Batches of a stream's rerun are not visible before its end, so no overwrite names them before: they come after it.

**What is assumed of listings**: one that begins after an object was created contains it (S3, Google Cloud Storage, Azure and file systems
do this). A listing is no snapshot: of two slots that are committed while it is read it may lack the first. For slots that add rows this has
always been so, and readers then see rows a moment late. For an overwrite it would show rows beside what replaced them. So a reader that
finds an overwrite lists again until a listing shows no further one (`snapshot`). That listing began after each of them was created, and
has everything that each of them saw. Of several writers that commit while an overwrite looks, each by itself is replaced or kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from sparkonce.sink.protocol import Slot, SlotState
from sparkonce.sink.slotlog import layout
from sparkonce.sink.stream import shown

Named = Mapping[str, Sequence[str]]
"""Path of an overwrite -> paths of the slots that it names; of those at least whose slot names a list instead (`layout.replaced_by`)."""


def visible(slots: Iterable[Slot], named: Named | None = None) -> list[Slot]:
    """The committed slots whose rows readers see, ordered by lineage, generation and batch."""
    committed = [slot for slot in slots if slot.state is SlotState.COMMITTED]
    hidden = hidden_by(committed, named or {})
    return [slot for slot in _standing(committed) if _path(slot) not in hidden]


def _standing(committed: Iterable[Slot]) -> list[Slot]:
    """Those with rows that no later generation of their key replaced; `stream.shown` decides that, and when."""
    lineages: dict[str, dict[int, list[Slot]]] = {}
    for slot in committed:
        lineage, generation = layout.lineage_of(slot.sink_key) or (slot.sink_key, 0)
        lineages.setdefault(lineage, {}).setdefault(generation, []).append(slot)
    return [
        slot
        for _, generations in sorted(lineages.items())
        for slot in shown([each for _, each in sorted(generations.items())])
    ]


def hidden_by(committed: Iterable[Slot], named: Named) -> dict[str, Slot]:
    """Paths of the slots that overwrites hide, each with the first overwrite that does."""
    ordered = sorted((slot for slot in committed if slot.replaces is not None), key=place)
    found: dict[str, Slot] = {}
    for slot in ordered:
        for path in named_by(slot, named):
            found.setdefault(path, slot)
    return found | {_path(slot): later for slot, later in pairwise(ordered)}


def named_by(slot: Slot, named: Named) -> Sequence[str]:
    """Paths of the slots that an overwrite names."""
    if slot.replaces is None:
        return ()
    return slot.replaces.slots if slot.replaces.listing is None else named[_path(slot)]


def replacement(committed: Sequence[Slot], named: Named) -> tuple[int, list[str]]:
    """The order of an overwrite that sees these committed slots now, and the paths of those that it replaces."""
    greatest = max((slot.replaces.order for slot in committed if slot.replaces is not None), default=-1)
    return max(len(committed), greatest + 1), [_path(slot) for slot in visible(committed, named)]


def place(slot: Slot) -> tuple[int, str, int]:
    """The place of an overwrite among those of its table: a key to sort by."""
    assert slot.replaces is not None  # else it overwrites nothing
    return slot.replaces.order, slot.sink_key, slot.token


def _path(slot: Slot) -> str:
    return layout.slot_path(slot.sink_key, slot.token)
