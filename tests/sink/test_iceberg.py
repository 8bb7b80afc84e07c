"""The verbs of an Iceberg output, one process at a time, on a SQL catalog and on Apache Iceberg's own REST catalog server.

What several processes do to each other is in test_iceberg_races.py."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

from harness import iceberg_tables
from harness.arrow_stage import table_of
from harness.iceberg_rest import rest_server
from harness.iceberg_tables import opened, rest_catalog, rows, sql_catalog, tags
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputCorrupt, OutputUnavailable, OutputUnsafe, OutputUnsupported
from sparkonce.sink import layout
from sparkonce.sink.iceberg import IcebergTable
from sparkonce.sink.iceberg_evidence import standing
from sparkonce.sink.open import Declared, open_sink
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    Committed,
    Conflicting,
    Evidence,
    FencedOff,
    OnRerun,
    SinkKey,
    Slot,
    SlotState,
    Stuck,
    slot_digest,
)
from sparkonce.sink.slots import RESEND_AFTER

STEPS = (
    "sink.iceberg.commit.before", "sink.iceberg.commit.after", "sink.iceberg.fence.before", "sink.iceberg.fence.after",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One REST catalog server for the module; each test has a folder of tables, and a namespace, of its own."""
    with rest_server(tmp_path_factory.mktemp("rest")) as url:
        yield url


@pytest.fixture(params=["sql", "rest"])
def sink(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IcebergTable]:
    """An output whose table does not exist yet, on either kind of catalog."""
    sql = request.param == "sql"
    for name, value in (sql_catalog(tmp_path) if sql else rest_catalog(request.getfixturevalue("server"))).items():
        monkeypatch.setenv(name, value)
    yield opened()
    if iceberg_tables.catalog().table_exists(iceberg_tables.TABLE):
        folder = iceberg_tables.folder_of()
        iceberg_tables.catalog().drop_table(iceberg_tables.TABLE)
        shutil.rmtree(folder)


@pytest.fixture
def sql_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergTable:
    """On a SQL catalog."""
    for name, value in sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    return opened()


def staged(sink: IcebergTable, key: SinkKey, token: int, *numbers: int, fingerprint: str = "f") -> Slot:
    return sink.stage(table_of(*numbers), key, token, fingerprint=fingerprint)


def written(sink: IcebergTable, key: SinkKey, token: int, *numbers: int) -> Slot:
    slot = staged(sink, key, token, *numbers)
    assert run(sink.commit(key, slot)) == Committed(slot)
    return slot


def generation(key: SinkKey, number: int) -> SinkKey:
    return key.model_copy(update={"generation": number})


def digest_of(slot: Slot) -> str:
    return slot_digest(layout.encode(slot))


def folders() -> list[Path]:
    return sorted(iceberg_tables.folder_of().glob("data/so-*/*"))


# --- the facts of the slot log, on a table ----------------------------------------------------------------------------


def test_commit_then_find(sink: IcebergTable, key: SinkKey) -> None:
    """A committed slot is found, by any later call, whole; its rows are in the table, and nothing was there before."""
    assert run(sink.find(key)) is None
    slot = staged(sink, key, 1, 1, 2, 3)
    assert iceberg_tables.table().scan().to_arrow().num_rows == 0
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert run(opened().find(key)) == slot
    assert rows() == [1, 2, 3]


def test_commit_twice_is_one_commit(sink: IcebergTable, key: SinkKey) -> None:
    """A commit that is sent again (a lost reply, a roll-forward from a sealed slot's JSON) recognises itself by its nonce."""
    slot = written(sink, key, 1, 1)
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert run(opened().commit(key, Slot.model_validate(slot.dump()))) == Committed(slot)
    assert rows() == [1]


def test_a_commit_bars_every_lower_token(sink: IcebergTable, key: SinkKey) -> None:
    """Rule R: after a commit of token 4 the tokens below it are told that they are closed."""
    low = [staged(sink, key, token, 9) for token in (1, 3)]
    written(sink, key, 4, 1)
    for slot in low:
        assert isinstance(run(sink.commit(key, slot)), FencedOff)
    assert rows() == [1]


