"""From the address of a store, as a person writes it, to the store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sparkonce import settings
from sparkonce.errors import InvalidInput
from sparkonce.store.protocol import IdempotencyStore

ENVIRONMENT = "SPARKONCE_STORE"
"""The store to use where none is named."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_KNOWN = "sqlite:///PATH, a plain path, postgresql://HOST/DATABASE, etcd://HOST:PORT[,HOST:PORT], or memory:"
_POSTGRES = ("postgresql", "postgres")


def default_url() -> str:
    """SPARKONCE_STORE, else one file in the user's data folder."""
    if named := os.environ.get(ENVIRONMENT):
        return named
    import platformdirs  # here: a driver, which is always told its store, need not have it

    return f"sqlite:///{platformdirs.user_data_path('sparkonce') / 'ledger.db'}"


def open_store(url: str | None = None, *, install: str = "local", **options: Any) -> IdempotencyStore:
    """`url`: None for the default. `options`: keyword arguments of the store's class.

    A store on etcd suspends and belongs to the event loop that asks it first; `open_blocking` is for everybody else.
    Raises InvalidInput, StoreUnusable, StoreUnavailable.
    """
    url = default_url() if url is None else url
    scheme = _SCHEME.match(url)
    if url == "memory:":
        from sparkonce.store.memory import MemoryStore

        return MemoryStore(**options)
    path = url
    if scheme is not None:
        if scheme[1].lower() in _POSTGRES and scheme[2]:
            return _postgres(url, install=install, **options)
        if scheme[1].lower() == "etcd" and scheme[2]:
            return _etcd(url, install=install, **options)
        if not url.lower().startswith("sqlite:///"):
            raise InvalidInput(f"{redacted(url)!r} is no store; use {_KNOWN}")
        path = url[len("sqlite:///") :]
    if not path or path == ":memory:":
        raise InvalidInput(f"{url!r} names no file; use {_KNOWN}")
    from sparkonce.store.sql import SqlStore  # here: SQLAlchemy takes a while to import

    options.setdefault("stale_after", settings.lease_seconds())
    return SqlStore(Path(path).expanduser(), install=install, **options)


def open_blocking(url: str | None = None, *, install: str = "local", **options: Any) -> IdempotencyStore:
    """As `open_store`, for callers that run its verbs by `blocking.run`."""
    store = open_store(url, install=install, **options)
    if not store.url.startswith("etcd:"):
        return store
    from sparkonce.store.threaded import threaded

    return threaded(store)


def _postgres(url: str, **options: Any) -> IdempotencyStore:
    try:
        from sparkonce.store.postgres import PostgresStore
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"a PostgreSQL store needs {missing.name}, which is not installed; install sparkonce[postgres]"
        ) from None
    return PostgresStore(url, **options)


def _etcd(url: str, **options: Any) -> IdempotencyStore:
    try:
        from sparkonce.store.etcd import EtcdStore
        from sparkonce.store.etcd_address import parsed
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"an etcd store needs {missing.name}, which is not installed; install sparkonce[operator]"
        ) from None
    return EtcdStore(**(parsed(url, os.environ) | options))


def redacted(url: str) -> str:
    """As it may be printed: without user, password and query."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", "")) if host else url.partition("?")[0]
