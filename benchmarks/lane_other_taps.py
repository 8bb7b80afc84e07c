"""Programs that append numbers to a table as people write them: `lane_other_taps.py WHICH FOLDER COUNT`. Run by `lane_others.py`.

Each reads its source, the numbers from 1 to COUNT, on from where it believes to have come, and appends `BATCH` of them at a time. A commit
of pyiceberg that is refused because somebody else committed is tried again; delta-rs does so by itself. With `DIES_AFTER=n` in its
environment a program kills itself after its commit number n, before it saves the position of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lane_fluss
import pyarrow as pa

import sparkonce

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

    from harness.kafka import Cluster


class Servers(NamedTuple):
    kafka: Cluster
    fluss: str
    """Address."""


BATCH = 10
NAME = "tap"
TOPIC = "topic"
"""File with the location of the topic."""
ADDRESS = "fluss"
"""File with the address of Fluss; the table has the name of the folder above."""
_commits = count(1)
Rows = Callable[[pa.Table, int], None]
"""Appends rows; their last number."""


def saved(folder: Path) -> int:
    path = folder / "position"
    return int(path.read_text()) if path.exists() else 0


def save(folder: Path, position: int) -> None:
    """In a file of its own, replaced as a whole."""
    new = folder / "position.new"
    new.write_text(str(position))
    new.replace(folder / "position")


def committed() -> None:
    """Is called by each program when its rows are committed."""
    if next(_commits) == int(os.environ.get("DIES_AFTER", "0")):
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def lane(location: str | Path, **options: Any) -> Iterator[tuple[int, Rows]]:
    with sparkonce.writer(location, name=NAME, linger=0.0, **options) as writer:

        def append(rows: pa.Table, last: int) -> None:
            writer.append(rows, position=last)
            writer.flush()
            committed()

        yield writer.position or 0, append


@contextmanager
def of_sparkonce(folder: Path) -> Iterator[tuple[int, Rows]]:
    with lane(folder / "table") as found:
        yield found


@contextmanager
def kafka_sparkonce(folder: Path) -> Iterator[tuple[int, Rows]]:
    with lane((folder / TOPIC).read_text(), one_copy=True) as found:
        yield found


@contextmanager
def kafka_file(folder: Path) -> Iterator[tuple[int, Rows]]:
    """A producer with `enable.idempotence` and without a transactional id; the position is in a file that is written after each flush."""
    from confluent_kafka import Producer

    brokers, _, topic = (folder / TOPIC).read_text().removeprefix("kafka://").partition("/")
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True})

    def append(rows: pa.Table, last: int) -> None:
        for row in rows.to_pylist():
            producer.produce(topic, json.dumps(row).encode())
        producer.flush()
        committed()
        save(folder, last)

    yield saved(folder), append


@contextmanager
def fluss_file(folder: Path) -> Iterator[tuple[int, Rows]]:
    """pyfluss, whose writer is idempotent while its process lives; the position is in a file that is written after each flush."""
    lane_fluss.client()
    with lane_fluss.appender((folder / ADDRESS).read_text(), fluss_table(folder)) as write:

        def append(rows: pa.Table, last: int) -> None:
            write(rows)
            committed()
            save(folder, last)

        yield saved(folder), append


def fluss_table(folder: Path) -> str:
    return "t" + "".join(each for each in folder.parent.name if each.isalnum())


@contextmanager
def delta_file(folder: Path) -> Iterator[tuple[int, Rows]]:
    """delta-rs; the position is in a file that is written after each append."""
    from deltalake import write_deltalake

    def append(rows: pa.Table, last: int) -> None:
        write_deltalake(folder / "table", rows, mode="append")
        committed()
        save(folder, last)

    yield saved(folder), append


@contextmanager
def delta_txn(folder: Path) -> Iterator[tuple[int, Rows]]:
    """delta-rs; the position is the version of an application transaction, in the commit of the rows."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    def append(rows: pa.Table, last: int) -> None:
        properties = CommitProperties(app_transactions=[Transaction(NAME, last)])
        write_deltalake(folder / "table", rows, mode="append", commit_properties=properties)
        committed()

    place = str(folder / "table")
    position = DeltaTable(place).transaction_version(NAME) if DeltaTable.is_deltatable(place) else None
    yield position or 0, append