def test_commit_above_a_committed_slot_is_already_committed(sink: IcebergTable, key: SinkKey) -> None:
    """A lower commit decides a higher attempt's; twins with one token meet in it, too."""
    later, twin = staged(sink, key, 3, 9), staged(sink, key, 1, 8)
    first = written(sink, key, 1, 1)
    assert run(sink.commit(key, later)) == AlreadyCommitted(first)
    assert run(sink.commit(key, twin)) == AlreadyCommitted(first)
    assert rows() == [1]


@pytest.mark.parametrize("token", [1, 2])
def test_commit_of_another_job_is_a_conflict(sql_sink: IcebergTable, key: SinkKey, token: int) -> None:
    """What was committed under another fingerprint is never taken for this job's result."""
    foreign = written(sql_sink, key, 1, 1)
    assert run(sql_sink.commit(key, staged(sql_sink, key, token, 2, fingerprint="other"))) == Conflicting(foreign)


def test_commit_under_another_key_is_refused(sql_sink: IcebergTable, key: SinkKey) -> None:
    """A slot says which key it belongs to; it cannot be committed for another by mistake."""
    slot = staged(sql_sink, key, 1, 1)
    with pytest.raises(ValueError, match="is no commit of a1b2-orders-g2"):
        run(sql_sink.commit(generation(key, 2), slot))


def test_fence_bars_what_is_below(sink: IcebergTable, key: SinkKey) -> None:
    """A fence that answers None bars every lower token at the table; it never lowers; readers see no change."""
    zombie, next_one = staged(sink, key, 2, 9), staged(sink, key, 3, 1)
    head = iceberg_tables.table().current_snapshot()
    assert run(sink.fence(key, 3, fingerprint="f", by="settle of attempt 2")) is None
    assert run(sink.fence(key, 2, fingerprint="f", by="somebody late")) is None
    assert iceberg_tables.table().current_snapshot() == head
    decision = run(sink.commit(key, zombie))
    assert isinstance(decision, FencedOff)
    assert decision.slot.closed_by == "settle of attempt 2"
    assert run(sink.commit(key, next_one)) == Committed(next_one)
    assert rows() == [1]


def test_fence_returns_the_commit_of_any_token(sink: IcebergTable, key: SinkKey) -> None:
    """A commit is the answer of every fence after it, also below its own token (attempts count anew after a wiped store)."""
    slot = written(sink, key, 5, 1)
    for token in (1, 2, 6, 9):
        assert run(sink.fence(key, token, fingerprint="f", by="settle")) == slot


def test_the_fence_of_token_1_bars_nobody_and_writes_nothing(sink: IcebergTable, key: SinkKey) -> None:
    """The first attempt's look makes no table."""
    assert run(sink.fence(key, 1, fingerprint="f", by="attempt 1")) is None
    assert not iceberg_tables.catalog().table_exists(iceberg_tables.TABLE)


def test_a_fence_on_a_table_that_does_not_exist_bars(sink: IcebergTable, key: SinkKey) -> None:
    """It makes the table, without columns, so that it can: a zombie that comes to make it is told. The first commit gives it columns."""
    assert run(sink.fence(key, 2, fingerprint="f", by="settle")) is None
    assert iceberg_tables.table().schema().fields == ()
    assert isinstance(run(sink.commit(key, staged(sink, key, 1, 9))), FencedOff)
    written(sink, key, 2, 1)
    assert rows() == [1]


def test_abort_bars_the_token_and_deletes_the_files(sink: IcebergTable, key: SinkKey) -> None:
    """An aborted write can never be committed, and its files are gone; the next attempt may."""
    slot = staged(sink, key, 1, 1)
    assert len(folders()) == 1
    assert run(sink.abort(key, slot)).state is SlotState.CLOSED
    assert folders() == []
    assert isinstance(run(sink.commit(key, slot)), FencedOff)
    written(sink, key, 2, 2)


