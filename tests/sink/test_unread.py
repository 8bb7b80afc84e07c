"""Evidence that cannot be read is never taken for evidence that is not there: find, probe, fence and sweep raise, and delete nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import iceberg_tables
from harness.arrow_stage import table_of
from harness.delta_tables import sink_on
from sparkonce.blocking import run
from sparkonce.errors import OutputCorrupt, OutputUnavailable
from sparkonce.sink.delta import evidence
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.protocol import Committed, Evidence, FencedOff, Sink, SinkKey, Slot
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog import sink as slot_log
from sparkonce.sink.slotlog.sink import SlotLogSink


class Unread:
    """Wraps a place: what `fails` says of a verb and a path is not answered."""

    def __init__(self, objects: Any, fails: Callable[[str, str], bool]) -> None:
        self._objects, self._fails = objects, fails

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._objects, verb)
        if verb not in ("get", "tail", "list", "folders"):
            return real

        async def asked(path: str, *more: Any) -> Any:
            if self._fails(verb, path):
                raise OutputUnavailable(f"cannot read {path}: no answer")
            return await real(path, *more)

        return asked


@pytest.fixture(autouse=True)
def _resent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_log, "RESEND_AFTER", (0.0, 0.0, 0.0))


def verbs(sink: Sink, key: SinkKey) -> dict[str, Callable[[], object]]:
    return {
        "find": lambda: run(sink.find(key)),
        "probe": lambda: run(sink.probe(key, None)),
        "fence": lambda: run(sink.fence(key, 2, fingerprint="f", by="settle")),
        "sweep": lambda: run(sink.sweep(key)),
    }


VERBS = ("find", "probe", "fence", "sweep")


def slots_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def staged_twice(sink: Sink, key: SinkKey) -> Slot:
    """One committed write of attempt 1, and a second one of it that can never be committed."""
    slot = sink.stage(table_of(1, 2), key, 1, fingerprint="f")
    sink.stage(table_of(3), key, 1, fingerprint="f")
    assert run(sink.commit(key, slot)) == Committed(slot)
    return slot


# --- the slot log


@pytest.mark.parametrize(
    ("verb", "unread"),
    [(verb, unread) for verb in VERBS for unread in ("get", "list") if (verb, unread) != ("fence", "list")],
)
def test_a_slot_that_is_not_answered_is_not_absent(
    sink: SlotLogSink, key: SinkKey, table: Path, verb: str, unread: str
) -> None:
    """If reading a commit's slot, or listing the key's slots, gets no answer: OutputUnavailable, nothing is written or deleted, and the
    same call finds the commit afterwards. (A fence lists nothing below its token: it reads each slot.)"""
    slot = staged_twice(sink, key)
    before, objects = slots_of(table), sink._objects
    sink._objects = Unread(objects, lambda asked, path: asked == unread and path.startswith(layout.slots_folder(key)))
    with pytest.raises(OutputUnavailable, match="no answer"):
        verbs(sink, key)[verb]()
    assert slots_of(table) == before
    sink._objects = objects
    assert run(sink.find(key)) == slot
    assert run(sink.sweep(key)).folders == 1
    assert run(sink.probe(key, None)) is Evidence.PRESENT


@pytest.mark.parametrize("verb", ["find", "probe", "fence", "sweep"])
def test_a_higher_slot_that_is_not_answered_is_not_absent(sink: SlotLogSink, key: SinkKey, verb: str) -> None:
    """The commit has a higher token than the ledger knows (it was lost since): a fence that cannot read it does not answer "barred"."""
    slot = sink.stage(table_of(1), key, 5, fingerprint="f")
    assert run(sink.commit(key, slot)) == Committed(slot)
    objects = sink._objects
    for unread, at in (("get", layout.slot_path(key, 5)), ("list", layout.slots_folder(key))):
        sink._objects = Unread(objects, lambda asked, path, u=unread, a=at: (asked, path) == (u, a))  # type: ignore[misc]  # bound early
        with pytest.raises(OutputUnavailable, match="no answer"):
            verbs(sink, key)[verb]()
    sink._objects = objects
    assert run(sink.fence(key, 2, fingerprint="f", by="settle")) == slot


@pytest.mark.parametrize("content", [b"", b'{"schema":1}', b"\xff\xfe"])
def test_a_sweep_keeps_what_a_corrupt_slot_may_have_committed(
    sink: SlotLogSink, key: SinkKey, table: Path, content: bytes
) -> None:
    """OutputCorrupt, and every staged file stays, since the slot may have named any of them."""
    slot = staged_twice(sink, key)
    (table / layout.slot_path(key, slot.token)).write_bytes(content)
    before = slots_of(table)
    with pytest.raises(OutputCorrupt, match="cannot be read"):
        run(sink.sweep(key))
    assert slots_of(table) == before


# --- Delta


@pytest.mark.parametrize("verb", ["find", "fence", "sweep"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_delta_slot_that_cannot_be_read_is_not_absent(key: SinkKey, table: Path, verb: str, damage: str) -> None:
    """The log has a commit of the key and its slot is missing, or does not parse: OutputCorrupt, and nothing is deleted or barred."""
    sink = sink_on(table)
    slot = staged_twice(sink, key)
    path = table / evidence.slot_path(slot)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9])
    rows = {name: data for name, data in slots_of(table).items() if name.endswith((".parquet", ".json"))}
    with pytest.raises(OutputCorrupt, match="cannot be read"):
        verbs(sink, key)[verb]()
    note = str(table / evidence.folder_of(key) / "fence-0000000002.json")
    assert {name: data for name, data in slots_of(table).items() if name != note} == rows
    loaded = run(sink_on(table)._log.load())
    assert loaded is not None
    assert loaded.fenced(key) == 1  # there is no token below it


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("unread", ["get", "list"])
def test_delta_evidence_that_is_not_answered_is_not_absent(key: SinkKey, table: Path, verb: str, unread: str) -> None:
    """OutputUnavailable; the same call finds the commit afterwards."""
    sink = sink_on(table)
    slot = staged_twice(sink, key)
    objects = sink._objects
    at = evidence.folder_of(key)
    sink._objects = Unread(objects, lambda asked, path: asked == unread and path.startswith(at))
    with pytest.raises(OutputUnavailable, match="no answer"):
        verbs(sink, key)[verb]()
    sink._objects = objects
    assert run(sink.find(key)) == slot
    assert run(sink.fence(key, 2, fingerprint="f", by="settle")) == slot
    assert run(sink.probe(key, None)) is Evidence.PRESENT


def test_a_delta_fence_note_that_cannot_be_listed_is_not_absent(key: SinkKey, table: Path) -> None:
    """Before the table exists the note is the fence: a commit and a sweep that cannot find out whether there is one raise."""
    sink = sink_on(table)
    slot = sink.stage(table_of(1), key, 1, fingerprint="f")
    assert run(sink.fence(key, 2, fingerprint="f", by="settle")) is None
    objects = sink._objects
    sink._objects = Unread(objects, lambda asked, path: asked == "list" and path.startswith(evidence.folder_of(key)))
    for ask in (sink.commit(key, slot), sink.sweep(key)):
        with pytest.raises(OutputUnavailable, match="no answer"):
            run(ask)
    sink._objects = objects
    assert isinstance(run(sink.commit(key, slot)), FencedOff)


# --- Iceberg


@pytest.mark.parametrize("verb", VERBS)
def test_an_iceberg_catalog_that_does_not_answer_is_not_an_empty_one(
    sql_sink: IcebergTableSink, key: SinkKey, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OutputUnavailable: a table that cannot be loaded is not a table that does not exist."""
    slot = staged_twice(sql_sink, key)
    with monkeypatch.context() as patch:

        def silent(*_: object) -> None:
            raise OutputUnavailable("the catalog lake: no answer")

        patch.setattr(type(sql_sink._place), "load", silent)
        patch.setattr(type(sql_sink._place), "make", silent)
        with pytest.raises(OutputUnavailable, match="no answer"):
            verbs(sql_sink, key)[verb]()
    assert run(sql_sink.find(key)) == slot


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_an_iceberg_sweep_keeps_the_rows_of_a_slot_that_cannot_be_read(
    sql_sink: IcebergTableSink, key: SinkKey, damage: str
) -> None:
    """The tag alone names the committed write: its rows stay, whatever happened to the slot's own bytes."""
    slot = staged_twice(sql_sink, key)
    file = next(iceberg_tables.folder_of().glob("data/so-*/*/_slot-*.json"))
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9])
    for verb in ("find", "fence"):
        with pytest.raises(OutputCorrupt, match="restore it from a backup"):
            verbs(sql_sink, key)[verb]()
    assert run(sql_sink.sweep(key)).folders == 1
    assert iceberg_tables.rows() == [1, 2]
    assert (iceberg_tables.folder_of() / slot.files[0].path).exists()
