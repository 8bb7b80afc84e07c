"""Whether a folder is on a local disk: SQLite's shared memory and file locks do not work across a network.

It looks the folder up in the kernel's table of mounts. Trying a lock was not taken: many network file systems grant locks that only
this machine knows of, which is the very case to refuse.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/mounts")
NETWORK = re.compile(
    r"(9p|afs|beegfs|ceph|cifs|coda|gfs2?|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|prl_fs|pvfs2|smb2|smb3|smbfs|sshfs|vboxsf)"
    r"|fuse\.(ceph|cephfs|curlftpfs|davfs|gcsfuse|glusterfs|goofys|juicefs|mount-s3|rclone|s3fs|sshfs)"
)
"""File systems whose files other machines may write, or whose locks and shared mappings are not the kernel's own."""


def network_file_system(path: Path, *, mounts: str | None = None) -> str | None:
    """The name of the network file system that `path` is on; None for a local one, and where there is no table of mounts.

    `mounts`: the text of /proc/mounts, for tests.
    """
    if mounts is None:
        try:
            mounts = MOUNTS.read_text(errors="surrogateescape")
        except OSError:
            return None
    real = os.path.realpath(path)
    best, found = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of two mounts on one point the later one is seen
            best, found = len(point), fields[2]
    return found if NETWORK.fullmatch(found) else None
