"""An etcd that runs out of room: filled with keys of somebody else's, and emptied as a person does it."""

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
"""Bytes of one key."""
COMMIT = 0.2
"""Seconds: etcd commits ten times a second, and tells its size as of the last time. Room that was free within it is used first."""


def fill(cluster: Etcd, share: float) -> None:
    """Until the database has this share of its quota, and hardly more: half of what is missing is written, then waited for."""
    while (missing := share * QUOTA - _size(cluster)) > 0:
        for _ in range(max(1, int(missing / PIECE / 2))):
            cluster.put(f"{PREFIX}{uuid.uuid4().hex}".encode(), b"x" * PIECE)
        until = time.monotonic() + COMMIT
        assert_eventually(lambda until=until: time.monotonic() > until, 10)  # type: ignore[misc]  # the loop's own


def _size(cluster: Etcd) -> int:
    return int(cluster.one.post("maintenance/status", {})["dbSize"])


def fill_up(cluster: Etcd) -> None:
    """Until etcd raises its alarm, by which it takes nothing more."""
    with pytest.raises(AssertionError, match="database space exceeded"):
        fill(cluster, 2.0)


def make_room(cluster: Etcd) -> None:
    """Delete, compact, defragment, disarm."""
    everything = {"key": _b64(PREFIX), "range_end": _b64(PREFIX[:-1] + "0")}  # "0" follows "/"
    cluster.one.post("kv/deleterange", everything)
    cluster.compact(cluster.revision())
    cluster.one.post("maintenance/defragment", {})
    member = cluster.one.post("maintenance/status", {})["header"]["member_id"]
    cluster.one.post("maintenance/alarm", {"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": member})


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
