"""The attempts' folders beside a ledger: when they are removed, and when `doctor` reports them."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

from harness.desk import Desk
from sparkonce.blocking import run
from sparkonce.cli.attempts import remove_logs
from sparkonce.model.record import HeldReason, Record, Settling, State, Why


def folder(attempts: Path, record: Record, *, generation: int = 1, attempt: int = 1) -> Path:
    """A folder as a launcher leaves it, with its lock released."""
    path = attempts / f"so-{record.key_hash[:20]}-g{generation}-a{attempt}"
    path.mkdir(parents=True)
    (path / "lock").touch()
    (path / "application.json").write_text(json.dumps({"nonce": "n", "uid": "u"}))
    return path


def test_logs_go_with_their_record_and_no_others(desk: Desk) -> None:
    """Folders of later generations stay, and so does that of an attempt of which a process still runs."""
    desk.job()
    attempts = Path(f"{desk.ledger}.attempts")
    with desk.owned_elsewhere() as (_, record, _):
        old, alive = folder(attempts, record), folder(attempts, record, attempt=2)
        later = folder(attempts, record, generation=2)
        with (alive / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            remove_logs(attempts, record)
            assert (old.exists(), alive.exists(), later.exists()) == (False, True, True)
        remove_logs(attempts, record)
        assert (alive.exists(), later.exists()) == (False, True)


def test_doctor_names_an_attempt_that_should_not_run(desk: Desk) -> None:
    """A process of an attempt runs although its record has ended: `doctor` reports it, and how to stop it."""
    desk.job()
    with desk.owned_elsewhere() as (store, record, claim):
        settling = Settling(attempt=1, why=Why.LOST)
        run(store.update(record, claim, record.changed(state=State.HELD, held=HeldReason.UNKNOWN, settling=settling)))
        path = folder(Path(f"{desk.ledger}.attempts"), record)
    (path / "process").write_text("4242 (sh) S 1\nboot\n")
    with (path / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        found = [check for check in desk.here("doctor", "--json").told["checks"] if check["what"] == "attempt"]
    [check] = found
    assert not check["ok"]
    assert str(path) in check["said"]
    assert "is Held" in check["said"]
    assert check["todo"].endswith("kill -- -4242")
