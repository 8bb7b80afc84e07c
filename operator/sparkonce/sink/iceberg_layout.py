"""Where things stand below an Iceberg table's location. Pure.

    <location>/data/so-<sink key>/<token>-<nonce>/*.parquet     what one write staged
                                                 /_slot.json    the slot that commits it
                                                 /_files.json   its files, when they are many (see `sparkonce.sink.listing`)
"""

from __future__ import annotations

from sparkonce.sink import layout
from sparkonce.sink.protocol import SinkKey

DATA = "data"
MARK = "so-"
"""Of our folders among those of other writers."""
SLOT = "_slot.json"


def staging(key: SinkKey) -> str:
    """Of all writes of a key."""
    return f"{DATA}/{MARK}{key}"


def staging_folder(key: SinkKey, token: int, nonce: str) -> str:
    """Of one write call."""
    return f"{staging(key)}/{token:010d}-{nonce}"


def token_and_nonce(folder: str) -> tuple[int, str] | None:
    return layout.staged(folder)


def sink_key_of(folder: str) -> str | None:
    """Of a folder of one write call; None: it is not ours."""
    parts = folder.split("/")
    if len(parts) < 3 or parts[0] != DATA or not parts[1].startswith(MARK) or token_and_nonce(folder) is None:
        return None
    return parts[1].removeprefix(MARK)
