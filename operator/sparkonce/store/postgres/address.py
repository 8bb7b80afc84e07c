"""Where a PostgreSQL store is: its address as psycopg takes it and as a person may read it, and its place in the database.

The address is parsed by libpq itself, so that it means here what it means to `psql`, and is never printed: what is shown is built from
host, port and database alone. An address whose password is not percent-encoded can be cut at the wrong place, and a piece of the
password then ends up where a host, a port or a database is expected; such an address is refused without being repeated.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sparkonce.errors import InvalidInput

SILENCE = 10
"""Seconds of silence before the kernel probes whether the peer of a connection is still there."""

_NAME = re.compile(r"[a-z0-9_]{1,50}")
_PORTS = re.compile(r"[0-9]*(,[0-9]*)*")
_CUT = re.compile(r"[@\s]")
_HOW = "write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, and special characters in the password as %40 and the like"


@dataclass(frozen=True)
class PostgresAddress:
    conninfo: str = field(repr=False)
    """As libpq takes it, with the password: never printed."""
    shown: str


def parsed(url: str, *, timeout: float) -> PostgresAddress:
    """Parses an address. `timeout`: seconds after which an unanswered request fails.

    Raises: InvalidInput, which never repeats the address."""
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except (psycopg.Error, UnicodeError):
        raise InvalidInput(f"the address of the PostgreSQL store cannot be read; {_HOW}") from None
    host, port, database = (given.get(name, "") for name in ("host", "port", "dbname"))
    if _CUT.search(host + database) or not _PORTS.fullmatch(port):
        raise InvalidInput(
            f"the address of the PostgreSQL store cannot be right: host, port or database is not a name; {_HOW}"
        )
    defaults = {
        "application_name": "sparkonce",
        "connect_timeout": str(max(2, math.ceil(timeout))),  # libpq knows no shorter one
        "keepalives_idle": str(SILENCE),
        "keepalives_interval": str(SILENCE),
        "tcp_user_timeout": str(round(timeout * 1000)),
        "target_session_attrs": "read-write",  # a replica lags behind the primary
    }
    conninfo = make_conninfo(**{**defaults, **given, "client_encoding": "UTF8"})
    return PostgresAddress(conninfo, _shown(host, port, database))


def _shown(host: str, port: str, database: str) -> str:
    if host.startswith("/"):
        return f"postgresql:///{database}"  # a socket in a folder of this machine
    hosts, ports = host.split(","), port.split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    places = (f"{name}:{number}" if number else name for name, number in zip(hosts, ports, strict=False))
    return f"postgresql://{','.join(places)}/{database}"


def schema_of(install: str) -> str:
    """The schema of an install: several installs share a database, without touching each other's tables."""
    if _NAME.fullmatch(install):
        return f"sparkonce_{install}"
    return f"sparkonce_h{hashlib.sha256(install.encode()).hexdigest()[:40]}"


def lock_of(*parts: str) -> int:
    """The number of an advisory lock. If two names collide, their holders only wait for each other."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = part.encode(errors="surrogatepass")
        digest.update(len(text).to_bytes(8, "big") + text)
    return int.from_bytes(digest.digest(), "big", signed=True)
