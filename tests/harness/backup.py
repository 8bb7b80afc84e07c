"""Backups of an etcd member as an administrator takes and restores them: a copy of its data while it is stopped.

After the restore it is the same member of the same cluster at an older revision, and leases that had not ended at that time live again:
the kind of restore that is hardest to notice. (A restore by etcd's own tool makes a new cluster, which a client could detect.)
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.etcd import Member


def take(member: Member, place: Path) -> Path:
    """Copies the member's data; it serves again when this returns."""
    member.kill()
    shutil.copytree(member.data, place)
    member.start()
    return place


def put_back(member: Member, backup: Path | None) -> None:
    """Restores a backup, or with None starts the member without data. It serves when this returns."""
    member.kill()
    shutil.rmtree(member.data)
    if backup is not None:
        shutil.copytree(backup, member.data)
    member.start()
