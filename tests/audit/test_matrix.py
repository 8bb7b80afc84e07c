"""Each defect at each sink: planted by hand into an otherwise correct table, without the product's own verbs.

Defects are planted through `TableObjects`, as a person with a client of the store would do it, so that a bucket and a folder are one
case. Changes to the log of a Delta table or the catalog of an Iceberg table use those formats' own libraries.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from audit.scene import Scene, kinds, scene
from harness import store_servers
from harness.arrow_stage import table_of
from harness.granted import Granted
from harness.store_servers import StoreServer
from sparkonce.audit.findings import Finding, Kind
from sparkonce.audit.places import open_place
from sparkonce.blocking import run
from sparkonce.sink.delta.evidence import put_slot
from sparkonce.sink.delta.log import entry_path, idem
from sparkonce.sink.delta.numbering import slot_number
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import Committed, Inventory, Sink, SinkKey, Slot
from sparkonce.sink.slotlog import layout

Plant = Callable[["Case"], tuple[Kind, str] | None]
ROWS = ((1, 2, 3), (10, 11, 12, 13), (20, 21))
DAMAGED = 1
"""Index of the job that the defect is planted in."""
STRANGER = "e" * 64
"""Hash of a key that the ledger never knew."""


@dataclass
class Case:
    """Three jobs that succeeded on one table of a kind."""

    kind: str
    store: Scene
    place: str

    def granted(self, key: str, at: Scene | None = None) -> Granted:
        iceberg = {"iceberg": {"catalog": "lake", "table": self.place}}
        kind = {"folder": "slotLog", "bucket": "slotLog", "delta": "delta"}
        output = iceberg if self.kind == "iceberg" else {kind[self.kind]: {"path": self.place}}
        return (at or self.store).granted(key, outputs=[{"name": "orders", **output}])

    def ran(self, key: str, *rows: int, at: Scene | None = None) -> Granted:
        job = self.granted(key, at)
        job.job().write(table_of(*rows), "orders")
        (at or self.store).finalize(job)
        return job

    @property
    def job(self) -> Granted:
        return self.store.written[DAMAGED]

    @property
    def key(self) -> SinkKey:
        return self.job.key("orders")

    @property
    def sink(self) -> Sink:
        return self.job.sinks()["orders"]

    @property
    def slot(self) -> Slot:
        found = self.job.committed("orders")
        assert found is not None
        return found

    def inventory(self) -> Inventory:
        return run(self.sink.inventory())

    @property
    def objects(self) -> TableObjects:
        table = self.inventory()
        return open_place(table.location or table.uri)

    def staged(self, *rows: int, token: int = 2) -> Slot:
        """One more write of the same key, staged by another attempt."""
        return self.sink.stage(table_of(*rows), self.key, token, fingerprint=self.job.record.fingerprint)

    def replace(self, path: str, data: bytes) -> None:
        objects = self.objects
        run(objects.delete(path))
        assert run(objects.create(path, data))


@pytest.fixture
def case(request: pytest.FixtureRequest, tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """A case on a table of the kind that the test's parameter names."""
    place = {"folder": "orders", "delta": "orders", "iceberg": "sales.orders"}.get(request.param, "")
    if request.param == "bucket":
        server: StoreServer = request.getfixturevalue("s3_server")
        store_servers.no_proxy(monkeypatch)
        server.use(monkeypatch)
        place = server.url(f"{tmpfs_path.name}/orders")
    if request.param == "iceberg":
        from harness.iceberg_tables import sql_catalog

        for name, value in sql_catalog(tmpfs_path).items():
            monkeypatch.setenv(name, value)
    with scene(tmpfs_path) as store:
        yield _filled(Case(request.param, store, place))


def _filled(case: Case) -> Case:
    for number, rows in enumerate(ROWS):
        case.ran(f"day-{number}", *rows)
    return case


# Each function plants its defect, and returns the kind and the subject of the finding that it must cause.


def nothing(_: Case) -> None:
    """Leaves the table correct."""


