"""Listing a ledger's keys, and a person's decisions about them."""

from __future__ import annotations

import getpass
import shutil
import sqlite3
import sys
from textwrap import dedent

import pytest

from harness import effort
from harness.desk import FAILS, PATIENCE, WAITS, WRITES, Desk
from harness.eventually import assert_eventually
from sparkonce.blocking import run
from sparkonce.cli.exits import ExitCode
from sparkonce.model.record import HeldReason, Settling, State, Why
from sparkonce.store.protocol import Query, Updated

KEY = "write/numbers@1"


def hold(desk: Desk, reason: HeldReason = HeldReason.PARTIAL) -> None:
    """Holds the key of job.yaml after attempt 1, without an owner."""
    with desk.owned_elsewhere() as (store, record, claim):
        settling = Settling(attempt=1, why=Why.EXITED, note="exit code 1")
        held = record.changed(state=State.HELD, held=reason, note="half of it is there", settling=settling)
        assert isinstance(run(store.update(record, claim, held)), Updated)


def explained(desk: Desk, target: str = KEY) -> dict[str, str]:
    """The JSON of `keys explain`, whose row and evidence the text shows as well."""
    said = desk.here("keys", "explain", target)
    assert said.code == 0, said.err
    told = desk.here("keys", "explain", target, "--json").told
    assert told["row"] in said.out
    assert told["evidence"] in said.out
    return {name: str(value) for name, value in told.items()}


def test_a_finished_key_is_listed_shown_and_told(desk: Desk) -> None:
    """list, show and history agree, by key and by the start of its hash; the folder of the logs exists."""
    desk.job()
    assert desk.here("run", "job.yaml").code == 0
    listed = desk.here("keys", "list")
    assert listed.out.splitlines()[0].split() == ["KEY", "HASH", "GENERATION", "PHASE", "OUTPUTS", "AGE", "EXPIRES"]
    [entry] = desk.here("keys", "list", "--json").told["keys"]
    assert (entry["key"], entry["phase"], entry["outputs"]) == (KEY, "Succeeded", ["numbers"])
    assert entry["keyHash"][:12] in listed.out

    shown = desk.here("keys", "show", entry["keyHash"][:8])
    for text in (KEY, "Succeeded", "1 234 rows", "present", str(desk.folder / "lake" / "numbers"), "greatest"):
        assert text in shown.out
    told = desk.here("keys", "show", KEY, "--json").told
    [attempt] = told["attempts"]
    assert attempt["attempt"] == 1
    assert sorted(path.name for path in (desk.folder / attempt["logs"]).glob("std*")) == ["stderr", "stdout"]

    events = desk.here("keys", "history", KEY, "--json").told["events"]
    assert [event["what"] for event in events][:1] == ["Reserved"]
    assert [event["what"] for event in events][-1:] == ["Finalized"]
    assert "Finalized" in desk.here("keys", "history", KEY).out

    assert desk.here("keys", "list", "--state", "Held", "--json").told["keys"] == []
    assert desk.here("keys", "list", "--state", "held").code == ExitCode.INVALID


def test_explain_what_ended(desk: Desk) -> None:
    """For a finished key, a mismatch (with the job file) and a missing output: the row and the remedy."""
    desk.job()
    before = explained(desk, "job.yaml")
    assert "sparkonce run" in before["unblock"]
    assert desk.here("run", "job.yaml").code == 0
    assert explained(desk).keys() == before.keys()
    assert explained(desk)["row"] == "finalized"
    desk.job(WRITES + "\nprint('another script')")
    told = explained(desk, "job.yaml")
    assert (told["row"], told["paths"]) == ("mismatch", "['application file job.py']")
    assert "another revision or key" in told["unblock"]
    shutil.rmtree(desk.folder / "lake")
    told = explained(desk)
    assert (told["row"], told["unblock"]) == ("result gone", f"sparkonce rerun {KEY}")


def test_explain_what_runs(desk: Desk) -> None:
    """A key that runs elsewhere shows its owner; one without an owner says that sending the job again continues it."""
    desk.job()
    with desk.owned_elsewhere("pid 7 on elsewhere"):
        told = explained(desk)
        assert told["row"].startswith("running elsewhere")
        assert told["owner"] == "pid 7 on elsewhere"
    told = explained(desk)
    assert told["row"] == "stale owner"
    assert told["owner"] == "None"
    assert "send the job again" in told["unblock"]


def test_explain_what_is_held(desk: Desk) -> None:
    """The reason, that the key waits for a person, and the command."""
    desk.job()
    hold(desk)
    told = explained(desk)
    assert (told["row"], told["waitsFor"]) == ("held", "a person")
    assert told["evidence"] == "Partial: half of it is there"
    assert "sparkonce keys resolve" in told["unblock"]
    assert "half of it is there" in desk.here("keys", "show", KEY).out


