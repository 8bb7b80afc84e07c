"""Settings of a process, from its environment: read when asked for, never written, each with the reason for its default.

Nothing here changes what is safe. A setting decides how soon somebody acts; what an act may do is decided by the store and the outputs.
"""

from __future__ import annotations

import os

from sparkonce.errors import InvalidInput


def lease_seconds() -> float:
    """SPARKONCE_LEASE_SECONDS: without a touch for so long, a claim may be taken although its process holds the lock.

    Default 30: a laptop under full load may stall a process for seconds; a frozen one holds nobody up for longer than this."""
    return _seconds("SPARKONCE_LEASE_SECONDS", 30.0)


def patience(default: float = 10.0) -> float:
    """SPARKONCE_PATIENCE: seconds for which a command asks a store or an output again that does not answer, before it gives up.

    Default 10: longer than a checkpoint of a large ledger, shorter than a person waits without a word. A settle run has its own."""
    return _seconds("SPARKONCE_PATIENCE", default)


def settle() -> str:
    """SPARKONCE_SETTLE, as the option of `sparkonce operator`: who looks at the outputs of jobs that run on a cluster.

    Default auto: a command looks at what it reaches, and never takes a folder of this machine for one of a driver's pod."""
    return os.environ.get("SPARKONCE_SETTLE") or "auto"


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