def duplicate_rows(case: Case) -> tuple[Kind, str]:
    """Commits one write under a second key."""
    objects, slot = case.objects, case.slot
    other = SinkKey(key_hash=STRANGER, output="orders", generation=1)
    folder = next(each.path for each in case.inventory().staged if each.sink_key == str(case.key))
    copy = folder.replace(str(case.key), str(other))
    for file in slot.files:
        assert run(objects.create(file.path.replace(folder, copy), run(objects.get(file.path)) or b""))
    files = tuple(file.model_copy(update={"path": file.path.replace(folder, copy)}) for file in slot.files)
    forged = slot.model_copy(update={"sink_key": str(other), "files": files})
    assert isinstance(run(case.sink.commit(other, forged)), Committed)
    return Kind.DUPLICATE_ROWS, " = ".join(sorted([str(case.key), str(other)]))


def missing_file(case: Case) -> tuple[Kind, str]:
    """Deletes a data file."""
    path = case.slot.files[0].path
    run(case.objects.delete(path))
    return Kind.MISSING_FILE, path


def changed_file(case: Case) -> tuple[Kind, str]:
    """Rewrites a data file with as many rows, but others."""
    file = case.slot.files[0]
    data = pa.BufferOutputStream()
    parquet.write_table(pa.table({"n": pa.array([99] * file.rows, pa.int64())}), data)
    case.replace(file.path, data.getvalue().to_pybytes())
    return Kind.CHANGED_FILE, file.path


def orphan_staging(case: Case) -> tuple[Kind, str]:
    """Leaves staged files of a barred attempt."""
    job = case.granted("barred")
    sink, key = job.sinks()["orders"], job.key("orders")
    sink.stage(table_of(50), key, 1, fingerprint=job.record.fingerprint)
    job.next_attempt()
    [folder] = [each.path for each in case.inventory().staged if each.sink_key == str(key)]
    return Kind.ORPHAN_STAGING, folder


def slot_without_record(case: Case) -> tuple[Kind, str]:
    """Commits a job of another ledger into the table."""
    with scene(case.store.folder / "elsewhere") as other:
        other.folder = case.store.folder
        return Kind.SLOT_WITHOUT_RECORD, str(case.ran("stranger", 70, at=other).key("orders"))


def record_without_slot(case: Case) -> tuple[Kind, str]:
    """Removes a commit but not its record: deletes a slot, or restores the table to an earlier version."""
    undo = _undo(case)
    gone = case.ran("gone", 30, 31).key("orders")
    undo(gone)
    return Kind.RECORD_WITHOUT_SLOT, str(gone)


def _undo(case: Case) -> Callable[[SinkKey], object]:
    """Returns a call that undoes the commits made from now on."""
    if case.kind == "delta":
        before = {each.path for each in run(case.objects.list("_delta_log"))}
        return lambda _: [
            run(case.objects.delete(each.path))
            for each in run(case.objects.list("_delta_log"))
            if each.path not in before
        ]
    if case.kind == "iceberg":
        rows = _catalog(case, "select metadata_location from iceberg_tables")
        return lambda _: _catalog(case, "update iceberg_tables set metadata_location = ?", *rows)
    objects = case.objects
    return lambda key: [run(objects.delete(each.path)) for each in run(objects.list(layout.slots_folder(key)))]


def _catalog(case: Case, text: str, *values: str) -> list[str]:
    with sqlite3.connect(case.store.folder / "catalog.db") as database:
        found = [row[0] for row in database.execute(text, values)]
    database.close()
    return found


def two_commits(case: Case) -> tuple[Kind, str]:
    """Commits another attempt's write of the same (key, generation) beside the first, with everything that belongs to a commit."""
    slot = case.staged(90, 91)
    if case.kind == "delta":
        run(put_slot(case.objects, slot))
        _delta_entry(case, {"txn": {"appId": idem(case.key), "version": slot_number(slot)}}, *_adds(slot))
    elif case.kind == "iceberg":
        _iceberg_rows(case, slot, _names(slot))
    else:
        assert run(case.objects.create(layout.slot_path(case.key, slot.token), layout.encode(slot)))
    return Kind.DOUBLE_COMMIT, str(case.key)


