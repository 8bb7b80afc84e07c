"""Backups of an etcd member as an administrator takes and restores them: a copy of its data while it is stopped, or a snapshot.

After a copy is put back it is the same member of the same cluster at an older revision, and leases that had not ended at that time live
again: the kind of restore that is hardest to notice. A snapshot is taken by the chart's own script while the member serves, and restored by
the documented pod, whose etcdutl makes a new cluster at the older revision.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from harness.chart_etcd import BACKUP_SCRIPT, SNAPSHOT, documented_restore, run_container
from harness.etcd import Member
from harness.patience import completed


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


def snapshot(member: Member, folder: Path) -> Path:
    """The file that the chart's script made of a member that serves without certificates."""
    folder.mkdir(exist_ok=True)
    words: list[str | Path] = [sys.executable, "-I", BACKUP_SCRIPT, f"--folder={folder}", "--keep=9", member.address]
    done = completed(words, 60)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.partition(":")[0]


def restore(member: Member, taken: Path, programs: Path) -> None:
    """Kills the member and runs the containers of the documented pod, with this member's own values of each flag. It serves when this
    returns.

    programs: a folder with etcdutl."""
    member.kill()
    mine = dict(each.split("=", 1) for each in member.child.command if each.startswith("--") and "=" in each)
    pod = documented_restore()["spec"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        words = []
        for each in [*container["command"], *container["args"]]:
            flag, _, value = SNAPSHOT.sub(str(taken), each).partition("=")
            words.append(f"{flag}={mine.get(flag, value)}" if each.startswith("--") else SNAPSHOT.sub(str(taken), each))
        run_container([str(member.data) if each == "/var/lib/etcd/data" else each for each in words], programs)
    member.start()
