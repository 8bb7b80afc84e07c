"""Staging without Spark: footers, digests, the row count check, and cleanup after a failure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from harness.arrow_stage import arrow_stage, table_of
from harness.matrix import ATOMS
from sparkonce.blocking import run
from sparkonce.errors import Fenced, InvalidInput, OutputUnsupported, RowsLost
from sparkonce.sink.delta import schema as delta_fit
from sparkonce.sink.iceberg.schema import schema_of
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import SinkKey, Slot
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.sink.staging import FOOTER_GUESS, PINNED, StagedRows, Stager, staged_files

PAGE = Path(__file__).resolve().parents[2] / "docs" / "outputs.md"


def sink_with(table: Path, stage: Stager) -> SlotLogSink:
    return SlotLogSink(FolderObjects(table), name="orders", stage=stage)


def stage(sink: SlotLogSink, key: SinkKey, *numbers: int) -> Slot:
    return sink.stage(table_of(*numbers), key, 1, fingerprint="f")


def test_a_staged_slot_says_what_is_there(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """The slot has token, nonce, fingerprint and number of rows, and of each file its path in the table, its rows and its size."""
    slot = stage(sink, key, 1, 2, 3)
    assert (slot.sink_key, slot.token, slot.fingerprint, slot.rows) == ("a1b2-orders-g1", 1, "f", 3)
    assert [file.rows for file in slot.files] == [2, 1]
    for file in slot.files:
        assert file.path.startswith(f"_data/a1b2-orders-g1/0000000001-{slot.nonce}/part-")
        assert file.bytes == (table / file.path).stat().st_size
    assert slot.bytes == sum(path.stat().st_size for path in table.rglob("*.parquet"))
    assert '"name": "n"' in slot.data_schema


def test_each_write_has_its_own_folder(sink: SlotLogSink, key: SinkKey) -> None:
    """Two writes of one attempt use separate folders."""
    one, other = stage(sink, key, 1), stage(sink, key, 1)
    assert one.nonce != other.nonce
    assert {file.path for file in one.files}.isdisjoint(file.path for file in other.files)


def test_the_digest_is_of_the_footer(sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """Golden: SHA-256 over the footer's bytes and the file's size as an eight-byte big-endian integer."""
    file = stage(sink, key, 1, 2, 3).files[0]
    data = (table / file.path).read_bytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    assert file.digest == "parquet-footer-sha256:" + hashlib.sha256(footer + len(data).to_bytes(8, "big")).hexdigest()


def test_other_rows_have_another_digest(sink: SlotLogSink, key: SinkKey) -> None:
    """The footer holds statistics and offsets, so other rows give another digest."""
    assert stage(sink, key, 1, 2).files[0].digest != stage(sink, key, 5, 6).files[0].digest
    assert stage(sink, key, 1, 2).files[0].digest == stage(sink, key, 1, 2).files[0].digest


def test_a_footer_larger_than_the_first_read(table: Path, key: SinkKey) -> None:
    """A footer with thousands of columns does not fit into the first read and is read completely."""

    def wide(frame: Any, folder: str, _: Sequence[str] = ()) -> StagedRows:
        path = Path(folder.removeprefix("file://"))
        path.mkdir(parents=True)
        parquet.write_table(pa.table({f"column{n}": [1, 2, 3] for n in range(1500)}), path / "part-0.parquet")
        return StagedRows(rows=3, data_schema="{}")

    slot = stage(sink_with(table, wide), key, 1)
    data = (table / slot.files[0].path).read_bytes()
    assert int.from_bytes(data[-8:-4], "little") > FOOTER_GUESS
    assert slot.files[0].rows == 3


def test_only_data_counts(table: Path, key: SinkKey) -> None:
    """Markers, checksums and a committer's leftovers are not counted as files of the table, whatever they contain."""

    def littering(frame: Any, folder: str, _: Sequence[str] = ()) -> StagedRows:
        written = arrow_stage(frame, folder)
        path = Path(folder.removeprefix("file://"))
        for name in (
            "_SUCCESS",
            ".part-00000.parquet.crc",
            "_metadata",
            "_temporary/0/part-9.parquet",
            ".spark/part-9.parquet",
        ):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(b"litter")
        return written

    assert len(stage(sink_with(table, littering), key, 1, 2).files) == 2