def two_commits_seen_in_the_rows(case: Case) -> tuple[Kind, str]:
    """Adds only the rows of a second write to the table: the location of its files alone shows the second write."""
    slot = case.staged(90, 91)
    if case.kind == "delta":
        _delta_entry(case, *_adds(slot))
    else:
        _iceberg_rows(case, slot, {})
    return Kind.DOUBLE_COMMIT, str(case.key)


def two_commits_seen_in_the_history(case: Case) -> tuple[Kind, str]:
    """Adds a foreign program's rows under the sink key: the log or the snapshots alone show it."""
    if case.kind == "delta":
        _delta_entry(case, {"txn": {"appId": idem(case.key), "version": 7}})
    else:
        from harness.iceberg_tables import table

        said = _names(case.slot.model_copy(update={"nonce": "a" * 32}))
        table().append(pa.table({"n": pa.array([90], pa.int64())}), snapshot_properties=said)
    return Kind.DOUBLE_COMMIT, str(case.key)


def _adds(slot: Slot) -> list[dict[str, Any]]:
    same = {"partitionValues": {}, "modificationTime": 0, "dataChange": True}
    return [{"add": {"path": file.path, "size": file.bytes, **same}} for file in slot.files if file.rows]


def _delta_entry(case: Case, *actions: dict[str, Any]) -> None:
    from deltalake import DeltaTable

    version = DeltaTable(str(case.store.folder / "orders")).version() + 1
    assert run(case.objects.create(entry_path(version), "".join(json.dumps(each) + "\n" for each in actions).encode()))


def _names(slot: Slot) -> dict[str, str]:
    """The snapshot properties by which a commit names its key."""
    said = {"sink-key": slot.sink_key, "token": str(slot.token), "nonce": slot.nonce, "fingerprint": slot.fingerprint}
    return {f"sparkonce.{name}": value for name, value in said.items()}


def _iceberg_rows(case: Case, slot: Slot, summary: dict[str, str]) -> None:
    from harness.iceberg_tables import table

    files = [case.objects.where(file.path) for file in slot.files if file.rows]
    table().add_files(files, snapshot_properties=summary)


KINDS = ("folder", "bucket", "delta", "iceberg")
EVERYWHERE: tuple[Plant, ...] = (
    nothing,
    duplicate_rows,
    missing_file,
    changed_file,
    orphan_staging,
    slot_without_record,
    record_without_slot,
    two_commits,
)
FORMATS: tuple[Plant, ...] = (two_commits_seen_in_the_rows, two_commits_seen_in_the_history)
"""For tables that have other writers. In a slot log only a slot is a commit."""
MATRIX = [
    *((kind, plant) for plant in EVERYWHERE for kind in KINDS),
    *((kind, plant) for plant in FORMATS for kind in ("delta", "iceberg")),
]
BESIDE = {
    Kind.DUPLICATE_ROWS: {Kind.SLOT_WITHOUT_RECORD},  # the second key is unknown to the ledger
    Kind.DOUBLE_COMMIT: {Kind.LEDGER_BEHIND},  # a slot that names an attempt which was never granted
}
"""Further findings that follow from the planted one."""


@pytest.mark.parametrize(
    ("case", "plant"), MATRIX, indirect=["case"], ids=[f"{plant.__name__}-{kind}" for kind, plant in MATRIX]
)
def test_an_audit_finds(plant: Plant, case: Case) -> None:
    """The audit reports the planted defect with its table and place, and otherwise only findings that follow from it; a correct table gives
    none."""
    planted = plant(case)
    report = case.store.audit()
    assert report.complete
    if planted is None:
        assert kinds(report) == []
        assert (report.rows, report.cost.files) == (sum(map(len, ROWS)), 6)
        return
    wanted, subject = planted
    found = [each for each in report.findings if each.kind is wanted]
    assert [(each.kind, each.subject, each.table) for each in found] == [(wanted, subject, case.inventory().uri)]
    assert {each.kind for each in report.findings} - {wanted} <= BESIDE.get(wanted, set()), told(report.findings)
    assert report.clean is (wanted is Kind.ORPHAN_STAGING)


def told(findings: tuple[Finding, ...]) -> str:
    return "\n".join(f"{each.kind}: {each.what}" for each in findings)
