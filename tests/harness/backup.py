"""Backups of an etcd member as a person takes and restores them: its data, while it is stopped.

What comes back is the same member of the same cluster at an older revision, and leases that had not ended then live again: the hardest
kind of restore to notice. (A restore by etcd's own tool makes a new cluster, which a client could tell.)
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.etcd import Member


def take(member: Member, place: Path) -> Path:
    """It serves again when this returns."""
    member.kill()
    shutil.copytree(member.data, place)
    member.start()
    return place


def put_back(member: Member, backup: Path | None) -> None:
    """None: it has forgotten everything. It serves when this returns."""
    member.kill()
    shutil.rmtree(member.data)
    if backup is not None:
        shutil.copytree(backup, member.data)
    member.start()
