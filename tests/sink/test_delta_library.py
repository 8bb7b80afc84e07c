"""Why we write the entries of a Delta log ourselves: three cases in which delta-rs's own transaction would be wrong.

Each case is tested with both. When a release of delta-rs changes one of them, its test fails, and the choice can be reconsidered
(`sparkonce.sink.delta.sink`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from harness.delta_stage import entries, rows_in
from harness.delta_tables import later, sink_on
from sparkonce.blocking import run
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.delta import schema as delta_fit
from sparkonce.sink.protocol import Committed, SinkKey, Slot, WriteOptions

LETTERS = ["a b", "x:y/%=", "ü漢", "*", "{[^]}", None]


def written(
    table: Path, key: SinkKey, rows: dict[str, Any], *, partition_by: tuple[str, ...] = (), merge: bool = False
) -> Slot:
    """Stages and commits with our own code."""
    sink, options = sink_on(table), WriteOptions(partition_by=partition_by, merge_schema=merge)
    frame: Any = pa.table(rows)
    slot = sink.stage(frame, key, 1, fingerprint="f", options=options)
    assert run(sink.commit(key, slot)) == Committed(slot)
    return slot


def library_commit(table: Path, actions: Sequence[AddAction | RemoveAction], schema: Schema | None = None) -> None:
    """Commits with delta-rs, without its retries and hooks."""
    loaded = DeltaTable(str(table))
    loaded.create_write_transaction(
        list(actions),
        mode="append",
        schema=schema or loaded.schema(),
        partition_by=loaded.metadata().partition_columns,
        commit_properties=CommitProperties(max_commit_retries=0, app_transactions=[Transaction("fence:x", 2)]),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )


def library_removes(table: Path) -> list[RemoveAction]:
    """Removes every live file, given by its path on disk; the library encodes the path for the log."""
    adds = [action["add"] for entry in entries(table) for action in entry if "add" in action]
    return [
        RemoveAction(
            delta_log.plain_path(each["path"]),
            data_change=True,
            deletion_timestamp=5,
            size=each["size"],
            partition_values=each["partitionValues"],
        )
        for each in adds
    ]


def test_a_replacement_removes_every_file_whatever_its_name(key: SinkKey, table: Path) -> None:
    """A rerun leaves only its own rows, whatever characters the older partition values contain, even after VACUUM deleted the unreferenced
    files."""
    written(table, key, {"d": LETTERS, "n": list(range(len(LETTERS)))}, partition_by=("d",))
    written(table, later(key, 2), {"d": LETTERS, "n": [100 + n for n in range(len(LETTERS))]})
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert sorted(row["n"] for row in rows_in(table)) == [100 + n for n in range(len(LETTERS))]


@pytest.mark.parametrize("letter", ["ü", "漢"])
def test_the_librarys_transaction_leaves_replaced_rows_visible(key: SinkKey, table: Path, letter: str) -> None:
    """Unlike Java, delta-rs escapes letters beyond ASCII in paths, so its `remove` does not match the `add` that Spark or we wrote: the log
    then shows both generations."""
    written(table, key, {"d": ["a", letter], "n": [1, 2]}, partition_by=("d",))
    adds = [action["add"] for action in entries(table)[-1] if "add" in action]
    [live] = [add["path"] for add in adds if add["partitionValues"]["d"] == letter]
    library_commit(table, library_removes(table))
    removed = [action["remove"]["path"] for action in entries(table)[-1] if "remove" in action]
    assert live not in removed
    assert delta_log.plain_path(live) in map(delta_log.plain_path, removed)
    assert [row["n"] for row in rows_in(table)] == [2]


def test_the_librarys_transaction_adds_no_column(key: SinkKey, table: Path) -> None:
    """Given a schema with an additional column, its append writes no metadata: the rows appear without that column. Ours adds both in one
    entry."""
    write_deltalake(str(table), pa.table({"n": [0]}))
    wider = Schema.from_arrow(pa.table({"n": [1], "extra": ["x"]}).schema)
    stats = json.dumps({"numRecords": 1})
    library_commit(table, [AddAction("elsewhere.parquet", 1, {}, 5, data_change=True, stats=stats)], schema=wider)
    assert {name for action in entries(table)[-1] for name in action} == {"commitInfo", "add", "txn"}
    assert [field.name for field in DeltaTable(str(table)).schema().fields] == ["n"]

    other = table.with_name("ours")
    write_deltalake(str(other), pa.table({"n": [0]}))
    written(other, key, {"n": [1], "extra": ["x"]}, merge=True)
    assert {row["n"]: row["extra"] for row in rows_in(other)} == {0: None, 1: "x"}


@pytest.mark.parametrize("feature", ["allowColumnDefaults", "domainMetadata", "identityColumns"])
def test_the_librarys_transaction_refuses_tables_that_ours_writes(key: SinkKey, table: Path, feature: str) -> None:
    """delta-rs refuses a table with an enabled feature even if the feature requires nothing of our rows, and refuses to fence it too."""
    assert feature in delta_fit.KNOWN
    write_deltalake(str(table), pa.table({"n": [0]}))
    enable(table, feature)
    with pytest.raises(CommitFailedError, match="Unsupported table features"):
        library_commit(table, [])
    assert run(sink_on(table).fence(key, 2, fingerprint="f", by="settle")) is None
    written(table, later(key, 2), {"n": [1]})
    assert [row["n"] for row in rows_in(table)] == [0, 1]


def enable(table: Path, feature: str) -> None:
    """Enables the feature as the engine that created the table would have, in version 0."""
    path = table / delta_log.entry_path(0)
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": [],
                "writerFeatures": [feature],
            }
    path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
