"""The version in use before this one, at a table with a lane."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import sparkonce
from harness.patience import completed
from harness.previous_version import IN_USE, Version, previous
from lanes.test_trim import log_of, seen, written_to
from sparkonce.blocking import run
from sparkonce.lanes.table_log import TableLog, Trim
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.slotlog.snapshot import write_snapshot

BEFORE_LANES = "d3c09063afd8eb7f53858acd5a08461c09cd0649"
"""The last commit that does not know lanes."""
BEFORE_KEYS = "86c52b95b98ee473e449b26d0ce330d9c5dc6da6"
"""The last commit that does not know lanes with keys."""
BEFORE_TRIM = "591d8f84e9b6733c4ad8653b60ac34e41418cedd"
"""The last commit that does not know lanes that were trimmed."""
WRITE = "import sys, sparkonce; sparkonce.writer(sys.argv[1], name='tap').append({'n': 1}).result()"
WRITE_ON = "import sys, sparkonce\nwith sparkonce.writer(sys.argv[1], name='tap') as tap: tap.append({'n': 1})"
READ = "import sys; from sparkonce.sink.slotlog.snapshot import Table; print(len(Table(sys.argv[1]).files()))"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return previous(tmp_path_factory.mktemp("previous"))


@pytest.mark.parametrize("snapshot", [False, True])
def test_the_version_before_reads_the_table_or_refuses_it_by_name(
    tmp_path: Path, before: Version, snapshot: bool
) -> None:
    """One that does not know lanes refuses, whether or not the readers' snapshot has their slots; a later one reads all rows."""
    table = tmp_path / "t"
    with sparkonce.writer(table, name="tap", linger=0.0) as writer:
        for n in range(70):
            writer.append({"n": n})
            writer.flush()
    if snapshot:
        TableLog(FolderObjects(table), "tap").tidy()
        assert list((table / "_idem" / "_snapshot").iterdir())
    done = completed([sys.executable, "-c", READ, str(table)], 60, env={**os.environ, **before.environment})
    if IN_USE == BEFORE_LANES:
        assert "has schema 9 and this version reads up to 8; upgrade sparkonce" in done.stderr
    else:
        assert done.stdout == "70\n"


def test_the_version_before_writes_no_rows_without_keys(tmp_path: Path, before: Version) -> None:
    """One that does not know keys refuses the lane, and a later one takes them from the lane."""
    table = tmp_path / "t"
    with sparkonce.writer(table, name="tap", keys=["id"]) as writer:
        writer.append({"id": 1})
    done = completed([sys.executable, "-c", WRITE, str(table)], 60, env={**os.environ, **before.environment})
    if IN_USE == BEFORE_KEYS:
        assert "has schema 10 and this version reads up to 9; upgrade sparkonce" in done.stderr
    else:
        assert "no column id, which is one of the lane's keys" in done.stderr
    assert len(sparkonce.files(table)) == 1


@pytest.mark.parametrize("snapshot", [False, True])
def test_the_version_before_shows_no_row_that_was_trimmed(tmp_path: Path, before: Version, snapshot: bool) -> None:
    """One that does not know it refuses the table, and a later one reads what is left. Either writes on in the lane."""
    table = tmp_path / "t"
    written_to(table, 12)
    log = log_of(table)
    log.trim(Trim(2, 1, 7))
    log.remove_trimmed()
    if snapshot:
        assert run(write_snapshot(FolderObjects(table), after=0))
    done = completed([sys.executable, "-c", READ, str(table)], 60, env={**os.environ, **before.environment})
    if IN_USE == BEFORE_TRIM:
        assert "has schema 11 and this version reads up to 10; upgrade sparkonce" in done.stderr
    else:
        assert done.stdout == "5\n"
    done = completed([sys.executable, "-c", WRITE_ON, str(table)], 60, env={**os.environ, **before.environment})
    assert done.returncode == 0, done.stderr
    assert seen(table) == [1, 8, 9, 10, 11, 12]
