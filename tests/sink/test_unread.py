"""Evidence that cannot be read is never taken for missing evidence: find, probe, fence and sweep raise, and delete nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError

from harness import iceberg_tables
from harness.arrow_stage import arrow_stage, table_of
from harness.delta_tables import sink_on
from sparkonce.blocking import run
from sparkonce.errors import OutputCorrupt, OutputUnavailable
from sparkonce.sink.delta import evidence
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import Committed, Evidence, FencedOff, Sink, SinkKey, Slot, Swept
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog import sink as slot_log
from sparkonce.sink.slotlog.sink import SlotLogSink


class Unread:
    """Wraps `Objects`; requests for which `fails(verb, path)` is true get no answer."""

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
    """A committed write of attempt 1, and a second staged one that can never be committed."""
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
    """If reading a commit's slot or listing the key's slots gets no answer, the verb raises OutputUnavailable and writes or deletes
    nothing, and the same call finds the commit afterwards. (A fence reads each lower slot instead of listing.)"""
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
    """After the ledger lost its records, a commit has a higher token than the ledger knows: a fence that cannot read that slot raises
    instead of reporting the token as barred."""
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
    """The sweep raises OutputCorrupt and keeps every staged file, since the slot may have named any of them."""
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
    """The log has a commit of the key and its slot is missing or does not parse: OutputCorrupt, and nothing is deleted or barred."""
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
    assert loaded.fenced(key) == 1  # no token is below 1


def test_a_delta_result_whose_slot_cannot_be_read_is_not_gone(key: SinkKey, table: Path) -> None:
    """A probe of a slot that does not parse raises OutputCorrupt: the rows may all be there."""
    sink = sink_on(table)
    path = table / evidence.slot_path(staged_twice(sink, key))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(OutputCorrupt, match="cannot be read"):
        run(sink.probe(key, None))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("unread", ["get", "list"])
def test_delta_evidence_that_is_not_answered_is_not_absent(key: SinkKey, table: Path, verb: str, unread: str) -> None:
    """The verbs raise OutputUnavailable; the same call finds the commit afterwards."""
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
    """Before the table exists the fence is only a note: a commit or a sweep that cannot find out whether there is one raises."""
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


# --- a short outage


class Outage:
    """Wraps `Objects`: after the first `first` requests, the next `length` are lost."""

    def __init__(self, objects: Any, first: int, length: int) -> None:
        self._objects, self._first, self._length = objects, first, length
        self.requests = 0

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._objects, verb)
        if verb not in ("create", "get", "tail", "list", "folders"):
            return real

        async def asked(path: str, *more: Any) -> Any:
            self.requests += 1
            if self._first < self.requests <= self._first + self._length:
                raise OutputUnavailable(f"cannot {verb} {path}: no answer")
            return await real(path, *more)

        return asked


def during(sink: Any, outage: Outage, ask: Callable[[], object]) -> Any:
    """The answer of a verb during the outage; "no answer" if it raises OutputUnavailable."""
    objects = sink._objects
    holders = [(sink, "_objects"), *([(sink._log, "objects")] if sink.kind == "delta" else [])]
    for holder, name in holders:
        setattr(holder, name, outage)
    try:
        return ask()
    except OutputUnavailable:
        return "no answer"
    finally:
        for holder, name in holders:
            setattr(holder, name, objects)


KINDS: dict[str, Callable[[Path], Any]] = {
    "slotLog": lambda table: SlotLogSink(FolderObjects(table, durable=False), name="orders", stage=arrow_stage),
    "delta": sink_on,
}


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_outage_during_a_verb_changes_no_answer(
    key: SinkKey, tmp_path: Path, kind: str, verb: str, length: int
) -> None:
    """Rows are staged and not committed. Wherever the outage begins and ends, the verb raises OutputUnavailable or gives the right answer.
    A fence that answers has barred the attempt; no other verb has, and no sweep has deleted its files."""
    for first in count():
        sink = KINDS[kind](tmp_path / str(first))
        slot = sink.stage(table_of(1, 2), key, 1, fingerprint="f")
        outage = Outage(sink._objects, first, length)
        answer = during(sink, outage, verbs(sink, key)[verb])
        assert answer in ("no answer", {"probe": Evidence.GONE, "sweep": Swept(0, 0)}.get(verb)), first
        committed = run(sink.commit(key, slot))
        if verb == "fence" and answer is None:
            assert isinstance(committed, FencedOff), first
        elif verb != "fence":
            assert committed == Committed(slot), first
        if outage.requests <= first:  # it ended before the outage began
            assert answer != "no answer"
            assert first > 0
            return


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_outage_during_a_verb_hides_no_commit(
    key: SinkKey, tmp_path: Path, kind: str, verb: str, length: int
) -> None:
    """As above, with a committed write: an answer includes the commit, and its files stay."""
    for first in count():
        sink = KINDS[kind](tmp_path / str(first))
        slot = staged_twice(sink, key)
        outage = Outage(sink._objects, first, length)
        answer = during(sink, outage, verbs(sink, key)[verb])
        right = {"find": slot, "fence": slot, "probe": Evidence.PRESENT}
        if verb == "sweep":
            assert answer == "no answer" or answer.folders == 1, first
        else:
            assert answer in ("no answer", right[verb]), first
        assert run(sink.find(key)) == slot
        assert run(sink.probe(key, None)) is Evidence.PRESENT
        if outage.requests <= first:  # it ended before the outage began
            assert answer != "no answer"
            assert first > 0
            return


# --- Iceberg


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "error",
    [ServiceUnavailableError("no answer"), ForbiddenError("no"), FileNotFoundError("v1.metadata.json"), OSError("cut")],
    ids=lambda error: type(error).__name__,
)
def test_an_iceberg_catalog_that_does_not_answer_is_not_an_empty_one(
    sql_sink: IcebergTableSink, key: SinkKey, verb: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verbs raise OutputUnavailable: a table that cannot be loaded is not a missing table."""
    slot = staged_twice(sql_sink, key)

    def silent(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(sql_sink._place.catalog, "load_table", silent)
        with pytest.raises(OutputUnavailable, match="cannot load the table"):
            verbs(sql_sink, key)[verb]()
    assert run(sql_sink.find(key)) == slot


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_an_iceberg_sweep_keeps_the_rows_of_a_slot_that_cannot_be_read(
    sql_sink: IcebergTableSink, key: SinkKey, damage: str
) -> None:
    """The tag alone names the committed write: its rows stay even if the bytes of the slot are damaged."""
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