def test_abort_after_the_commit_landed_keeps_the_data(sink: IcebergTable, key: SinkKey) -> None:
    """A commit whose reply was lost may be followed by an abort: what is committed stays, whole."""
    slot = written(sink, key, 1, 1, 2)
    assert run(sink.abort(key, slot)) == slot
    assert run(sink.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert rows() == [1, 2]


def test_abort_bars_before_it_deletes(sql_sink: IcebergTable, key: SinkKey, failpoint: Callable[[str], None]) -> None:
    """A process that dies inside an abort has barred its token and deleted nothing: never the other way round."""
    slot = staged(sql_sink, key, 1, 1)
    failpoint("driver.abort.closed=raise")
    with pytest.raises(RuntimeError, match=r"driver\.abort\.closed"):
        run(sql_sink.abort(key, slot))
    assert standing(iceberg_tables.table().metadata, key).barred_below == 2
    assert len(folders()) == 1


def test_discard_deletes_the_files_and_decides_nothing(sql_sink: IcebergTable, key: SinkKey) -> None:
    """A write that never sent a commit leaves no files and no mark: its attempt may write again."""
    slot = staged(sql_sink, key, 1, 1)
    run(sql_sink.discard(key, slot))
    run(sql_sink.discard(key, slot))
    assert (folders(), tags()) == ([], set())
    written(sql_sink, key, 1, 1)


# --- answers that do not come -----------------------------------------------------------------------------------------


class Lossy:
    """A catalog whose answers to commits are lost, `times` times, after they landed or before."""

    def __init__(self, catalog: Any, *, times: int, lands: bool) -> None:
        self._catalog, self.times, self.lands, self.sent = catalog, times, lands, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *arguments: Any) -> Any:
        self.sent += 1
        if self.times == 0:
            return self._catalog.commit_table(*arguments)
        self.times -= 1
        if self.lands:
            self._catalog.commit_table(*arguments)
        raise ConnectionError("no answer")


def lossy(sink: IcebergTable, *, times: int, lands: bool) -> Lossy:
    catalog = Lossy(sink._place.catalog, times=times, lands=lands)
    sink._place.__dict__["catalog"] = catalog
    return catalog


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("times", [1, len(RESEND_AFTER)])
def test_a_lost_answer_is_resolved(sink: IcebergTable, key: SinkKey, times: int, lands: bool) -> None:
    """Whether the commit had landed or not: the table is read, the commit sent again if it is not there, and the rows are there once."""
    slot = staged(sink, key, 1, 1, 2)
    catalog = lossy(sink, times=times, lands=lands)
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert catalog.sent == (1 if lands else times + 1)
    assert rows() == [1, 2]


@pytest.mark.parametrize("lands", [True, False])
def test_a_lost_answer_of_a_fence_is_resolved(sink: IcebergTable, key: SinkKey, lands: bool) -> None:
    """The fence is read back, or set again."""
    zombie = staged(sink, key, 1, 9)
    lossy(sink, times=1, lands=lands)
    assert run(sink.fence(key, 2, fingerprint="f", by="settle")) is None
    assert isinstance(run(opened().commit(key, zombie)), FencedOff)


def test_no_answer_at_all_is_unknown(sql_sink: IcebergTable, key: SinkKey) -> None:
    """After a bounded number of tries the caller is told that the commit may still have landed, in one sentence; an abort then decides."""
    slot = staged(sql_sink, key, 1, 1)
    catalog = lossy(sql_sink, times=99, lands=False)
    with pytest.raises(
        OutputUnavailable, match=r"no answer; whether slot 1 of a1b2-orders-g1 stands in lake\S+ is unknown$"
    ):
        run(sql_sink.commit(key, slot))
    assert catalog.sent == len(RESEND_AFTER) + 1
    assert run(opened().abort(key, slot)).state is SlotState.CLOSED


