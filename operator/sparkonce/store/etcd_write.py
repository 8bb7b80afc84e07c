"""One `Write` as the operations of one etcd transaction: pure, and the only place that knows which keys belong together.

Indexes (`open/`, `exp/`) are written with the record they follow from, never later: a process may die between any two transactions.
"""

from __future__ import annotations

from sparkonce.errors import InvalidInput
from sparkonce.etcd.kv import Delete, Op, Put, prefix_end
from sparkonce.model.record import Address, Record, State, Value
from sparkonce.store.codec import encode
from sparkonce.store.etcd_keys import BESIDE, Layout
from sparkonce.store.etcd_look import Look, claim_text
from sparkonce.store.ledger import SPEC_LIMIT
from sparkonce.store.step import Write


def operations(layout: Layout, look: Look, write: Write, *, at: float) -> list[Op]:
    """InvalidInput for what cannot be kept. The claim's lease is named in the claim."""
    address = look.address
    ops: list[Op] = []
    if write.remove:
        ops += _removal(layout, look)
    if write.record is not None:
        ops += _record(layout, look.record, write.record)
    if write.claim is not None:
        ops.append(Put(layout.claim(address), claim_text(write.claim), lease=int(write.claim.lease, 16)))
    elif write.drop_claim:
        ops.append(Delete(layout.claim(address)))
    if write.floor is not None:
        ops.append(Put(layout.floor(address), str(write.floor).encode()))
    ops += _beside(layout, address, write)
    if write.event is not None:
        ops.append(Put(layout.new_event(address, at), encode(write.event).encode()))
    return ops


def _removal(layout: Layout, look: Look) -> list[Op]:
    """The record and all that stands beside it, but neither events nor the floor; the claim is the caller's matter."""
    address = look.address
    prefixes = [layout.all_beside(kind, address) for kind in BESIDE]
    ops: list[Op] = [Delete(layout.record(address)), Delete(layout.open(address))]
    return ops + [Delete(prefix, prefix_end(prefix)) for prefix in prefixes] + _unexpired(layout, look.record)


def _unexpired(layout: Layout, record: Record | None) -> list[Op]:
    if record is None or record.expires_at is None:
        return []
    return [Delete(layout.expiry(record.address, record.expires_at))]


def _record(layout: Layout, before: Record | None, record: Record) -> list[Op]:
    address = record.address
    ops: list[Op] = [Put(layout.record(address), encode(record).encode())]
    if record.state is State.FINALIZED:
        ops.append(Delete(layout.open(address)))
        if record.expires_at is not None:
            ops.append(Put(layout.expiry(address, record.expires_at), repr(record.expires_at).encode()))
    elif before is None or before.state is State.FINALIZED:
        ops += [Put(layout.open(address), b""), *_unexpired(layout, before)]
    return ops


def _beside(layout: Layout, address: Address, write: Write) -> list[Op]:
    generation = write.generation
    ops: list[Op] = []
    for kind, value in (("spec", write.spec), ("result", write.result), ("intent", write.intent)):
        if value is not None:
            ops.append(_put(layout.beside(kind, address, generation), value, f"the {kind}"))
    if (report := write.report) is not None:
        key = layout.report(address, generation, report.attempt, report.reporter)
        ops.append(_put(key, report, "the report"))
    if (beat := write.beat) is not None:
        ops.append(_put(layout.beat(address, generation, beat.attempt, beat.by), beat, "the progress"))
    return ops


def _put(key: bytes, value: Value, what: str) -> Put:
    """One transaction carries record, spec and intent or result: three at this limit stay below etcd's own for a request."""
    body = encode(value).encode()
    if len(body) > SPEC_LIMIT:
        raise InvalidInput(
            f"{what} has {len(body)} bytes of JSON, and a ledger keeps at most {SPEC_LIMIT}; move large values into files"
        )
    return Put(key, body)