def test_a_key_that_is_not_there(desk: Desk) -> None:
    """Each command that names a key exits with 2 and says which ledger it read."""
    desk.job()
    for command in (
        ["show"],
        ["history"],
        ["explain"],
        ["forget", "--reason", "x"],
        ["resolve", "--retry", "--reason", "x"],
    ):
        said = desk.here("keys", command[0], "nobody", *command[1:])
        assert said.code == ExitCode.INVALID
        assert said.err.startswith("sparkonce: ")
        assert f"sqlite:///{desk.ledger}" in said.err
    assert desk.here("cancel", "nobody").code == ExitCode.INVALID
    assert "sparkonce run job.yaml" in desk.here("rerun", "job.yaml").err


def test_a_decision_needs_a_reason_and_a_yes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --reason, or without --yes where no terminal can ask, nothing is decided; at a terminal the answer decides."""
    desk.job(FAILS)
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED
    assert "--reason" in desk.here("keys", "forget", KEY, "--yes").err
    said = desk.here("keys", "forget", KEY, "--reason", "x")
    assert said.code == ExitCode.INVALID
    assert "--yes" in said.err

    class Terminal:
        def __init__(self, answer: str) -> None:
            self.answer = answer

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return f"{self.answer}\n"

    monkeypatch.setattr(sys, "stdin", Terminal("n"))
    assert "nothing was changed" in desk.here("keys", "forget", KEY, "--reason", "x").err
    assert len(desk.here("keys", "list", "--json").told["keys"]) == 1
    monkeypatch.setattr(sys, "stdin", Terminal("y"))
    assert desk.here("keys", "forget", KEY, "--reason", "x").code == 0
    assert desk.here("keys", "list", "--json").told["keys"] == []


def test_forget_keeps_history_and_numbers(desk: Desk) -> None:
    """A forgotten key runs anew as the next generation; who forgot it and why stay in its history."""
    desk.job(FAILS)
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED
    key_hash = desk.here("keys", "list", "--json").told["keys"][0]["keyHash"]
    said = desk.here("keys", "forget", KEY, "--reason", "by mistake", "--yes")
    assert (said.code, said.first.partition(";")[0]) == (0, f"forgotten: {KEY}")
    assert desk.attempts() == 0  # the logs are removed with the record
    last = desk.here("keys", "history", key_hash, "--json").told["events"][-1]
    assert (last["what"], last["why"]) == ("Forgotten", "by mistake")
    assert "generation 2 (earlier ones were forgotten)" in desk.here("plan", "job.yaml").out
    assert desk.here("run", "job.yaml", "--json").told["generation"] == 2


def test_resolve_as_failed_and_retry(desk: Desk) -> None:
    """A held key without a commit can be resolved as failed (exit 0, since that was requested), or be granted another attempt, which the
    next run makes."""
    desk.job()
    hold(desk)
    assert "exactly one of" in desk.here("keys", "resolve", KEY, "--reason", "x", "--yes").err
    said = desk.here("keys", "resolve", KEY, "--retry", "--reason", "the disk is mended", "--yes", "--json")
    assert (said.code, said.told["attempt"]) == (0, 2)
    finished = desk.here("run", "job.yaml", "--json")
    assert (finished.code, finished.told["generation"], finished.told["attempt"]) == (0, 1, 2)
    assert [slot.rows for slot in desk.commits()] == [1234]
    assert "not held" in desk.here("keys", "resolve", KEY, "--failed", "--reason", "x", "--yes").err


def test_resolve_as_failed(desk: Desk) -> None:
    """The outputs are fenced first; then the key is Failed, with author and reason."""
    desk.job()
    hold(desk)
    said = desk.here("keys", "resolve", KEY, "--failed", "--reason", "no longer wanted", "--yes", "--json")
    assert (said.code, said.told["phase"], said.told["exitCode"]) == (0, "Failed", 0)
    assert "no longer wanted" in said.told["result"]["failure"]["message"]
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED


def test_purge_removes_what_is_over(desk: Desk) -> None:
    """Only records whose retention is over are purged."""
    desk.job(FAILS, retention={"failed": "1s"})
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED
    desk.job(FAILS, resource="others")
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED
    with desk.store() as store:
        expires = min(entry.expires_at or 0 for entry in run(store.list(Query())).records)
        assert_eventually(lambda: run(store.now()) > expires, 10)
    said = desk.here("keys", "purge")
    assert "purged: write/numbers@1, generation 1 (Failed)" in said.out
    assert [entry["key"] for entry in desk.here("keys", "list", "--json").told["keys"]] == ["write/others@1"]
    assert desk.here("keys", "purge", "--json").told["purged"] == []
    assert desk.attempts() == 1  # the other key's logs stay


DAMAGED_VERBS = {
    "show": ("keys", "show", KEY),
    "show the hash": ("keys", "show", "HASH"),
    "explain": ("keys", "explain", KEY),
    "forget": ("keys", "forget", KEY, "--reason", "it is damaged"),
    "resolve": ("keys", "resolve", KEY, "--retry", "--reason", "so"),
    "rerun": ("rerun", KEY),
    "rerun a file": ("rerun", "job.yaml"),
    "cancel": ("cancel", KEY),
    "cancel a file": ("cancel", "job.yaml"),
    "run": ("run", "job.yaml"),
}


@pytest.mark.parametrize("verb", effort.sampled(list(DAMAGED_VERBS)))
def test_an_unreadable_record_is_never_no_record(desk: Desk, verb: str) -> None:
    """Every command that names the key by its text, its hash or its file says that the record cannot be read, and writes nothing."""
    desk.job()
    assert desk.here("run", "job.yaml").code == 0
    with sqlite3.connect(desk.ledger) as database:
        [[key_hash]] = database.execute("SELECT key_hash FROM records").fetchall()
        database.execute("UPDATE records SET body = substr(body, 1, 100)")
    database.close()
    said = desk.here(*(key_hash[:12] if part == "HASH" else part for part in DAMAGED_VERBS[verb]))
    assert said.code == ExitCode.UNAVAILABLE, said
    assert "cannot be read" in said.err
    assert "no record of" not in said.err
    assert desk.attempts() == len(desk.commits()) == 1


@pytest.mark.parametrize("key", ["", "a b", "käse"])
def test_a_text_that_is_no_key_names_no_record(desk: Desk, key: str) -> None:
    """An empty one, as of a variable that is not set, begins every hash: with one key in the ledger it must not be taken for that one."""
    desk.job()
    assert desk.here("run", "job.yaml").code == 0
    for verb in (
        ("rerun", key),
        ("cancel", key),
        ("keys", "forget", key, "--reason", "clean-up", "--yes"),
        ("keys", "resolve", key, "--failed", "--reason", "so"),
        ("keys", "show", key),
        ("keys", "history", key),
        ("keys", "explain", key),
    ):
        said = desk.here(*verb)
        assert said.code == ExitCode.INVALID, (verb, said)
    assert desk.attempts() == len(desk.commits()) == 1


def requests(desk: Desk) -> list[tuple[str, str, str, int]]:
    """Who requested what and why, from the key's history; `explain` says the same of the newest generation."""
    events = desk.here("keys", "history", KEY, "--json").told["events"]
    asked = [each for each in events if each["what"] in ("Reserved", "Reopened", "StopWanted")]
    newest = max(each["generation"] for each in asked)
    shown = desk.here("keys", "explain", KEY, "--json").told["asked"]
    assert shown == [each for each in asked if each["generation"] == newest]
    return [(each["what"], each["by"], each.get("why", ""), each["generation"]) for each in asked[1:]]


