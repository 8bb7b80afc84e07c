"""Which outputs a process may settle by itself: a local folder is the trap."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.owned import owner
from sparkonce.blocking import run
from sparkonce.engine import operate
from sparkonce.engine.embedded import Embedded
from sparkonce.engine.reach import Settles, out_of_reach, settles_as, within_reach
from sparkonce.errors import InvalidInput, LibraryMissing, OutputUnsupported
from sparkonce.model.record import HeldReason, Record, Settling, State, Why
from sparkonce.sink.absent import Absent
from sparkonce.sink.open import Declared, open_or_absent, open_sink
from sparkonce.sink.protocol import Evidence, SinkKey

KEY = SinkKey(key_hash="0" * 64, output="orders", generation=1)


def slot_log(location: str) -> Any:
    return open_sink(Declared(name="orders", kind="slotLog", location=location), base=None)


@pytest.mark.parametrize("inside", [None, "", "rows.parquet", "_idem", "_delta_log"])
def test_a_local_folder_is_reached_if_the_table_stands_in_it(tmp_path: Path, inside: str | None) -> None:
    """Not where there is no folder, an empty one, or one with other things: it may be another disk. Looking makes nothing."""
    table = tmp_path / "a table"
    if inside is not None:
        (table / inside).mkdir(parents=True)
    sink = slot_log(str(table))
    reached = inside in ("_idem", "_delta_log")
    assert within_reach(sink, Settles.AUTO) == reached
    assert bool(out_of_reach([sink], Settles.AUTO)) != reached
    assert reached or str(table) in out_of_reach([sink], Settles.AUTO)
    assert table.exists() == (inside is not None)
    assert within_reach(sink, Settles.OPERATOR)
    assert not within_reach(sink, Settles.RUN)


def test_one_of_several_is_enough_to_send_somebody(tmp_path: Path) -> None:
    """All outputs are settled by the same hand."""
    (tmp_path / "here" / "_idem").mkdir(parents=True)
    here, there = slot_log(str(tmp_path / "here")), slot_log(str(tmp_path / "there"))
    assert out_of_reach([here], Settles.AUTO) == ""
    assert str(tmp_path / "there") in out_of_reach([here, there], Settles.AUTO)


def test_what_is_on_a_store_is_the_same_place_for_everybody() -> None:
    """Whether it answers is known when it is asked."""
    assert within_reach(slot_log("s3://bucket/orders"), Settles.AUTO)


def test_a_missing_library_leaves_the_output_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers get an error before anything runs; whoever watches over the job gets an output that is there and out of reach."""
    declared = Declared(name="orders", kind="iceberg", location="lake.sales.orders")
    monkeypatch.setitem(sys.modules, "sparkonce.sink.iceberg", None)
    with pytest.raises(LibraryMissing):
        open_sink(declared, base=None)
    sink = open_or_absent(declared, base=None)
    assert isinstance(sink, Absent)
    assert (sink.name, sink.kind, sink.uri) == ("orders", "iceberg", "lake.sales.orders")
    assert "pip install sparkonce[iceberg]" in out_of_reach([sink], Settles.OPERATOR)
    assert run(sink.probe(KEY, None)) is Evidence.NOT_CHECKED
    with pytest.raises(OutputUnsupported):
        run(sink.fence(KEY, 2, fingerprint="f", by="me"))


def test_a_setting_that_is_none_is_refused() -> None:
    """One sentence, with what there is."""
    assert settles_as("run") is Settles.RUN
    with pytest.raises(InvalidInput, match="auto, operator, run"):
        settles_as("perhaps")


# --- a person's word about outputs that are elsewhere


def held(folder: Path, reason: HeldReason, **change: Any) -> tuple[Embedded, Any]:
    """A key of a cluster, held, and the command line of a machine that does not see its output."""
    made = owner(folder, "orders")
    settling = Settling(attempt=1, why=Why.LOST)
    made.granted.update(settling=settling)
    made.granted.update(state=State.HELD, held=reason, note="held", **change)
    return Embedded(store=made.store, attempts=folder, remote=True), made


@pytest.mark.parametrize("how", ["succeeded", "failed"])
def test_no_outcome_is_said_where_the_outputs_cannot_be_seen(tmp_path: Path, how: operate.How) -> None:
    """A committed job could be called failed: refused, and nothing is written here, neither in the ledger nor on this disk."""
    embedded, made = held(tmp_path, HeldReason.PARTIAL)
    before: Record = made.granted.now()
    with pytest.raises(InvalidInput, match=r"no table stands there.*--retry"):
        asyncio.run(operate.resolve(embedded, before, how, by="ann", reason="so"))
    after = made.granted.now()
    assert (after.state, after.held, after.outcome) == (State.HELD, HeldReason.PARTIAL, None)
    assert not (tmp_path / "orders").exists()


@pytest.mark.parametrize("reason", [HeldReason.CANNOT_SETTLE, HeldReason.STUCK, HeldReason.KEY_CONFLICT])
def test_retry_has_an_operator_look_once_more(tmp_path: Path, reason: HeldReason) -> None:
    """The same attempt, unsettled as before, with a number that no settle run has used; an operator takes it over."""
    embedded, made = held(tmp_path, reason, settle_runs=3)
    asyncio.run(operate.resolve(embedded, made.granted.now(), "retry", by="ann", reason="the volume is back"))
    now = made.granted.now()
    assert (now.state, now.attempt, now.settle_runs, now.held) == (State.IN_PROGRESS, 1, 4, None)
    assert run(made.store.load(now.address)).claim is None


def test_retry_of_a_partial_key_grants_the_next_attempt(tmp_path: Path) -> None:
    """It was settled when it was held: nothing need be looked at here."""
    embedded, made = held(tmp_path, HeldReason.PARTIAL)
    asyncio.run(operate.resolve(embedded, made.granted.now(), "retry", by="ann", reason="again"))
    now = made.granted.now()
    assert (now.state, now.attempt, now.settle_runs) == (State.IN_PROGRESS, 2, 0)
    assert not (tmp_path / "orders").exists()