def test_a_commit_that_arrives_after_its_successor_is_refused(sql_sink: IcebergTable, key: SinkKey) -> None:
    """A request that hung in the network, and lands when the key was fenced or committed since, is refused by the catalog itself."""
    held: list[tuple[Any, ...]] = []

    class Hung(Lossy):
        def commit_table(self, *arguments: Any) -> Any:
            held.append(arguments)
            raise ConnectionError("no answer")

    slot = staged(sql_sink, key, 1, 1)
    sql_sink._place.__dict__["catalog"] = Hung(sql_sink._place.catalog, times=0, lands=False)
    with pytest.raises(OutputUnavailable):
        run(sql_sink.commit(key, slot))
    assert run(opened().fence(key, 2, fingerprint="f", by="settle")) is None
    for request in held:
        with pytest.raises(CommitFailedException):
            iceberg_tables.catalog().commit_table(*request)
    assert rows("n") == [] if iceberg_tables.table().schema().fields else True
    assert run(opened().find(key)) is None


@pytest.mark.parametrize("point", STEPS)
def test_a_step_that_fails_once_is_repeated(
    sql_sink: IcebergTable, key: SinkKey, point: str, failpoint: Callable[[str], None]
) -> None:
    """A failure before or after either change changes nothing about its outcome."""
    failpoint(f"{point}=1*raise->off")
    assert run(sql_sink.fence(key, 2, fingerprint="f", by="settle")) is None
    written(sql_sink, key, 2, 1)
    assert rows() == [1]


def test_foreign_appends_come_in_between(sink: IcebergTable, key: SinkKey) -> None:
    """Somebody else's commit between our look and our commit costs another look, and neither loses a row."""
    written(sink, key, 1, 1)
    slot = staged(sink, generation(key, 2), 1, 2)
    left = [3]

    class Busy(Lossy):
        def commit_table(self, *arguments: Any) -> Any:
            if left:
                iceberg_tables.table().append(table_of(left.pop()))
            return self._catalog.commit_table(*arguments)

    sink._place.__dict__["catalog"] = Busy(sink._place.catalog, times=0, lands=False)
    assert run(sink.commit(generation(key, 2), slot)) == Committed(slot)
    assert rows() == [2, 3]


# --- what becomes of a table -------------------------------------------------------------------------------------------


def test_expiry_of_snapshots_keeps_the_evidence_and_nothing_else(sink: IcebergTable, key: SinkKey) -> None:
    """All snapshots but the last are expired: commit and fence are still known, and no old snapshot with files is held back by a tag."""
    slot = written(sink, key, 1, 1)
    assert run(sink.fence(generation(key, 3), 2, fingerprint="f", by="settle")) is None
    written(sink, generation(key, 2), 1, 2)
    table = iceberg_tables.table()
    head = table.current_snapshot()
    assert head is not None
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    table.maintenance.expire_snapshots().by_ids(
        [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]
    ).commit()
    table = iceberg_tables.table()
    assert [each.snapshot_id for each in table.metadata.snapshots if each.manifests(table.io)] == [head.snapshot_id]
    assert run(opened().find(key)) == slot
    assert run(opened().fence(key, 9, fingerprint="f", by="settle")) == slot
    assert isinstance(
        run(opened().commit(generation(key, 3), staged(opened(), generation(key, 3), 1, 9))), Stuck | FencedOff
    )
    assert rows() == [2]


def test_rerun_replaces_in_one_commit(sink: IcebergTable, key: SinkKey) -> None:
    """Generation 2 takes generation 1's files out in the commit that brings its own; other keys' and foreign rows stay."""
    other = SinkKey(key_hash="c3d4", output="orders", generation=1)
    first = written(sink, key, 1, 1, 2)
    written(sink, other, 1, 10)
    iceberg_tables.table().append(table_of(20))
    before = len(iceberg_tables.table().history())
    second = written(sink, generation(key, 2), 1, 3)
    assert rows() == [3, 10, 20]
    assert len(iceberg_tables.table().history()) == before + 1
    assert run(sink.probe(key, digest_of(first))) is Evidence.REPLACED
    assert run(sink.probe(generation(key, 2), digest_of(second))) is Evidence.PRESENT
    written(sink, generation(key, 3), 1, 4)
    assert rows() == [4, 10, 20]


