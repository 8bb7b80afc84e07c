"""Compares a lane's writer with what its work is made of, on the same disk: pyarrow's own Parquet writes, and two durable creates.

*rows*: ROWS rows of about 200 bytes, handed over as Arrow tables of BATCH rows, from the first append to the end of `close`; raw: pyarrow
writes each table into a file of its own, flushed to disk. *commit*: an append of one row that waits for its place, one at a time; raw: the
same file and a slot of as many bytes by the same store. *acquire*: a writer is opened behind PLACES places, which are laid down as files
beforehand; nothing to compare. *read*: all rows by pyarrow, with the files that `sparkonce.files` names; raw: the same files, named
beforehand. *behind a day*: a commit by a writer that has made DAY of them; raw: by one that has begun. *memory*: what a writer with its
default buffer adds to its process's memory when its store no longer answers, and rows are appended until there is no room.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import pyarrow as pa
from measure import Cost, Goal, Row, WrongEffect, interleaved, pair_text
from pyarrow import parquet

import sparkonce
from machine import resident
from sparkonce.blocking import run
from sparkonce.errors import BufferFull
from sparkonce.lanes.protocol import AppendKind, RowBatch
from sparkonce.lanes.sender import BUFFER_MEMORY, WriterOptions
from sparkonce.lanes.table_log import TableLog
from sparkonce.lanes.writer import Writer
from sparkonce.sink.objects.local import FolderObjects

BATCH = 10_000
"""Rows of one table: about 2 MB."""
COMMITS = 20
"""Appends of one row in a pair."""
DAY = 17_280
"""Places of a day: one every five seconds, which is a writer's linger."""
OURS, RAW = "a lane", "raw"
Spent = Mapping[str, Mapping[str, Cost]]
"""By what was done, and by OURS or RAW."""


