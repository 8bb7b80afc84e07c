"""Takes a snapshot of the bundled etcd, and keeps the newest ones.

Usage: backup.py --folder FOLDER --keep N [--tls FOLDER] [--bucket URL] HOST:PORT...

The first member that reads through the quorum is asked: one that is cut off from the others would give an old state. A snapshot gets its
name once it is complete (etcd ends it with a SHA-256 of the rest) and on disk; a run that dies before that leaves a part, which a later run
removes after a day. Only then are older ones removed, and never the one just taken, whatever the clock says. Two runs at once take two
snapshots. With a bucket each snapshot is also put there, and the older ones are removed there, too.

Standard library only, and obstore for the bucket, which is in the image: it runs from a chart. The members are asked through their HTTP
API, since the image of the operator has no etcdctl, and that of etcd has no shell that could name and remove files.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import sys
import time
import urllib.request
from pathlib import Path

NAME = re.compile(r"ledger-\d{8}T\d{6}Z\.db")
"""Nothing else is ever removed. Sorted by name is sorted by time."""
TIMEOUT = 60.0
"""Seconds without a byte from a member: it reads gigabytes from its own disk."""
LEFT = 86400.0
"""Seconds after which a part belongs to a run that died: a run has an hour."""
DIGEST = 32
"""Bytes of SHA-256 at the end of a snapshot; what is before them is a whole number of `PAGE`s."""
PAGE = 512


def opener(tls):
    """What opens URLs, without any proxy, and the scheme."""
    direct = urllib.request.ProxyHandler({})
    if tls is None:
        return urllib.request.build_opener(direct), "http"
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
    return urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=context)), "https"


def ask(opens, url, path, body):
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v3/{path}", json.dumps(body).encode(), headers)
    return opens.open(request, timeout=TIMEOUT)


def save(opens, url, part):
    """Writes a member's snapshot to `part`.

    Raises OSError, ValueError or HTTPException: the member has no quorum, or did not send all of it.
    """
    with ask(opens, url, "kv/range", {"key": base64.b64encode(b"/").decode(), "count_only": True}) as answer:
        json.load(answer)  # linearizable
    hashed, held, size = hashlib.sha256(), b"", 0
    with ask(opens, url, "maintenance/snapshot", {}) as answer, part.open("wb") as file:
        part.chmod(0o600)  # as confidential as the ledger
        for line in answer:
            said = json.loads(line)
            if "result" not in said:
                raise ValueError(f"the member ended with {str(said)[:200]}")
            blob = base64.b64decode(said["result"].get("blob", ""))
            file.write(blob)
            size += len(blob)
            held += blob
            hashed.update(held[:-DIGEST])
            held = held[-DIGEST:]
        file.flush()
        os.fsync(file.fileno())
    if size % PAGE != DIGEST or hashed.digest() != held:
        raise ValueError(f"the {size} bytes that came are no complete snapshot")


def synced(folder):
    """Makes the folder's names durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def older(names, keep, taken):
    """The names to remove: all but the newest, and never the one just taken."""
    ours = sorted(each for each in names if NAME.fullmatch(each))
    return [each for each in ours[:-keep] if each != taken]


def to_bucket(url, file, keep):
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        store = from_url(url)  # credentials and region are in the environment
        obstore.put(store, file.name, file)
        listed = [each["path"] for batch in obstore.list(store) for each in batch]
        for name in older(listed, keep, file.name):
            obstore.delete(store, name)
    except BaseError as problem:
        sys.exit(f"{file} was taken, and {url} cannot be used: {str(problem).splitlines()[0]}")


def take(arguments):
    folder = arguments.folder
    opens, scheme = opener(arguments.tls)
    part, why = folder / f".{socket.gethostname()}-{os.getpid()}.part", []
    for endpoint in arguments.endpoint:
        try:
            save(opens, f"{scheme}://{endpoint}", part)
            break
        except (OSError, ValueError, http.client.HTTPException) as problem:
            why.append(f"{endpoint}: {problem}")
    else:
        part.unlink(missing_ok=True)
        sys.exit(f"no member of the ledger gave a snapshot: {'; '.join(why)}")
    taken = folder / time.strftime("ledger-%Y%m%dT%H%M%SZ.db", time.gmtime())
    part.rename(taken)
    synced(folder)
    print(f"{taken.name}: {taken.stat().st_size} bytes from {endpoint}", flush=True)
    if arguments.bucket:
        to_bucket(arguments.bucket, taken, arguments.keep)
        print(f"{taken.name}: copied to {arguments.bucket}", flush=True)
    for name in older([each.name for each in folder.iterdir()], arguments.keep, taken.name):
        (folder / name).unlink(missing_ok=True)
    for left in folder.glob(".*.part"):
        if time.time() - left.stat().st_mtime > LEFT:
            left.unlink(missing_ok=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--keep", type=int, required=True)
    parser.add_argument("--tls", type=Path)
    parser.add_argument("--bucket", default="")
    parser.add_argument("endpoint", nargs="+")
    take(parser.parse_args())