def damaged(damage: Callable[[Path], object]) -> Stager:
    def stage(frame: Any, folder: str, _: Sequence[str] = ()) -> StagedRows:
        written = arrow_stage(frame, folder)
        damage(Path(folder.removeprefix("file://")))
        return written

    return stage


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: (path / "part-00001.parquet").unlink(), "3 rows were written and the files in .* hold 2"),
        (lambda path: (path / "part-00001.parquet").write_bytes(b""), "is not a whole Parquet file"),
        (lambda path: (path / "part-00001.parquet").write_bytes(b"PAR1PAR1"), "is not a whole Parquet file"),
        (
            lambda path: (path / "part-00001.parquet").write_bytes(b"PAR1" + b"\xff" * 50 + b"\x32\0\0\0PAR1"),
            "is not a whole Parquet file",
        ),
        (
            lambda path: (path / "part-00001.parquet").write_bytes((path / "part-00001.parquet").read_bytes()[:-1]),
            "is not a whole Parquet file",
        ),
        (
            lambda path: (path / "part-00002.parquet").write_bytes((path / "part-00000.parquet").read_bytes()),
            "3 rows were written and the files in .* hold 5",
        ),
    ],
    ids=["missing", "empty", "no footer", "garbage", "cut", "double"],
)
def test_rows_that_do_not_add_up_are_not_committed(
    table: Path, key: SinkKey, damage: Callable[[Path], object], why: str
) -> None:
    """Too few rows, too many, or an incomplete file: one sentence, no slot, and the folder is deleted."""
    with pytest.raises(RowsLost, match=why) as lost:
        stage(sink_with(table, damaged(damage)), key, 1, 2, 3)
    assert "\n" not in str(lost.value)
    assert list(table.rglob("*.parquet")) == []


def test_an_encrypted_footer_is_refused(table: Path, key: SinkKey) -> None:
    """Without the key its rows cannot be counted; the sentence names the setting that leaves footers readable."""
    damage = damaged(lambda path: (path / "part-00000.parquet").write_bytes(b"PARE" + bytes(50) + b"\x32\0\0\0PARE"))
    with pytest.raises(OutputUnsupported, match=r"has an encrypted footer.*parquet\.encryption\.plaintext\.footer$"):
        stage(sink_with(table, damage), key, 1)


def test_an_error_of_the_stager_passes_through(table: Path, key: SinkKey) -> None:
    """The job gets its own error unchanged; files written so far are deleted."""

    def failing(frame: Any, folder: str, _: Sequence[str] = ()) -> StagedRows:
        arrow_stage(frame, folder)
        raise ZeroDivisionError("the job's own")

    with pytest.raises(ZeroDivisionError, match="the job's own"):
        stage(sink_with(table, failing), key, 1)
    assert list((table / "_data" / str(key)).iterdir()) == []


def test_a_write_that_was_swept_under_says_fenced(sink: SlotLogSink, table: Path, key: SinkKey) -> None:
    """A zombie whose slot was closed and whose files were swept during the write gets Fenced instead of an error about lost rows."""

    def overtaken(frame: Any, folder: str, _: Sequence[str] = ()) -> StagedRows:
        written = arrow_stage(frame, folder)
        run(sink.fence(key, 2, fingerprint="f", by="settle"))
        assert run(sink.sweep(key)).folders == 1
        return written

    with pytest.raises(Fenced, match=r"^attempt 1 of a1b2-orders-g1 was taken over while it wrote") as fenced:
        stage(sink_with(table, overtaken), key, 1)
    assert isinstance(fenced.value.__cause__, RowsLost)


def test_no_rows_and_no_files_is_a_write(table: Path, key: SinkKey) -> None:
    """An empty result is a result: its slot lists no file."""

    def nothing(frame: Any, folder: str, _: Sequence[str] = ()) -> StagedRows:
        return StagedRows(rows=0, data_schema="{}")

    slot = stage(sink_with(table, nothing), key)
    assert (slot.rows, slot.files) == (0, ())


def test_many_files_keep_their_order(table: Path) -> None:
    """Footers are read in parallel; the list is still sorted by path."""
    folder = table / "_data" / "k" / "f"
    folder.mkdir(parents=True)
    for number in range(40):
        parquet.write_table(table_of(*range(number)), folder / f"part-{number:05d}.parquet")
    files = run(staged_files(FolderObjects(table), "_data/k/f", StagedRows(rows=sum(range(40)), data_schema="{}")))
    assert [file.rows for file in files] == list(range(40))


def test_the_page_names_each_pinned_setting() -> None:
    """docs/outputs.md lists the settings of a session that have no effect on files, each with its pinned value."""
    rows = [row for row in PAGE.read_text().splitlines() if row.startswith("| `spark.sql.")]
    named = {
        setting: row.split("|")[2].strip(" `")
        for row in rows
        for setting in re.findall(r"`(spark\.[\w.]+)`", row.split("|")[1])
    }
    assert named == PINNED


def test_the_page_says_which_types_each_kind_holds() -> None:
    """For Delta and Iceberg the page agrees with the code that checks a schema; the types that it lists for all kinds are those of the
    matrix."""
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    said = {row[0]: row[1:] for row in cells if len(row) == 4 and row[1].startswith(("yes", "for Spark"))}
    played = {re.sub(r"^decimal.*", "decimal(38,10)", name).replace("int", "integer") for name in ATOMS}
    assert played == {name for name, held in said.items() if held[0] == "yes, yes"}
    for name, held in said.items():
        schema = {"type": "struct", "fields": [{"name": "c", "type": name, "nullable": True, "metadata": {}}]}
        column, partition = (isinstance(delta_fit.new_schema(schema, by), dict) for by in ((), ("c",)))
        assert held[1] == ("no" if not column else "yes, yes" if partition else "yes, no"), name
        try:
            schema_of(json.dumps(schema))
        except InvalidInput:
            assert held[2] == "no", name
        else:
            assert held[2] == "yes, yes", name