@dataclass
class LaneCosts:
    """The part `lanes`; `say` gets a line per pair. places: behind which a writer is opened; rows: of a pair."""

    scratch: Path
    pairs: int
    say: Callable[[str], None]
    rows: int = 500_000
    places: int = 100_000
    read_places: int = 10_000
    day: int = DAY

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a row is missing in the end."""
        table = _rows(BATCH)
        self.say(
            f"lanes: {self.pairs} pairs and one to warm up, {self.rows} rows of {table.nbytes // BATCH} bytes each"
        )
        costs = in_pairs(
            "lanes",
            self.pairs,
            self.say,
            lambda pair: {"rows": self._written(pair, table), "commit": self._committed(pair)},
        )
        acquired = self._acquired()
        reads = self._reads()
        commits = self._commits_of_a_day()
        memory = [_stuck_apart(self.scratch / f"stuck-{pair}") for pair in range(self.pairs)]
        return [
            *rows_and_commits("lanes", costs, goal=Goal(1.25, "<= 1.25x")),
            Row(
                what=f"lanes: acquire behind {self.places:,} places",
                unit="ms",
                ours=acquired,
                goal=Goal(1000, "<= 1 s", absolute=True),
            ),
            Row(
                what=f"lanes: read {self.read_places:,} places",
                unit="ms",
                ours=[ours for ours, _ in reads],
                raw=[raw for _, raw in reads],
                goal=Goal(1.1, "<= 1.1x"),
            ),
            Row(
                what=f"lanes: commit behind {self.day:,} places",
                unit="ms",
                ours=[each[OURS].wall for each in commits],
                raw=[each[RAW].wall for each in commits],
                goal=Goal(1.1, "<= 1.1x"),
            ),
            Row(
                what="lanes: memory beside a store that is stuck",
                unit="MiB",
                ours=memory,
                goal=Goal(BUFFER_MEMORY / 2**20 + 64, "<= the buffer and 64 MiB", absolute=True),
            ),
        ]

    def _written(self, pair: int, table: pa.Table) -> dict[str, Cost]:
        """For 1,000 rows."""
        spent = {}
        tables = self.rows // BATCH
        for name in (OURS, RAW) if pair % 2 else (RAW, OURS):
            folder = self.scratch / f"rows-{pair}-{'ours' if name == OURS else 'raw'}"
            wall, cpu = perf_counter(), process_time()
            if name == OURS:
                with sparkonce.writer(folder, name="bench") as writer:
                    for number in range(tables):
                        writer.append(table, position=number)
            else:
                folder.mkdir()
                for number in range(tables):
                    with (folder / f"{number}.parquet").open("wb") as file:
                        parquet.write_table(table, file)
                        os.fsync(file.fileno())
            spent[name] = Cost(
                1e6 * (perf_counter() - wall) / (tables * BATCH), 1e6 * (process_time() - cpu) / (tables * BATCH)
            )
            if name == OURS:
                rows = sum(parquet.read_metadata(_path(file)).num_rows for file in sparkonce.files(folder))
                if rows != tables * BATCH:
                    raise WrongEffect(f"of {tables * BATCH} rows {rows} are there")
        return spent

    def _committed(self, pair: int) -> dict[str, Cost]:
        """The median of COMMITS."""
        folder = self.scratch / f"commit-{pair}"
        objects = FolderObjects(folder)
        writer = Writer(TableLog(objects, "bench"), WriterOptions(linger=0.0))
        writer.append({"n": 0}, position=0).result()
        first = max(folder.glob("_data/*/*/*.parquet"))
        slot = max(folder.glob("_idem/*-b1/*.json"))
        data, body = first.read_bytes(), slot.read_bytes()

        def created(_: int) -> None:
            unique = secrets.token_hex(8)
            run(objects.create(f"raw/{unique}/1-{unique}/0.parquet", data))
            run(objects.create(f"raw-slots/{unique}/1.json", body))

        spent = in_turn({OURS: _appending(writer), RAW: created})
        writer.close()
        return spent

    def _acquired(self) -> list[float]:
        """Milliseconds of each acquisition behind many places."""
        objects = FolderObjects(self.scratch / "many", durable=False)
        laid(objects, self.places)
        times = []
        for pair in range(self.pairs + 1):
            began = perf_counter()
            owner = TableLog(FolderObjects(self.scratch / "many"), "bench").acquire()
            if pair:
                times.append(1000 * (perf_counter() - began))
            if owner.last != self.places:
                raise WrongEffect(f"of {self.places} places the writer saw {owner.last}")
        return times

    def _commits_of_a_day(self) -> list[dict[str, Cost]]:
        """A commit by a writer that has written the places of a day, and by one that has begun; medians of COMMITS."""
        writers = {
            name: Writer(TableLog(FolderObjects(self.scratch / f"day-{name}"), "bench"), WriterOptions(linger=0.0))
            for name in (OURS, RAW)
        }
        works = {name: _appending(writer) for name, writer in writers.items()}
        for number in range(self.day):
            works[OURS](number)
        spent = [in_turn(works) for _ in range(self.pairs)]
        for writer in writers.values():
            writer.close()
        return spent

    def _reads(self) -> list[tuple[float, float]]:
        """Milliseconds of each read of all rows: by the names in the table, and by names that are known."""
        folder = self.scratch / "read"
        objects = FolderObjects(folder, durable=False)
        log = TableLog(objects, "bench")
        log.batches_limit = 1
        writer = Writer(log, WriterOptions(linger=0.0, batch_size=1))
        for number in range(self.read_places):
            writer.append({"n": number})
            if number % 100 == 0:
                writer.flush()
        writer.close()
        log.tidy()
        files = [_path(each) for each in sparkonce.files(folder)]

        def seconds(work: Callable[[], int]) -> float:
            began = perf_counter()
            if (rows := work()) != self.read_places:
                raise WrongEffect(f"of {self.read_places} rows {rows} were read")
            return 1000 * (perf_counter() - began)

        def ours() -> int:
            return int(parquet.read_table([_path(each) for each in sparkonce.files(folder)]).num_rows)

        def raw() -> int:
            return int(parquet.read_table(files).num_rows)

        times = []
        for pair in range(self.pairs + 1):
            found = {
                name: seconds(work)
                for name, work in (((OURS, ours), (RAW, raw)) if pair % 2 else ((RAW, raw), (OURS, ours)))
            }
            if pair:
                times.append((found[OURS], found[RAW]))
        return times

    def dump(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "places": self.places,
            "readPlaces": self.read_places,
            "commitsPerPair": COMMITS,
            "day": self.day,
        }


def in_pairs(
    part: str, pairs: int, say: Callable[[str], None], measured: Callable[[int], Spent]
) -> dict[str, dict[str, list[Cost]]]:
    """What `measured` spent in each pair, after one to warm up; `say` gets a line per pair."""
    all_costs: dict[str, dict[str, list[Cost]]] = {}
    for pair in range(pairs + 1):
        found = measured(pair)
        if pair:
            for what, costs in found.items():
                for name, cost in costs.items():
                    all_costs.setdefault(what, {}).setdefault(name, []).append(cost)
        which = pair_text(pair, pairs)
        told = ", ".join(
            f"{what} {costs[OURS].wall:.2f} / {costs[RAW].wall:.2f} ms ({costs[OURS].cpu:.2f} / {costs[RAW].cpu:.2f} of CPU)"
            for what, costs in found.items()
        )
        say(f"{part}: {which}: {told}")
    return all_costs


def rows_and_commits(part: str, costs: Mapping[str, Mapping[str, list[Cost]]], *, goal: Goal) -> list[Row]:
    """The CPU of rows and the time of commits. goal: of the rows."""
    return [
        Row(
            what=f"{part}: {what}",
            unit=f"{'CPU ' if at == 'cpu' else ''}ms",
            ours=[getattr(each, at) for each in costs[key][OURS]],
            raw=[getattr(each, at) for each in costs[key][RAW]],
            goal=limit,
        )
        for key, what, at, limit in (
            ("rows", "rows, for 1,000", "cpu", goal),
            ("commit", "commit of one row", "wall", Goal(1.3, "<= 1.3x")),
        )
    ]


def _appending(writer: Writer) -> Callable[[int], object]:
    """Appends one row, and waits for its place."""
    return lambda number: writer.append({"n": number}, position=number).result()


def in_turn(works: Mapping[str, Callable[[int], object]], *, warm_up: bool = False) -> dict[str, Cost]:
    """What OURS and RAW cost, COMMITS times each in turn, or once more with `warm_up`; medians. Each work is called with its number."""
    walls: dict[str, list[float]] = {OURS: [], RAW: []}
    cpus: dict[str, list[float]] = {OURS: [], RAW: []}
    for number, name in interleaved((OURS, RAW), COMMITS, warm_up=warm_up):
        wall, cpu = perf_counter(), process_time()
        works[name](number)
        walls[name].append(1000 * (perf_counter() - wall))
        cpus[name].append(1000 * (process_time() - cpu))
    return {name: Cost(median(walls[name]), median(cpus[name])) for name in (OURS, RAW)}


def laid(objects: FolderObjects, places: int) -> None:
    """Writes a lane of as many places, each with one batch without rows."""
    log = TableLog(objects, "bench")
    log.acquire()
    for number in range(1, places + 1):
        place = log.next_place([RowBatch(b"", 0, "")], first=number, position=number)
        if log.commit(place).kind is not AppendKind.APPENDED:
            raise WrongEffect(f"place {number} was refused")


class _StuckObjects(FolderObjects):
    """A folder that answers no create until `answers` is set."""

    answers = threading.Event()

    async def create(self, path: str, data: bytes) -> bool:
        self.answers.wait()
        return await super().create(path, data)


def _stuck(folder: Path) -> float:
    """MiB by which the memory of this process grows while rows are appended until a writer has no room, and its store does not answer."""
    objects = _StuckObjects(folder)
    objects.answers.set()
    writer = Writer(TableLog(objects, "bench"), WriterOptions(max_block=1.0))
    writer.append(_rows(BATCH)).result()
    objects.answers.clear()
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark begins anew
    before = resident(os.getpid())
    with suppress(BufferFull):
        while True:
            writer.append(_rows(BATCH))  # rows of its own, as those of a source are
    grown = resident(os.getpid(), peak=True) - before
    objects.answers.set()
    writer.close()
    return grown


def _stuck_apart(folder: Path) -> float:
    """`_stuck` in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_stuck, (folder,))


def _rows(count: int) -> pa.Table:
    """Rows of about 200 bytes, as a tap has them: two numbers, an instant and texts."""
    texts = [secrets.token_hex(16) for _ in range(count)]
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "amount": pa.array([each / 7 for each in range(count)], pa.float64()),
            "at": pa.array(range(count), pa.timestamp("us", tz="UTC")),
            **{f"text{n}": pa.array([f"{each}{n:013}" for each in texts]) for n in range(4)},
        }
    )


def _path(url: str) -> str:
    return url.removeprefix("file://")
