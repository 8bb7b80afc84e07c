"""Where things stand below an Iceberg table's location. Pure.

    <location>/data/so-<sink key>/<token>-<nonce>/*.parquet             what one write staged
                                                 /_slot-<digest>.json   the slot that a commit was sent with
                                                 /_files.json           its files, when they are many (see `sparkonce.sink.listing`)

Iceberg's clean-up of orphan files passes over names with an underscore, so it leaves the evidence alone. It does take staged files that
no commit names once they are as old as it is told: longer than any job runs.
"""

from __future__ import annotations

from sparkonce.sink import layout
from sparkonce.sink.protocol import SinkKey

DATA = "data"
MARK = "so-"
"""Of our folders among those of other writers."""


def staging(key: SinkKey | str) -> str:
    """Of all writes of a key."""
    return f"{DATA}/{MARK}{key}"


def staging_folder(key: SinkKey, token: int, nonce: str) -> str:
    """Of one write call."""
    return f"{staging(key)}/{token:010d}-{nonce}"


def slot_path(key: SinkKey, token: int, nonce: str, digest: str) -> str:
    """The digest is in the name: a slot that was sealed has other bytes than the one that was staged."""
    return f"{staging_folder(key, token, nonce)}/_slot-{digest[:16]}.json"


def token_and_nonce(folder: str) -> tuple[int, str] | None:
    return layout.staged(folder)


def sink_key_of(folder: str) -> str | None:
    """Of a folder of one write call, or of one key; None: it is not ours."""
    parts = folder.split("/")
    if len(parts) < 2 or parts[0] != DATA or not parts[1].startswith(MARK):
        return None
    return parts[1].removeprefix(MARK)