def test_rerun_appends(sink: IcebergTable, key: SinkKey) -> None:
    """With `onRerun: Append` both generations stay; a later Replace takes out both."""
    appending = opened(on_rerun=OnRerun.APPEND)
    first = written(appending, key, 1, 1)
    written(appending, generation(key, 2), 1, 2)
    assert rows() == [1, 2]
    assert run(sink.probe(key, digest_of(first))) is Evidence.PRESENT
    written(sink, generation(key, 3), 1, 3)
    assert rows() == [3]


def test_a_late_commit_of_a_replaced_generation_is_stuck(sql_sink: IcebergTable, key: SinkKey) -> None:
    """Generation 1 wakes after generation 2 is committed: its rows can never come to stand beside those that replaced them."""
    late = staged(sql_sink, key, 1, 1)
    written(sql_sink, generation(key, 2), 1, 2)
    decision = run(sql_sink.commit(key, late))
    assert isinstance(decision, Stuck)
    assert "generation 2" in decision.why
    assert rows() == [2]


def test_what_was_rewritten_cannot_be_replaced(sql_sink: IcebergTable, key: SinkKey) -> None:
    """After somebody changed the earlier generation's files a rerun is refused, before any row is written; Append goes on."""
    slot = written(sql_sink, key, 1, 1, 2)
    iceberg_tables.table().delete("n = 1")
    with pytest.raises(InvalidInput, match=r"no longer in lake\.sales\.orders as it wrote them"):
        staged(sql_sink, generation(key, 2), 1, 3)
    assert run(sql_sink.probe(key, digest_of(slot))) is Evidence.GONE
    written(opened(on_rerun=OnRerun.APPEND), generation(key, 2), 1, 3)
    assert rows() == [2, 3]


def test_a_dropped_table_is_stuck_and_so_is_one_made_anew(sink: IcebergTable, key: SinkKey) -> None:
    """A slot was staged for one table: another of the same name never gets its rows, and what it had is gone."""
    first = written(sink, key, 1, 1)
    slot = staged(sink, generation(key, 2), 1, 2)
    iceberg_tables.catalog().drop_table(iceberg_tables.TABLE)
    decision = run(sink.commit(generation(key, 2), slot))
    assert isinstance(decision, Stuck)
    assert "was dropped" in decision.why
    assert run(sink.probe(key, digest_of(first))) is Evidence.GONE
    iceberg_tables.catalog().create_table(iceberg_tables.TABLE, schema=pa.schema([("n", pa.int64())]))
    decision = run(sink.commit(generation(key, 2), slot))
    assert isinstance(decision, Stuck)
    assert "made anew" in decision.why
    assert rows() == []
    run(sink.fence(key, 2, fingerprint="f", by="settle"))
    run(sink.sweep(key))
    assert len(list(iceberg_tables.folder_of().glob("data/so-a1b2-orders-g1/*"))) == 1, (
        "the dropped table's rows are not ours"
    )


def test_a_table_that_changed_under_the_rows_is_stuck(sql_sink: IcebergTable, key: SinkKey) -> None:
    """A column was dropped, or retyped, between staging and commit: nothing is visible, and the sentence names the column."""
    written(sql_sink, key, 1, 1)
    slot = staged(sql_sink, generation(key, 2), 1, 2)
    with iceberg_tables.table().update_schema() as schema:
        schema.rename_column("n", "m")
    decision = run(sql_sink.commit(generation(key, 2), slot))
    assert isinstance(decision, Stuck)
    assert "no column n" in decision.why


def test_staged_files_that_vanished_are_stuck(sql_sink: IcebergTable, key: SinkKey) -> None:
    """A staged file was deleted, or cut short: Stuck, and the commit of another attempt goes on."""
    for slot, damage in ((staged(sql_sink, key, 1, 1), "delete"), (staged(sql_sink, key, 2, 2), "cut")):
        file = iceberg_tables.folder_of() / slot.files[0].path
        if damage == "delete":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-1])
        decision = run(sql_sink.commit(key, slot))
        assert isinstance(decision, Stuck)
        assert "1 staged file(s)" in decision.why
    written(sql_sink, key, 3, 3)


