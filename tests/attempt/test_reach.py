"""Which outputs a process may settle by itself: a local folder of the same path may not be the same folder."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attempt.owned import owner
from sparkonce.attempt.settle import Settles, out_of_reach, settles_as, within_reach
from sparkonce.blocking import run
from sparkonce.commands import operate
from sparkonce.errors import InvalidInput, LibraryMissing, OutputUnsupported
from sparkonce.gateway.decisions import Decisions
from sparkonce.local.runner import LocalRunner
from sparkonce.model.record import HeldReason, Outcome, Record, Settling, State, Why
from sparkonce.sink.open import Absent, open_or_absent, open_sink
from sparkonce.sink.protocol import Declared, Evidence, SinkKey

KEY = SinkKey(key_hash="0" * 64, output="orders", generation=1)


def slot_log(location: str) -> Any:
    return open_sink(Declared(name="orders", kind="slotLog", location=location), base=None)


@pytest.mark.parametrize("inside", [None, "", "rows.parquet", "_idem", "_delta_log"])
def test_a_local_folder_is_reached_if_the_table_stands_in_it(tmp_path: Path, inside: str | None) -> None:
    """A folder that is missing, empty, or has other content is not reached: the table may be on another disk. Looking creates nothing."""
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
    """One output out of reach needs a settle run, which then settles all outputs."""
    (tmp_path / "here" / "_idem").mkdir(parents=True)
    here, there = slot_log(str(tmp_path / "here")), slot_log(str(tmp_path / "there"))
    assert out_of_reach([here], Settles.AUTO) == ""
    assert str(tmp_path / "there") in out_of_reach([here, there], Settles.AUTO)


def test_what_is_on_a_store_is_the_same_place_for_everybody() -> None:
    """An object store is the same place for every process; whether it answers is only known from a request."""
    assert within_reach(slot_log("s3://bucket/orders"), Settles.AUTO)


def test_a_missing_library_leaves_the_output_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver gets an error before anything runs; an operator gets a sink that exists and is out of reach."""
    declared = Declared(name="orders", kind="iceberg", location="lake.sales.orders")
    monkeypatch.setitem(sys.modules, "sparkonce.sink.iceberg.sink", None)
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
    """The sentence lists the valid settings."""
    assert settles_as("run") is Settles.RUN
    with pytest.raises(InvalidInput, match="auto, operator, run"):
        settles_as("perhaps")


# --- a person's decision about outputs that this process cannot see


def held(folder: Path, reason: HeldReason, **change: Any) -> tuple[LocalRunner, Any]:
    """A held key of a cluster, and the command line of a machine that does not see its output."""
    made = owner(folder, "orders")
    settling = Settling(attempt=1, why=Why.LOST)
    made.granted.update(settling=settling)
    made.granted.update(state=State.HELD, held=reason, note="held", **change)
    return LocalRunner(store=made.store, attempts=folder, remote=True), made


@pytest.mark.parametrize("how", ["succeeded", "failed"])
def test_no_outcome_is_said_where_the_outputs_cannot_be_seen(tmp_path: Path, how: operate.How) -> None:
    """Otherwise a committed job could be declared failed: the call is refused. Its claim is given up, the record stays as it was, and
    nothing is written to this disk."""
    embedded, made = held(tmp_path, HeldReason.PARTIAL)
    before: Record = made.granted.now()
    history = run(made.store.events(before.address))
    with pytest.raises(InvalidInput, match=r"this process sees no table.*--retry"):
        asyncio.run(operate.resolve(embedded, before, how, by="ann", reason="so"))
    view = run(made.store.load(before.address))
    assert (view.record, view.claim, before.state) == (before, None, State.HELD)
    assert [event.what for event in run(made.store.events(before.address))[len(history) :]] == ["TakenOver"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("allowed", [False, True])
def test_a_gateway_settles_nothing_for_its_callers(
    tmp_path: Path, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a person who may decide about a key could use the gateway's credentials on the table that the job names. The gateway reads
    it only if its administrator says so (SPARKONCE_SETTLE)."""
    _, made = held(tmp_path, HeldReason.PARTIAL)
    (tmp_path / "orders" / "_idem").mkdir(parents=True)  # the gateway sees the table
    if allowed:
        monkeypatch.setenv("SPARKONCE_SETTLE", "auto")
    decisions = Decisions(lambda: made.store, install="i")
    before: Record = made.granted.now()

    async def decided() -> None:
        work = partial(operate.resolve, record=before, how="failed", by="ann", reason="so")
        await decisions.carry_out(work, realm="ns", by="ann")

    if allowed:
        asyncio.run(decided())
        assert made.granted.now().outcome is Outcome.FAILED
        return
    with pytest.raises(InvalidInput, match=r"settle runs alone.*--retry"):
        asyncio.run(decided())
    assert made.granted.now().state is State.HELD
    assert list((tmp_path / "orders" / "_idem").iterdir()) == []


@pytest.mark.parametrize("reason", [HeldReason.CANNOT_SETTLE, HeldReason.STUCK, HeldReason.KEY_CONFLICT])
def test_retry_has_an_operator_look_once_more(tmp_path: Path, reason: HeldReason) -> None:
    """The attempt stays the same and unsettled, with the next unused number for a settle run; an operator takes the key over."""
    embedded, made = held(tmp_path, reason, settle_runs=3)
    asyncio.run(operate.resolve(embedded, made.granted.now(), "retry", by="ann", reason="the volume is back"))
    now = made.granted.now()
    assert (now.state, now.attempt, now.settle_runs, now.held) == (State.IN_PROGRESS, 1, 4, None)
    assert run(made.store.load(now.address)).claim is None


def test_retry_of_a_partial_key_grants_the_next_attempt(tmp_path: Path) -> None:
    """The attempt was settled when the key was held, so no output needs to be read here."""
    embedded, made = held(tmp_path, HeldReason.PARTIAL)
    asyncio.run(operate.resolve(embedded, made.granted.now(), "retry", by="ann", reason="again"))
    now = made.granted.now()
    assert (now.state, now.attempt, now.settle_runs) == (State.IN_PROGRESS, 2, 0)
    assert not (tmp_path / "orders").exists()
