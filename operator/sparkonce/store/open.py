"""Opens a store from its address."""

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
"""Environment variable: the store to use where no address is given."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_KNOWN = "sqlite:///PATH, a plain path, postgresql://HOST/DATABASE or etcd://HOST:PORT[,HOST:PORT]"
_POSTGRES = ("postgresql", "postgres")
LOCAL = "local"
"""The install of commands that run jobs themselves; on PostgreSQL any other one belongs to a cluster's operators."""


def default_url() -> str:
    """The default address: SPARKONCE_STORE, else one file in the user's data folder."""
    if named := os.environ.get(ENVIRONMENT):
        return named
    import platformdirs  # here: a driver always gets its address and may lack it

    return f"sqlite:///{platformdirs.user_data_path('sparkonce') / 'ledger.db'}"


def open_store(url: str | None = None, *, install: str = LOCAL, **options: Any) -> IdempotencyStore:
    """Opens the store at an address. `url`: None for the default. `options`: keyword arguments of the store's class.

    An etcd store suspends and belongs to the event loop of its first call; the others block. Callers of any store use `open_blocking`
    or, on an event loop, `open_shared`.
    Raises: InvalidInput, StoreUnusable, StoreUnavailable.
    """
    url = default_url() if url is None else url
    scheme = _SCHEME.match(url)
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
    from sparkonce.store.sqlite.store import SqliteStore  # here: a driver on a cluster needs no SQLite

    options.setdefault("stale_after", settings.lease_seconds())
    return SqliteStore(Path(path).expanduser(), install=install, **options)


def open_blocking(url: str | None = None, *, install: str = LOCAL, **options: Any) -> IdempotencyStore:
    """As `open_store`, for callers that run its verbs by `blocking.run`."""
    store = open_store(url, install=install, **options)
    if not store.url.startswith("etcd:"):
        return store
    from sparkonce.store.threaded import threaded

    return threaded(store)


def open_shared(url: str, *, install: str, by: str, **options: Any) -> IdempotencyStore:
    """Opens a store that several machines share, for callers on an event loop: its verbs suspend, and the first one connects.

    `by`: the caller, for messages. `options`: as of `open_store`. Raises: InvalidInput, also for a store of one machine."""
    if url.lower().startswith("etcd:"):
        return open_store(url, install=install, **options)
    if not is_postgres(url):
        raise InvalidInput(
            f"{by} needs a store that several processes share, at etcd://HOST:PORT or postgresql://HOST/DATABASE, and "
            f"{redacted(url)} is not one"
        )
    if install == LOCAL:
        raise InvalidInput(
            f"install {LOCAL!r} of a PostgreSQL store is the ledger of `sparkonce run`; give {by} another --install"
        )
    from sparkonce.store.pooled import pooled

    store = open_store(url, install=install, at_first_use=True, **options)
    return pooled(store, size=settings.postgres_pool(), patience=settings.postgres_timeout())


def is_postgres(url: str) -> bool:
    scheme = _SCHEME.match(url)
    return scheme is not None and scheme[1].lower() in _POSTGRES and bool(scheme[2])


def is_remote(url: str, install: str | None) -> bool:
    """Whether the ledger is a cluster's, whose jobs operators run. `install`: as given; empty: none."""
    return url.lower().startswith("etcd:") or (install not in (None, "", LOCAL) and is_postgres(url))


def _postgres(url: str, **options: Any) -> IdempotencyStore:
    try:
        from sparkonce.store.postgres.store import PostgresStore
    except ModuleNotFoundError as missing:
        raise without_extra("a PostgreSQL store", missing, extra="postgres") from None
    options.setdefault("pool", settings.postgres_pool())
    options.setdefault("timeout", settings.postgres_timeout())
    return PostgresStore(url, **options)


def _etcd(url: str, **options: Any) -> IdempotencyStore:
    try:
        from sparkonce.store.etcd.address import parsed
        from sparkonce.store.etcd.store import EtcdStore
    except ModuleNotFoundError as missing:
        raise without_extra("an etcd store", missing, extra="operator") from None
    return EtcdStore(**(parsed(url, os.environ) | options))


def without_extra(what: str, missing: ModuleNotFoundError, *, extra: str) -> InvalidInput:
    """The error for what needs a module of an extra that is not installed."""
    return InvalidInput(f"{what} needs {missing.name}, which is not installed; install sparkonce[{extra}]")


def redacted(url: str) -> str:
    """The address for display: without user, password and query."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:  # an unclosed bracket; what of it is a password is unknown
        return "the address of a store that is not a URL"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", "")) if host else url.partition("?")[0]
