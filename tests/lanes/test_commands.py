"""`sparkonce lanes`, and what audit and sweep say of a table with lanes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import sparkonce
from harness.lane_log import numbers_of
from sparkonce.blocking import run
from sparkonce.cli.app import main
from sparkonce.cli.exits import ExitCode
from sparkonce.errors import InvalidInput, LaneRetired, WriterFenced
from sparkonce.store.open import open_store


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with two lanes, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARKONCE_STORE", f"sqlite:///{tmp_path}/ledger.db")
    for name in ("tap-7", "b/tap"):
        with sparkonce.writer("lake", name=name, linger=0.0) as writer:
            for n in range(3):
                writer.append({"n": n}, position={"line": n})
                writer.flush()
    return tmp_path / "lake"


def test_lanes_are_listed_with_what_they_wrote(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people and for programs."""
    assert main(["lanes", "list", "lake"]) == ExitCode.SUCCEEDED
    said = capsys.readouterr().out
    assert [line.split()[:4] for line in said.splitlines()[1:]] == [
        ["b/tap", "3", '{"line":', "2}"],
        ["tap-7", "3", '{"line":', "2}"],
    ]
    assert main(["lanes", "list", "lake", "--json"]) == ExitCode.SUCCEEDED
    found = json.loads(capsys.readouterr().out)["lanes"]
    assert [(each["name"], each["last"], each["position"]) for each in found] == [
        ("b/tap", 3, {"line": 2}),
        ("tap-7", 3, {"line": 2}),
    ]


