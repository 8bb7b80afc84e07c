"""Opening a store by the address that a user writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkonce.blocking import run
from sparkonce.errors import InvalidInput
from sparkonce.store.open import ENVIRONMENT, default_url, is_remote, open_store, redacted
from sparkonce.store.sqlite.store import SqliteStore


@pytest.mark.parametrize(
    "spelling", ["sqlite:///{}", "SQLite:///{}", "{}", "~/ledger.db", "ledger.db", "sqlite:///ledger.db"]
)
def test_a_ledger_has_several_spellings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    """A file is opened by URL or by path, absolute, relative or from the home folder; its own URL is absolute and opens it again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store(spelling.format(tmp_path / "ledger.db"))
    assert isinstance(store, SqliteStore)
    assert store.path == (tmp_path / "ledger.db").resolve()
    assert store.url == f"sqlite:///{store.path}"
    again = open_store(store.url)
    assert isinstance(again, SqliteStore)
    assert again.path == store.path
    run(store.close())
    run(again.close())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd:host:2379", "is no store"),
        ("postgresql://ann:12/secret@host/db", "cannot be right"),
        ("postgresql://ann:pa@secret@host/db", "cannot be right"),
        ("postgresql://ann@host:secret/db", "cannot be right"),
        ("postgresql://host/db?pasword=secret", "cannot be read"),
        ("postgresql://[secret", "cannot be read"),
        ("redis://localhost", "is no store; use sqlite:///PATH, a plain path, "),
        ("memory:", "is no store"),
        ("sqlite://ledger.db", "is no store"),
        ("sqlite:ledger.db", "is no store"),
        ("file:///tmp/ledger.db", "is no store"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("", "names no file"),
    ],
)
def test_what_is_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, says: str) -> None:
    """One sentence lists the valid forms, without repeating a password, and nothing is created."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=says) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_the_default_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an address the ledger is SPARKONCE_STORE, else one file in the user's data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert default_url() == f"sqlite:///{tmp_path}/sparkonce/ledger.db"
    store = open_store()
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path.resolve() / "sparkonce" / "ledger.db"
    run(store.close())
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "named.db"))
    named = open_store()
    assert isinstance(named, SqliteStore)
    assert named.path == tmp_path.resolve() / "named.db"
    run(named.close())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("etcd://ann:pw@a:2379,b:2379/x?token=1", "etcd://a:2379,b:2379/x"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("sqlite:////data/a?b@c.db", "sqlite:////data/a"),
        ("plain/path@home", "plain/path@home"),
    ],
)
def test_what_may_be_printed(url: str, shown: str) -> None:
    """User, password and query are left out."""
    assert redacted(url) == shown


@pytest.mark.parametrize(
    ("url", "install", "remote"),
    [
        ("etcd://a:2379", None, True),
        ("postgresql://host/db", "prod", True),
        ("POSTGRES://host/db", "prod", True),
        ("postgresql://host/db", "local", False),
        ("postgresql://host/db", None, False),
        ("postgresql://host/db", "", False),
        ("sqlite:///ledger.db", "prod", False),
        ("ledger.db", "prod", False),
    ],
)
def test_whose_ledger_it_is(url: str, install: str | None, remote: bool) -> None:
    """An etcd is a cluster's; a PostgreSQL is, where an install is named that is not that of commands; a file never is."""
    assert is_remote(url, install) is remote