def catalog_of(folder: Path) -> SqlCatalog:
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog(NAME, uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())


@contextmanager
def iceberg(folder: Path, *, in_snapshot: bool) -> Iterator[tuple[int, Rows]]:
    from pyiceberg.exceptions import CommitFailedException

    table = catalog_of(folder).load_table("lake.numbers")

    def append(rows: pa.Table, last: int) -> None:
        while True:
            try:
                table.append(rows, snapshot_properties={NAME: str(last)} if in_snapshot else {})
                break
            except CommitFailedException:
                table.refresh()
        committed()
        if not in_snapshot:
            save(folder, last)

    told = (each.summary for each in table.snapshots() if each.summary) if in_snapshot else ()
    yield max((int(str(each[NAME] or 0)) for each in told), default=0) if in_snapshot else saved(folder), append


@contextmanager
def iceberg_file(folder: Path) -> Iterator[tuple[int, Rows]]:
    """pyiceberg; the position is in a file that is written after each append."""
    with iceberg(folder, in_snapshot=False) as found:
        yield found


@contextmanager
def iceberg_snapshot(folder: Path) -> Iterator[tuple[int, Rows]]:
    """pyiceberg; the position is a property of the snapshot with the rows."""
    with iceberg(folder, in_snapshot=True) as found:
        yield found


WRITERS = {
    "sparkonce.writer": of_sparkonce,
    "write_deltalake, position in a file": delta_file,
    "write_deltalake, position in its commit (txn)": delta_txn,
    "pyiceberg append, position in a file": iceberg_file,
    "pyiceberg append, position in its snapshot": iceberg_snapshot,
    "sparkonce.writer on Kafka": kafka_sparkonce,
    "Kafka producer, position in a file": kafka_file,
    "pyfluss, position in a file": fluss_file,
}


def prepare(which: str, folder: Path, servers: Servers) -> None:
    """Makes an empty table or topic where the program expects one."""
    folder.mkdir()
    if "Kafka" in which:
        (folder / TOPIC).write_text(servers.kafka.url(servers.kafka.topic()))
    if "fluss" in which:
        (folder / ADDRESS).write_text(servers.fluss)
        lane_fluss.made(servers.fluss, fluss_table(folder))
    if which.startswith("pyiceberg"):
        catalog = catalog_of(folder)
        catalog.create_namespace("lake")
        catalog.create_table("lake.numbers", pa.schema([("n", pa.int64())]))


def rows(which: str, folder: Path, servers: Servers) -> list[int]:
    """The numbers in the table or topic, as a reader sees them."""
    if "Kafka" in which:
        topic = (folder / TOPIC).read_text().rpartition("/")[2]
        return [json.loads(value)["n"] for value in servers.kafka.values(topic)]
    if "fluss" in which:
        return lane_fluss.numbers(servers.fluss, fluss_table(folder))
    if which.startswith("pyiceberg"):
        found = catalog_of(folder).load_table("lake.numbers").scan().to_arrow()
    elif which.startswith("write_deltalake"):
        from deltalake import DeltaTable

        found = DeltaTable(folder / "table").to_pyarrow_table()
    else:
        from pyarrow import parquet

        found = pa.concat_tables(
            parquet.read_table(file.removeprefix("file://")) for file in sparkonce.files(folder / "table")
        )
    return [n for n in found.column("n").to_pylist() if n is not None]


def main(which: str, folder: Path, count: int) -> None:
    with WRITERS[which](folder) as (position, append):
        print(position, flush=True)
        for first in range(position + 1, count + 1, BATCH):
            last = min(first + BATCH - 1, count)
            append(pa.table({"n": list(range(first, last + 1))}), last)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
