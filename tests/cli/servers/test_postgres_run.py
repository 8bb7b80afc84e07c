"""`sparkonce run` with its ledger in PostgreSQL."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from harness.desk import Desk
from harness.postgres import PASSWORD, URL_PASSWORD, server


@pytest.fixture
def temporary(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of commands; they have an empty ledger, whose address only an option tells them."""
    with server().connect() as connection:
        connection.execute("DROP SCHEMA IF EXISTS sparkonce_local CASCADE")
    monkeypatch.delenv("SPARKONCE_STORE")
    monkeypatch.setenv("SPARKONCE_POSTGRES_TIMEOUT", "30")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_driver_gets_the_password_of_the_ledger(desk: Desk, temporary: Path) -> None:
    """The password is in the address that was given to --store. It is neither printed nor in any file of the attempt."""
    desk.job()
    said = desk.here("run", "job.yaml", "--store", server().url)
    assert said.code == 0, said.out
    (attempts,) = temporary.iterdir()
    kept = [path.read_text() for path in attempts.rglob("*") if path.is_file()]
    assert len(kept) > 3
    assert not [text for text in (said.out, said.err, *kept) if PASSWORD in text or URL_PASSWORD in text]


def test_a_command_that_starts_nothing_leaves_no_folder(desk: Desk, temporary: Path) -> None:
    """A command that only reads makes no folder for attempts."""
    assert desk.here("keys", "list", "--store", server().url).code == 0
    assert list(temporary.iterdir()) == []
