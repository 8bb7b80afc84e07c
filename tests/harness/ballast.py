"""Fills an etcd with foreign keys until it has no room, and frees the space as an administrator would."""

from __future__ import annotations

import base64
import time
import uuid

import pytest

from harness.etcd import Etcd
from harness.eventually import assert_eventually

QUOTA = 16 * 1024**2
"""Bytes: small enough to fill within a second."""
FLAGS = (f"--quota-backend-bytes={QUOTA}",)
PREFIX = "/ballast/"
PIECE = 200_000
"""Size of one key's value in bytes."""
SMALL = 100
"""Keys that fill several pages of 4 KiB."""
COMMIT = 0.2
"""Seconds: etcd commits ten times a second and reports its size as of the last commit. Freed space is used first within that time."""


def fill(cluster: Etcd, share: float) -> None:
    """Fills the database to this share of its quota with little overshoot: writes half of what is missing, then waits for the new size."""
    while (missing := share * QUOTA - _size(cluster)) > 0:
        for _ in range(max(1, int(missing / PIECE / 2))):
            cluster.put(f"{PREFIX}{uuid.uuid4().hex}".encode(), b"x" * PIECE)
        until = time.monotonic() + COMMIT
        assert_eventually(lambda until=until: time.monotonic() > until, 10)  # type: ignore[misc]  # the loop's own


def _size(cluster: Etcd) -> int:
    return int(cluster.one.post("maintenance/status", {})["dbSize"])


def fill_up(cluster: Etcd) -> None:
    """Fills until etcd raises its NOSPACE alarm and refuses writes."""
    with pytest.raises(AssertionError, match="database space exceeded"):
        fill(cluster, 2.0)


def loaded(cluster: Etcd, pieces: int) -> int:
    """Adds these pieces and returns the size in bytes, which small keys hardly change from then on: the pages that hold the pieces are
    followed by ones of small keys, so that no later write copies a piece, and all is committed."""
    for number in range(pieces):
        cluster.put(f"{PREFIX}{number}".encode(), b"x" * PIECE)
    for number in range(SMALL):
        cluster.put(f"{PREFIX}small/{number}".encode(), b"x" * 100)
    cluster.one.post("maintenance/defragment", {})
    size = _size(cluster)
    assert size > pieces * PIECE
    return size


def make_room(cluster: Etcd) -> None:
    """Frees space: deletes, compacts, defragments, disarms the alarm."""
    everything = {"key": _b64(PREFIX), "range_end": _b64(PREFIX[:-1] + "0")}  # "0" follows "/"
    cluster.one.post("kv/deleterange", everything)
    cluster.compact(cluster.revision())
    cluster.one.post("maintenance/defragment", {})
    member = cluster.one.post("maintenance/status", {})["header"]["member_id"]
    cluster.one.post("maintenance/alarm", {"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member})


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