def test_the_places_of_a_lane_are_shown(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The claim of the writer, and a place for each batch."""
    assert main(["lanes", "show", "lake", "tap-7", "--json"]) == ExitCode.SUCCEEDED
    places = json.loads(capsys.readouterr().out)["places"]
    assert [(each["first"], each["last"], each["rows"]) for each in places] == [
        (1, 0, 0),
        (1, 1, 1),
        (2, 2, 1),
        (3, 3, 1),
    ]
    assert main(["lanes", "show", "lake", "tap-7"]) == ExitCode.SUCCEEDED
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["g1-b0", "-", "0"],
        ["g1-b1", "1", "1"],
        ["g1-b2", "2", "1"],
        ["g1-b3", "3", "1"],
    ]


def test_a_range_is_for_one_job(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is what is read; the next range follows it, and where nothing follows nothing is printed."""
    taken: list[int] = []
    after, found = 0, ""
    for _ in range(3):
        assert main(["lanes", "range", "lake", "tap-7", "--after", str(after), "--most", "2"]) == ExitCode.SUCCEEDED
        found = capsys.readouterr().out.strip()
        if found:
            taken += [
                n for file in sparkonce.files("lake", batches=found) for n in numbers_of(file.removeprefix("file://"))
            ]
            after = int(found.rpartition("-")[2])
    assert (taken, after, found) == ([0, 1, 2], 3, "")


@pytest.mark.parametrize(
    "text", ["tap-7", "tap-7@", "tap-7@3", "tap-7@0-2", "tap-7@3-2", "@1-2", "tap-7@1-2x", "tap-7@1-" + "9" * 30]
)
def test_what_is_no_range_is_refused(lake: Path, text: str) -> None:
    """With what it must be."""
    with pytest.raises(InvalidInput, match=r"must be a range as `sparkonce lanes range` prints it: NAME@FIRST-LAST$"):
        sparkonce.files(lake, batches=text)


@pytest.mark.parametrize("text", ["tap-7@3-4", "tap-8@1-1", "tap-7@4-9"])
def test_a_range_that_is_not_wholly_there_is_refused(lake: Path, text: str) -> None:
    """A job never takes a part of what its revision says."""
    with pytest.raises(InvalidInput, match=rf"^\S+lake has \d of the \d batches {text}; `sparkonce lanes show"):
        sparkonce.files(lake, batches=text)


def test_a_lane_is_retired(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its writer is fenced, and it takes no other; its rows stay, and a second time says so."""
    writer = sparkonce.writer("lake", name="tap-7", linger=0.0)
    assert main(["lanes", "retire", "lake", "tap-7"]) == ExitCode.SUCCEEDED
    assert "is retired after 3 batches; its rows stay" in capsys.readouterr().out
    writer.append({"n": 9})
    with pytest.raises(WriterFenced):
        writer.close()
    with pytest.raises(LaneRetired, match=r"^the lane tap-7 of file://\S+ was retired by \S+; write to another name$"):
        sparkonce.writer("lake", name="tap-7")
    assert main(["lanes", "retire", "lake", "tap-7"]) == ExitCode.INVALID
    assert "was retired by" in capsys.readouterr().err
    assert len(sparkonce.files("lake")) == 6


def test_a_lane_is_retired_by_a_user_without_a_name(
    lake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run as a uid that no passwd entry names; the lane then says the uid."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert main(["lanes", "retire", "lake", "tap-7"]) == ExitCode.SUCCEEDED
    assert "is retired after 3 batches" in capsys.readouterr().out
    assert main(["lanes", "retire", "lake", "tap-7"]) == ExitCode.INVALID
    assert f"was retired by uid {os.getuid()}" in capsys.readouterr().err


def test_a_lane_that_is_not_there_is_named(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that lists those that are; that command works."""
    for command in ("show", "retire"):
        assert main(["lanes", command, "lake", "tap-8"]) == ExitCode.INVALID
        assert "has no lane tap-8; `sparkonce lanes list lake` shows those that it has" in capsys.readouterr().err
    assert main(["lanes", "list", "elsewhere"]) == ExitCode.SUCCEEDED
    assert "has no lane; `sparkonce.writer('elsewhere', name=NAME)` makes one" in capsys.readouterr().out


def test_audit_finds_no_defect_in_lanes_and_finds_those_that_there_are(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No ledger knows a lane, and none has to; a place that was deleted is missed."""
    ledger = f"sqlite:///{lake.parent}/ledger.db"
    run(open_store(ledger).close())
    assert main(["audit", "lake", "--store", ledger]) == ExitCode.SUCCEEDED, capsys.readouterr().out
    capsys.readouterr()
    place = min((lake / "_idem").glob("*-lane-g1-b2"))
    for slot in place.iterdir():
        slot.unlink()
    assert main(["audit", "lake"]) == ExitCode.FAILED
    assert "missing batch" in capsys.readouterr().out


def test_sweep_removes_what_a_fenced_writer_had_uploaded(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of a place that another writer took are unreachable; committed ones stay."""
    zombie = sparkonce.writer("lake", name="tap-7", linger=0.0)
    with sparkonce.writer("lake", name="tap-7", linger=0.0) as owner:
        owner.append({"n": 10}, position={"line": 10})
    zombie.append({"n": 10}, position={"line": 10})
    with pytest.raises(WriterFenced):
        zombie.close()
    before = sparkonce.files("lake")
    assert main(["sweep", "lake"]) == ExitCode.SUCCEEDED
    assert "1 folder" in capsys.readouterr().out
    assert sparkonce.files("lake") == before
    assert all(Path(each.removeprefix("file://")).exists() for each in before)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["range", "kafka://127.0.0.1:1/orders", "tap"], "is a topic of Kafka, and this is for the lanes of a table"),
        (["retire", "kafka://127.0.0.1:1/orders", "tap"], "is a topic of Kafka, and this is for the lanes of a table"),
        (["list", "kafka://127.0.0.1/orders"], "'127.0.0.1' is not HOST:PORT"),
        (
            ["list", "lake", "--command-config", "x"],
            "--command-config is for a topic of Kafka, and lake is a table; leave it out",
        ),
        (["show", "lake", "tap-7", "--command-config", "x"], "is for a topic of Kafka"),
        (["list", "kafka://127.0.0.1:1/orders", "--command-config", "none"], "--command-config none cannot be read"),
        (
            ["list", "kafka://127.0.0.1:1/orders", "--command-config", "bad"],
            "--command-config bad: line 2 is not NAME=VALUE",
        ),
        (
            ["list", "kafka://127.0.0.1:1/orders", "--command-config", "acks"],
            "client sets acks, which the lane sets itself",
        ),
    ],
)
def test_what_a_command_does_not_take_is_one_sentence(
    lake: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """Topics where only tables have what is asked, settings where nothing has them, and files that are none."""
    (lake.parent / "bad").write_text("# settings\nclient.id\n")
    (lake.parent / "acks").write_text("acks=0\n")
    assert main(["lanes", *words]) == ExitCode.INVALID
    assert said in capsys.readouterr().err