def test_a_rerun_is_recorded_with_person_and_reason(desk: Desk) -> None:
    """After real commands history and explain name who reran and why; a reason that is too long is refused before anything runs."""
    desk.job(FAILS)
    assert desk.start("run", "job.yaml").end().code == ExitCode.FAILED
    again = desk.start("rerun", KEY, "--reason", "the disk\x1b[31m is mended").end()
    assert again.code == ExitCode.FAILED, again.err
    assert requests(desk) == [("Reopened", getpass.getuser(), "the disk\x1b[31m is mended", 2)]
    for shown in (desk.here("keys", "explain", KEY).out, desk.here("keys", "history", KEY).out):
        assert getpass.getuser() in shown
        assert "is mended" in shown
        assert "\x1b[31m" not in shown, "what a person wrote is shown escaped"
    assert "opened again" in desk.here("keys", "explain", KEY).out
    long = desk.here("rerun", KEY, "--reason", "x" * 1001)
    assert (long.code, "1000" in long.err) == (ExitCode.INVALID, True)
    assert len(requests(desk)) == 1


def test_superseding_is_recorded_with_the_person(desk: Desk) -> None:
    """In two terminals: the second job takes the place of the running one. The history names the person at the cancellation and at the new
    generation."""
    desk.job("from pathlib import Path\nPath('started').touch()\n" + dedent(WAITS))
    first = desk.start("run", "job.yaml")
    assert_eventually((desk.folder / "started").exists, PATIENCE)
    desk.job(WRITES, onMismatch="Supersede")
    second = desk.start("run", "job.yaml").end()
    assert second.code == 0, second.err
    assert first.end().code in (ExitCode.CANCELLED, ExitCode.MISMATCH), (
        "it looks before or after the next one is reserved"
    )
    me = getpass.getuser()
    told = requests(desk)
    assert [(what, by, generation) for what, by, _, generation in told] == [("StopWanted", me, 1), ("Reopened", me, 2)]
    assert all("onMismatch: Supersede" in why for _, _, why, _ in told)
    assert "takes the place of generation 1" in desk.here("keys", "explain", KEY).out
    desk.job(FAILS, onMismatch="Supersede")
    assert desk.start("run", "job.yaml").end().code == ExitCode.FAILED
    what, by, why, generation = requests(desk)[-1]
    assert (what, by, generation) == ("Reopened", me, 3), "of a finished one, too"
    assert "takes the place of generation 2" in why
