"""The address of an etcd store, as a user writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkonce.blocking import run
from sparkonce.errors import InvalidInput
from sparkonce.etcd.client import Tls
from sparkonce.store.etcd.address import PASSWORD, parsed
from sparkonce.store.etcd.store import EtcdStore
from sparkonce.store.open import open_blocking, open_store
from sparkonce.store.sqlite.store import SqliteStore

SECRET = {PASSWORD: "secret"}


@pytest.mark.parametrize(
    ("url", "environment", "options"),
    [
        ("etcd://a:2379", {}, {"endpoints": ["a:2379"], "tls": None}),
        ("etcd://a:1,b:2,[::1]:3/", {}, {"endpoints": ["a:1", "b:2", "[::1]:3"], "tls": None}),
        ("etcd://a:1?user=ann", SECRET, {"endpoints": ["a:1"], "tls": None, "user": "ann", "password": "secret"}),
        ("etcd://a:1?tls=true", {}, {"endpoints": ["a:1"], "tls": Tls()}),
        (
            "etcd://a:1?ca=/c%20a&cert=x&key=y&server-name=etcd",
            {},
            {"endpoints": ["a:1"], "tls": Tls(ca=Path("/c a"), cert=Path("x"), key=Path("y"), server_name="etcd")},
        ),
        (
            "etcd://a:1?ttl=5&timeout=0.5&quota=99",
            {},
            {"endpoints": ["a:1"], "tls": None, "ttl": 5, "timeout": 0.5, "quota": 99},
        ),
    ],
)
def test_what_an_address_says(url: str, environment: dict[str, str], options: dict[str, Any]) -> None:
    """The address has the endpoints, with files and numbers as its options; the password comes from the environment only."""
    assert parsed(url, environment) == options


@pytest.mark.parametrize(
    ("url", "environment", "says"),
    [
        ("etcd://ann:secret@a:1", {}, "write \\?user=NAME and set SPARKONCE_ETCD_PASSWORD"),
        ("etcd://", {}, "write etcd://HOST:PORT"),
        ("etcd://a:1/secret", {}, "write etcd://HOST:PORT"),
        ("etcd://[secret", {}, "write etcd://HOST:PORT"),
        ("etcd://a:1?password=secret", {}, "no option 'password'; it knows ca, "),
        ("etcd://a:1?user=ann", {}, "needs both a user and a password"),
        ("etcd://a:1", SECRET, "needs both a user and a password"),
        ("etcd://a:1?cert=x", {}, "cert=FILE and key=FILE"),
        ("etcd://a:1?tls=maybe", {}, "true or false"),
        ("etcd://a:1?tls=false&ca=x", {}, "remove one of them"),
        ("etcd://a:1?ttl=1", {}, "from 2 to 3600"),
        ("etcd://a:1?ttl=soon", {}, "from 2 to 3600"),
        ("etcd://a:1?timeout=nan", {}, "from 0.1 to 60"),
    ],
)
def test_an_address_that_cannot_work(url: str, environment: dict[str, str], says: str) -> None:
    """One sentence says what to write instead, without repeating a secret; a misspelt option is an error."""
    with pytest.raises(InvalidInput, match=says) as refused:
        parsed(url, environment)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_etcd_store_is_opened_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd is not contacted before the first verb, and the store's own url shows only its endpoints."""
    monkeypatch.setenv(PASSWORD, "secret")
    store = open_store("ETCD://a:1,b:2?user=ann", install="prod")
    assert isinstance(store, EtcdStore)
    assert store.url == "etcd://a:1,b:2"
    monkeypatch.delenv(PASSWORD)
    blocking = open_blocking("etcd://a:1")
    assert blocking.url == "etcd://a:1"
    run(blocking.close())
    local = open_blocking(str(tmp_path / "ledger.db"))
    assert isinstance(local, SqliteStore)  # its calls block, so it needs no thread around it
    run(local.close())
    with pytest.raises(InvalidInput, match="host:port"):
        open_store("etcd://a")