@pytest.mark.parametrize("damage", ["delete", "change"])
def test_a_slot_that_is_gone_is_not_an_empty_one(sql_sink: IcebergTable, key: SinkKey, damage: str) -> None:
    """The tag says that the key is committed: without the slot's bytes that is an error, never "nothing"; the probe says gone."""
    slot = written(sql_sink, key, 1, 1)
    file = next(iceberg_tables.folder_of().glob("data/so-*/*/_slot-*.json"))
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes().replace(b'"rows":1', b'"rows":2'))
    for verb in (sql_sink.find(key), sql_sink.fence(key, 2, fingerprint="f", by="x"), sql_sink.commit(key, slot)):
        with pytest.raises(OutputCorrupt, match="restore it from a backup"):
            run(verb)
    assert run(sql_sink.probe(key, digest_of(slot))) is Evidence.GONE
    assert len(run(sql_sink.inventory()).unreadable) == 1


def test_a_tag_of_ours_that_somebody_moved_is_an_error(sql_sink: IcebergTable, key: SinkKey) -> None:
    """A tag `idem.<key>` on a snapshot without evidence is not taken for an open key."""
    written(sql_sink, generation(key, 2), 1, 1)
    table = iceberg_tables.table()
    head = table.current_snapshot()
    assert head is not None
    update = SetSnapshotRefUpdate(
        ref_name=f"idem.{key}", type=SnapshotRefType.TAG, snapshot_id=head.snapshot_id,
        max_ref_age_ms=None, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
    )  # fmt: skip
    table.catalog.commit_table(table, (), (update,))
    with pytest.raises(OutputCorrupt, match=r"idem\.a1b2-orders-g1"):
        run(sql_sink.find(key))


@pytest.mark.parametrize("damage", ["delete", "cut"])
def test_probe_misses_a_file(sql_sink: IcebergTable, key: SinkKey, damage: str) -> None:
    """A file that is missing, or has another size, makes the result gone; and so does another digest."""
    slot = written(sql_sink, key, 1, 1, 2, 3)
    assert run(sql_sink.probe(key, "0" * 64)) is Evidence.GONE
    file = iceberg_tables.folder_of() / slot.files[1].path
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    assert run(sql_sink.probe(key, digest_of(slot))) is Evidence.GONE


def test_probe_of_a_table_that_does_not_exist_makes_none(sink: IcebergTable, key: SinkKey) -> None:
    """A look at a deleted table says gone, and does not bring it back; neither do find, sweep, inventory and check."""
    assert run(sink.probe(key, None)) is Evidence.GONE
    assert run(sink.find(key)) is None
    assert run(sink.sweep(key)).folders == 0
    assert run(sink.inventory()).effects == ()
    run(sink.check())
    assert not iceberg_tables.catalog().table_exists(iceberg_tables.TABLE)


def test_sweep_deletes_only_what_can_never_be_committed(sql_sink: IcebergTable, key: SinkKey) -> None:
    """While nothing is committed files of barred tokens go; after a commit all but its own."""
    for token in (1, 2, 3):
        staged(sql_sink, key, token, token)
    assert run(sql_sink.sweep(key)).folders == 0
    run(sql_sink.fence(key, 2, fingerprint="f", by="settle"))
    assert run(sql_sink.sweep(key)).folders == 1
    assert [folder.name[:10] for folder in folders()] == ["0000000002", "0000000003"]
    slot = written(sql_sink, key, 4, 4)
    assert run(sql_sink.sweep(key)).folders == 2
    assert [folder.name for folder in folders()] == [f"0000000004-{slot.nonce}"]
    assert rows() == [4]


