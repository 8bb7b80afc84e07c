"""`sparkonce lanes trim`: whole parts of a lane's log that finished jobs took are hidden from readers, and their files deleted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sparkonce
from audit.scene import Scene
from harness.lane_log import numbers_of
from harness.patience import completed
from lanes.test_table_log import batch, written
from sparkonce.blocking import run
from sparkonce.cli.app import main
from sparkonce.cli.exits import ExitCode
from sparkonce.errors import FilesMissing, InvalidInput
from sparkonce.lanes.protocol import AppendKind
from sparkonce.lanes.sender import WriterOptions
from sparkonce.lanes.table_log import TableLog, Trim
from sparkonce.lanes.writer import Writer
from sparkonce.model.record import Outcome
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.slotlog import source
from sparkonce.sink.slotlog.snapshot import Table, decided, write_snapshot
from sparkonce.store.open import open_store

PLACES = 4
"""Of one part of the log here: of the first one a claim and the batches 1 to 3, of each later one four batches."""
COUNT = 12
LONG = 60.0


def log_of(table: Path, name: str = "tap") -> TableLog:
    return TableLog(FolderObjects(table.absolute(), durable=False), name, places=PLACES)


def written_to(table: Path, count: int, name: str = "tap") -> None:
    """Rows up to this number, a batch and a place for each."""
    with Writer(log_of(table, name), WriterOptions(linger=0.0)) as writer:
        for n in range((writer.position or 0) + 1, count + 1):
            writer.append({"n": n}, position=n).result(LONG)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A lane with the batches 1 to 12, in the parts 1-3, 4-7, 8-11 and 12."""
    written_to(tmp_path / "t", COUNT)
    return tmp_path / "t"


def seen(table: Path) -> list[int]:
    return sorted(n for file in Table(table).files() for n in numbers_of(file))


def files_in(table: Path) -> int:
    """Files of rows, whether or not readers see them."""
    return len(list(table.rglob("*.parquet")))


@pytest.mark.parametrize(
    ("taken", "last"), [(0, None), (2, None), (3, 3), (6, 3), (7, 7), (10, 7), (11, 11), (12, 11), (99, 11)]
)
def test_only_whole_parts_that_were_taken_are_removed(table: Path, taken: int, last: int | None) -> None:
    """A part with one batch that was not taken stays, and so does the one that is being written. The lane goes on as it was."""
    log = log_of(table)
    found = log.trimmable(taken)
    assert (found and (found.first, found.last)) == (last and (1, last))
    if found is None:
        return
    log.trim(found)
    assert seen(table) == list(range(found.last + 1, COUNT + 1))
    assert files_in(table) == COUNT, "it only hides"
    assert log.remove_trimmed() > 0
    assert (files_in(table), log.remove_trimmed()) == (COUNT - found.last, 0)
    assert log.trimmed() == found.last
    written_to(table, COUNT + 8)
    assert seen(table) == list(range(found.last + 1, COUNT + 9))
    assert [each.position for each in log.entries() if each.rows] == list(range(1, COUNT + 9))


def test_a_second_time_goes_on_where_the_first_ended(table: Path) -> None:
    """Nothing is trimmed twice, and an earlier end takes nothing back."""
    log = log_of(table)
    log.trim(Trim(1, 1, 3))
    assert log.trimmable(3) is None
    assert log.trimmable(11) == Trim(3, 4, 11)
    log.trim(Trim(3, 4, 11))
    log.trim(Trim(2, 4, 7))
    assert (log.trimmed(), seen(table)) == (11, [12])


def test_a_lane_that_was_retired_can_be_removed_as_a_whole(table: Path) -> None:
    """Its last part has ended, too. Another lane of the table keeps its rows."""
    written_to(table, 2, name="other")
    log = log_of(table)
    log.retire(by="test")
    found = log.trimmable(COUNT)
    assert found is not None
    log.trim(found)
    log.remove_trimmed()
    assert (seen(table), files_in(table)) == ([1, 2], 2)


def test_a_writer_that_wakes_in_a_part_that_is_gone_writes_nothing(tmp_path: Path) -> None:
    """It had uploaded its rows when another writer took the lane and ended that part, which was then removed. It is fenced, as ever: the
    places are kept."""
    zombie = log_of(tmp_path)
    zombie.acquire()
    place = zombie.next_place([batch(100)], first=1, position=100)
    zombie.upload(place, 0)
    written_to(tmp_path, COUNT)
    log = log_of(tmp_path)
    found = log.trimmable(COUNT)
    assert found is not None
    log.trim(found)
    log.remove_trimmed()
    assert written(zombie, place).kind is AppendKind.FENCED
    assert seen(tmp_path) == list(range(found.last + 1, COUNT + 1))
    log.remove_trimmed()
    assert seen(tmp_path) == list(range(found.last + 1, COUNT + 1))


