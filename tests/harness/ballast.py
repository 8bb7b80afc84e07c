"""An etcd that runs out of room: filled with keys of somebody else's, and emptied as a person does it."""

from __future__ import annotations

import base64
import uuid

import pytest

from harness.etcd import Etcd

QUOTA = 16 * 1024**2
"""Bytes: small enough to fill within a second."""
FLAGS = (f"--quota-backend-bytes={QUOTA}",)
PREFIX = "/ballast/"


def fill(cluster: Etcd, share: float) -> None:
    """Until the database has this share of its quota."""
    while int(cluster.one.post("maintenance/status", {})["dbSize"]) < share * QUOTA:
        cluster.put(f"{PREFIX}{uuid.uuid4().hex}".encode(), b"x" * 400_000)


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