def test_inventory_names_effects_staging_and_live_files(sink: IcebergTable, key: SinkKey) -> None:
    """Effects with their files, visible or replaced; staging that nobody can commit; foreign rows are not ours to list."""
    first = written(sink, key, 1, 1)
    second = written(sink, generation(key, 2), 1, 2)
    hopeless = staged(sink, key, 2, 9)
    iceberg_tables.table().append(table_of(7))
    found = run(sink.inventory())
    assert {each.slot.sink_key: (each.slot, each.visible) for each in found.effects} == {
        str(key): (first, False),
        str(generation(key, 2)): (second, True),
    }
    assert set(found.live) == {file.path for file in second.files if file.rows}
    assert {file.path: file.bytes for slot in (first, second, hopeless) for file in slot.files} == dict(found.present)
    assert [each.nonce for each in found.staged if each.unreachable] == [hopeless.nonce]
    assert found.unreadable == ()


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_a_catalog_that_ignores_requirements_is_refused(sql_sink: IcebergTable, key: SinkKey) -> None:
    """At start, and when the table is made: one sentence, before anything is staged."""

    class Careless(Lossy):
        def commit_table(self, table: Any, _requirements: Any, updates: Any) -> Any:
            return self._catalog.commit_table(table, (), updates)

    written(sql_sink, key, 1, 1)
    run(sql_sink.check())
    sql_sink._place.__dict__["catalog"] = Careless(sql_sink._place.catalog, times=0, lands=False)
    with pytest.raises(OutputUnsafe, match="makes changes whose requirements do not hold"):
        run(sql_sink.check())


def test_evidence_that_would_expire_is_refused(sql_sink: IcebergTable, key: SinkKey) -> None:
    """A tag of ours whose retention somebody shortened is found at start."""
    written(sql_sink, key, 1, 1)
    table = iceberg_tables.table()
    name = f"idem.{key}"
    update = SetSnapshotRefUpdate(
        ref_name=name, type=SnapshotRefType.TAG, snapshot_id=table.metadata.refs[name].snapshot_id,
        max_ref_age_ms=86_400_000, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
    )  # fmt: skip
    table.catalog.commit_table(table, (), (update,))
    with pytest.raises(OutputUnsafe, match=f"the tag {name} of lake.sales.orders would expire"):
        run(sql_sink.check())


def test_a_catalog_that_is_not_configured_is_one_sentence(tmp_path: Path) -> None:
    """It names the variable to set."""
    with pytest.raises(InvalidInput, match=r"nowhere is not configured here .* set PYICEBERG_CATALOG__NOWHERE__URI"):
        run(open_sink(Declared(name="orders", kind="iceberg", location="nowhere.a.b"), base=None).check())


@pytest.mark.parametrize("location", ["lake", "lake.orders", "lake..orders", ".sales.orders"])
def test_a_location_without_a_namespace_is_refused(location: str) -> None:
    """A table has a catalog, a namespace and a name; opening asks nobody."""
    with pytest.raises(InvalidInput, match=r"spec\.outputs\[orders\]\.iceberg"):
        open_sink(Declared(name="orders", kind="iceberg", location=location), base=None)


def test_a_catalog_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch, key: SinkKey) -> None:
    """A closed port: unknown, in one sentence, from each verb that looks."""
    for name, value in rest_catalog("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    for verb in (opened().find(key), opened().check(), opened().fence(key, 2, fingerprint="f", by="x")):
        with pytest.raises(OutputUnavailable, match="lake"):
            run(verb)


def test_a_format_version_that_cannot_be_written_is_refused(sql_sink: IcebergTable, key: SinkKey) -> None:
    """Version 1 tables have no sequence numbers: refused at start and before rows are written."""
    iceberg_tables.catalog().create_namespace("sales")
    iceberg_tables.catalog().create_table(
        iceberg_tables.TABLE, schema=pa.schema([("n", pa.int64())]), properties={"format-version": "1"}
    )
    with pytest.raises(OutputUnsupported, match="format version 1"):
        run(sql_sink.check())
    with pytest.raises(OutputUnsupported, match="format version 1"):
        staged(sql_sink, key, 1, 1)


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Iceberg output without pyiceberg: the sentence says what to install."""
    for name in [name for name in sys.modules if name == "pyiceberg" or name.startswith("sparkonce.sink.iceberg")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(
        OutputUnsupported, match=r"^spec\.outputs\[orders\]\.iceberg: .* `pip install sparkonce\[iceberg\]`$"
    ):
        open_sink(Declared(name="orders", kind="iceberg", location="lake.sales.orders"), base=None)