def test_readers_take_what_is_left_from_a_snapshot_too(table: Path) -> None:
    """Whether it was written before or after."""
    log = log_of(table)
    assert run(write_snapshot(log._objects, after=0))
    log.trim(Trim(2, 1, 7))
    assert seen(table) == [8, 9, 10, 11, 12]
    assert run(write_snapshot(log._objects, after=0))
    assert run(decided(log._objects)).unlisted == 0
    assert seen(table) == [8, 9, 10, 11, 12]
    log.remove_trimmed()
    assert seen(table) == [8, 9, 10, 11, 12]


def test_a_range_that_was_removed_is_refused(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says from where on there are ranges, and that one works."""
    log_of(table).trim(Trim(1, 1, 3))
    with pytest.raises(InvalidInput, match=r"has 2 of the 5 batches tap@1-5"):
        sparkonce.files(table, batches="tap@1-5")
    assert main(["lanes", "range", str(table), "tap"]) == ExitCode.INVALID
    assert "the batches tap@1-3 of" in (said := capsys.readouterr().err) and "ask for those --after 3" in said
    assert main(["lanes", "range", str(table), "tap", "--after", "3"]) == ExitCode.SUCCEEDED
    found = capsys.readouterr().out.strip()
    assert found == "tap@4-12"
    assert len(sparkonce.files(table, batches=found)) == 9
    assert main(["lanes", "show", str(table), "tap"]) == ExitCode.SUCCEEDED
    assert "batches up to 3 were trimmed: readers see them no longer" in capsys.readouterr().out


def test_a_reader_that_comes_in_between_reads_what_is_left(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had listed the table when a part was removed, and finds its files gone: it looks again. A file that is missing without that is
    still an error."""
    looks = []

    def now_before(each: Table) -> Any:
        looks.append(each)
        found = listed(each)
        if len(looks) == 1:
            log_of(table).trim(Trim(1, 1, 3))
            log_of(table).remove_trimmed()
        return found

    listed = Table.now
    monkeypatch.setattr(Table, "now", now_before)
    assert len(sparkonce.files(table)) == 9
    next(table.rglob("*.parquet")).unlink()
    with pytest.raises(FilesMissing, match=r"1 committed file\(s\) of \S+ are missing"):
        sparkonce.files(table)


def test_a_stream_begins_after_what_was_removed_or_says_that_it_missed_it(table: Path) -> None:
    """A new query plans what is left. One whose checkpoint is behind would leave rows out, and is refused instead."""
    log_of(table).trim(Trim(2, 1, 7))
    place, schema = str(table), '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
    begin, end = source._trimmed(place, None), source._latest(place, None)
    assert (begin, end) == ({"tap": 7}, {"tap": 12})
    planned = source._planned(place, None, begin, end, schema)
    assert sum(file["rows"] for _, files in planned for file in files) == 5
    with pytest.raises(
        InvalidInput, match=r"the batches tap@6-7 of .* were trimmed before this query read them; start it with a new"
    ):
        source._planned(place, None, {"tap": 5}, end, schema)
    log = log_of(table)
    log.retire(by="test")
    found = log.trimmable(COUNT)
    assert found is not None
    log.trim(found)
    assert source._latest(place, "tap") == source._trimmed(place, "tap") == {"tap": 12}


def test_the_rows_of_a_lane_with_keys_stay(tmp_path: Path) -> None:
    """The last row of a key may be in any part."""
    with sparkonce.writer(tmp_path / "t", name="tap", keys=["n"]) as writer:
        writer.append({"n": 1})
    with pytest.raises(
        InvalidInput, match="has the keys n, and the last row of a key may be in any of its batches, so none can be"
    ):
        log_of(tmp_path / "t").trimmable(1)


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A ledger, and in the working directory a lane as in `table`."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("SPARKONCE_STORE", url)
    written_to(tmp_path / "t", COUNT)
    return Scene(tmp_path, open_store(url))


def took(jobs: Scene, batches: str, load: str = "load/", outcome: Outcome = Outcome.SUCCEEDED) -> None:
    """A job of the lane's ranges that has ended."""
    jobs.finalize(jobs.granted(f"{load}{batches}", "loaded"), outcome)


def trim(*more: str) -> int:
    return main(["lanes", "trim", "t", "tap", "--taken-by", "load/", *more])


def test_what_finished_jobs_took_is_removed(jobs: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranges without a gap from the first batch on, in any order. A failed job took nothing, nor did one of another lane or with another
    key. A dry run says the same and removes nothing."""
    for batches in ("tap@4-5", "tap@1-4", "tap@6-8", "tap@10-12", "other@9-9", "b/tap@9-9", "tap@9-9x"):
        took(jobs, batches)
    took(jobs, "tap@9-9", outcome=Outcome.FAILED)
    took(jobs, "tap@9-9", load="reload/")
    assert trim("--dry-run") == ExitCode.SUCCEEDED
    assert "would remove the batches tap@1-7 of" in capsys.readouterr().out
    assert seen(Path("t")) == list(range(1, 13))
    assert trim() == ExitCode.SUCCEEDED
    said = capsys.readouterr().out
    assert "the batches up to 8 were taken by load/tap@..." in said
    assert "removed the batches tap@1-7 of" in said and "of files" in said
    assert (seen(Path("t")), files_in(Path("t"))) == ([8, 9, 10, 11, 12], 5)
    assert trim() == ExitCode.SUCCEEDED
    assert "there is nothing to remove" in capsys.readouterr().out
    took(jobs, "tap@8-9")
    assert trim() == ExitCode.SUCCEEDED
    assert "the batches up to 12 were taken by load/tap@..." in (said := capsys.readouterr().out)
    assert "removed the batches tap@8-11 of" in said
    assert main(["audit", "t"]) == ExitCode.SUCCEEDED
    assert "no defect" in capsys.readouterr().out


def test_all_that_read_the_lane_must_have_taken_it(jobs: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two, the one that is behind decides; one that has taken nothing keeps everything, and is named."""
    took(jobs, "tap@1-12")
    took(jobs, "tap@1-5", load="rollup/")
    assert trim("--taken-by", "archive/") == ExitCode.SUCCEEDED
    assert "no job with a key like archive/tap@1-100 has succeeded" in capsys.readouterr().out
    assert seen(Path("t")) == list(range(1, 13))
    assert trim("--taken-by", "rollup/") == ExitCode.SUCCEEDED
    assert seen(Path("t")) == list(range(4, 13))


POINTS = (
    "lanes.trim.before",
    "sink.slots.create.before",
    "sink.slots.create.after",
    "lanes.trim.after",
    "lanes.trim.removed",
)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_command_that_is_killed_leaves_all_or_none_to_readers(jobs: Scene, point: str) -> None:
    """Never a part of what it removes. Run again, it finishes, and the lane goes on."""
    took(jobs, "tap@1-9")
    command = [sys.executable, "-m", "sparkonce", "lanes", "trim", "t", "tap", "--taken-by", "load/"]
    killed = subprocess.run(
        command, env={**os.environ, "SPARKONCE_FAILPOINTS": f"{point}=kill"}, check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    whole, rest = list(range(1, 13)), list(range(8, 13))
    assert seen(Path("t")) == (whole if point in POINTS[:2] else rest)
    done = completed(command, LONG)
    assert done.returncode == 0, done.stderr
    assert (seen(Path("t")), files_in(Path("t"))) == (rest, 5)
    written_to(Path("t"), 14)
    assert seen(Path("t")) == [*rest, 13, 14]


@pytest.mark.slow
def test_commands_side_by_side_remove_it_once(jobs: Scene) -> None:
    """Three processes: all end well, and the next readers see what one of them would have left."""
    took(jobs, "tap@1-9")
    command = [sys.executable, "-m", "sparkonce", "lanes", "trim", "t", "tap", "--taken-by", "load/"]
    several = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(3)]
    ends = [(each.communicate(timeout=LONG)[0], each.returncode) for each in several]
    assert {code for _, code in ends} == {0}, ends
    assert (seen(Path("t")), files_in(Path("t"))) == (list(range(8, 13)), 5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["t", "none", "--taken-by", "load/"], "has no lane none; `sparkonce lanes list t` shows those that it has"),
        (["kafka://127.0.0.1:1/t", "tap", "--taken-by", "load/"], "is a topic of Kafka"),
    ],
)
def test_what_trim_does_not_take_is_one_sentence(
    jobs: Scene, capsys: pytest.CaptureFixture[str], words: list[Any], said: str
) -> None:
    """Lanes that are not there, and topics, which have no parts."""
    assert main(["lanes", "trim", *words]) == ExitCode.INVALID
    assert said in capsys.readouterr().err
