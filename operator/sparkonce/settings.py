"""Settings of a process, read from its environment on each call, each with the reason for its default.

None of them affects safety: a setting decides how soon a process acts, while the store and the outputs decide what it may do.
"""

from __future__ import annotations

import os

from sparkonce.errors import InvalidInput


def lease_seconds() -> float:
    """SPARKONCE_LEASE_SECONDS: seconds without a renewal after which a claim may be taken over although its process holds the lock.

    Default 30: a laptop under full load may stall a process for seconds; a frozen process blocks its keys for no longer than this."""
    return _seconds("SPARKONCE_LEASE_SECONDS", 30.0)


POSTGRES_POOL = "SPARKONCE_POSTGRES_POOL"


def postgres_pool() -> int:
    """SPARKONCE_POSTGRES_POOL: connections of a process to a PostgreSQL ledger for its requests. Lease and watch have one more each, a
    gateway about ten for decisions and its announcement.

    Default 8: one request takes milliseconds, so that eight at a time are more than one database commits, and a hundred connections, which
    is what PostgreSQL takes by default, are enough for two operators and two gateways."""
    text = os.environ.get(POSTGRES_POOL)
    if not text:
        return 8
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_CONNECTIONS):
        raise InvalidInput(f"{POSTGRES_POOL} is {text!r}; give a number from 1 to {MOST_CONNECTIONS}")
    return int(text)


MOST_CONNECTIONS = 1000
"""Far beyond what one process can use."""


def postgres_timeout() -> float:
    """SPARKONCE_POSTGRES_TIMEOUT: seconds for one request to a PostgreSQL ledger, waiting for locks and for a connection included.

    Default 2: a lease of ten seconds outlives several requests that get no answer."""
    return _seconds("SPARKONCE_POSTGRES_TIMEOUT", 2.0)


def patience(default: float = 10.0) -> float:
    """SPARKONCE_PATIENCE: seconds for which a command retries a store or an output that does not answer.

    Default 10: longer than a checkpoint of a large ledger, shorter than a user waits without output. A settle run has its own default."""
    return _seconds("SPARKONCE_PATIENCE", default)


def settle(default: str = "auto") -> str:
    """SPARKONCE_SETTLE, like `sparkonce operator --settle`: which process settles the outputs of jobs that run on a cluster.

    Default auto: a command settles at outputs it reaches, and never mistakes a folder of this machine for one of a driver's pod.
    A gateway's default is run: it acts for many callers, who may lack the gateway's own rights."""
    return os.environ.get("SPARKONCE_SETTLE") or default


AMBIENT = "SPARKONCE_AMBIENT_CREDENTIALS"


def ambient_credentials(default: str = "true") -> bool:
    """SPARKONCE_AMBIENT_CREDENTIALS: whether object stores may be asked with the identity of the machine (`sink/objects/ambient.py`).

    Default true: a driver's machine or pod is its own. Operators and gateways, which act for many, set it to false for themselves."""
    return (os.environ.get(AMBIENT) or default).lower() not in ("false", "0", "no", "off")


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise InvalidInput(f"{name} is {text!r}; give a number of seconds above 0")
    return value
