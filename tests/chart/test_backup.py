"""Snapshots of the bundled etcd by the chart's CronJob: complete, from a member with a quorum, the newest kept, and the way back."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.chart_etcd import (
    BACKUP_SCRIPT,
    ChartMember,
    container,
    documented_commands,
    documented_restore,
    etcd_programs,
    members,
    objects_with,
    restore,
    secret_files,
    started,
    tls_of,
    translated,
)
from harness.eventually import assert_eventually
from harness.helm import one
from harness.patience import completed
from harness.store_servers import BUCKET, moto
from sparkonce.etcd.channel import Tls
from sparkonce.etcd.client import Client
from sparkonce.etcd.kv import Put, Range

BACKUPS = "etcd.bundled.backup.enabled=true"
KEYS = 300
SIZE = 2_000
"""Bytes of each value: together they are more than the messages that a snapshot comes in."""
TIMEOUT = 60.0


async def written(made: Sequence[ChartMember], tls: Tls | None, start: str, count: int) -> None:
    client = Client.open([each.address for each in made], tls=tls, timeout=TIMEOUT)
    try:
        for number in range(count):
            await client.txn([], [Put(f"/{start}-{number:04d}".encode(), f"{number}".encode() * SIZE)])
    finally:
        await client.close()


async def keys(made: Sequence[ChartMember], tls: Tls | None) -> dict[bytes, bytes]:
    """Every key with its value."""
    client = Client.open([each.address for each in made], tls=tls, timeout=TIMEOUT)
    try:
        return {each.key: each.value for each in (await client.range(Range(b"/", b"0"))).kvs}
    finally:
        await client.close()


def job_of(objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The container of the rendered CronJob."""
    (found,) = one(objects, "CronJob", "etcd-backup")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def run(words: Sequence[str | Path], **environment: str) -> subprocess.CompletedProcess[str]:
    return completed([sys.executable, "-I", *words], TIMEOUT, env={**os.environ, **environment})


def taken(objects: Sequence[dict[str, Any]], made: Sequence[ChartMember], folder: Path, tls: Path) -> Path:
    """The snapshot that the rendered container takes, with its paths and addresses on this machine."""
    box = job_of(objects)
    assert box["command"] == ["python3", "-c"]
    folder.mkdir(exist_ok=True)
    words = made[0].words(objects) | {"/backup": str(folder), "/etc/sparkonce/etcd": str(tls)}
    script, *arguments = box["args"]
    assert script.strip() == BACKUP_SCRIPT.read_text().strip()
    done = run(["-c", script, *(translated(each, words) for each in arguments)])
    assert done.returncode == 0, done.stderr
    name, _, said = done.stdout.partition(": ")
    assert "bytes from 127.0.0.1:" in said
    return folder / name


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_lost_ledger_comes_back_from_its_backup(tmp_path: Path, count: int) -> None:
    """Keys are written, the rendered CronJob takes a snapshot, more keys are written, all data is lost. The documented pod restores each
    member: everything that the snapshot was taken of is there again, in a cluster that serves and takes new keys."""
    programs = etcd_programs(tmp_path / "bin")
    objects = objects_with(f"etcd.bundled.replicas={count}", BACKUPS)
    folder = secret_files(objects, "-client", tmp_path / "ours")
    ours = tls_of(folder)
    with members(tmp_path / "etcd", count) as made:
        started(made, objects)
        asyncio.run(written(made, ours, "before", KEYS))
        before = asyncio.run(keys(made, ours))
        snapshot = taken(objects, made, tmp_path / "backup", folder)
        assert snapshot.stat().st_mode & 0o777 == 0o600, "as confidential as the ledger"
        asyncio.run(written(made, ours, "after", 3))
        for each in made:
            each.close()
        for number, each in enumerate(made):
            assert list(each.data.iterdir()) == [each.data / "data"]
            if number:  # a lost volume; the first one is only damaged, and is kept
                (each.data / "data").rename(tmp_path / f"gone-{number}")
            restore(each, objects, snapshot, programs)
        assert len(list(made[0].data.iterdir())) == 2, "the old data was moved aside, not removed"
        started(made, objects)
        assert asyncio.run(keys(made, ours)) == before
        assert len(before) == KEYS
        asyncio.run(written(made, ours, "new", 1))


def test_the_documented_pod_is_for_this_release() -> None:
    """Its claims, images and arguments are those of the chart: the claim of the member and of the backups, the folder and the flags of
    etcd."""
    objects = objects_with(BACKUPS)
    pod = documented_restore()
    claims = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in pod["spec"]["volumes"]}
    name = one(objects, "StatefulSet", "etcd")["metadata"]["name"].removeprefix("spark-")
    assert claims == {
        "data": f"data-{name}-0",
        "backup": one(objects, "PersistentVolumeClaim", "").get("metadata", {})["name"].removeprefix("spark-"),
    }
    (box,) = pod["spec"]["containers"]
    theirs = {each.partition("=")[0] for each in container(objects)["command"]}
    assert {each.partition("=")[0] for each in box["args"] if each.startswith("--")} <= theirs
    assert {each["name"] for each in box["volumeMounts"]} == set(claims)
    assert (
        f"--from=cronjob/{one(objects, 'CronJob', '')['metadata']['name'].removeprefix('spark-')}"
        in documented_commands("Backup")
    )


@contextmanager
def lying(*lines: dict[str, Any]) -> Iterator[str]:
    """Address of a member that reads through the quorum, and sends these messages instead of its snapshot."""

    class Member(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            sent = lines if self.path == "/v3/maintenance/snapshot" else [{}]
            data = b"".join(json.dumps(each).encode() + b"\n" for each in sent)
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Member) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def blob(data: bytes) -> dict[str, Any]:
    return {"result": {"blob": base64.b64encode(data).decode()}}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "the 0 bytes that came are no complete snapshot"),
        ([blob(b"x" * 512)], "the 512 bytes that came"),
        ([blob(b"x" * 512), blob(b"y" * 32)], "the 544 bytes that came"),
        ([blob(b"x" * 512), {"error": {"message": "lost its leader"}}], "lost its leader"),
    ],
    ids=["nothing", "cut off", "changed", "an error at the end"],
)
def test_half_a_snapshot_is_none(tmp_path: Path, lines: list[dict[str, Any]], said: str) -> None:
    """What a member sent is not kept unless it is whole; the Job fails, and what was there before is not touched."""
    (tmp_path / "ledger-20250101T000000Z.db").write_text("old")
    with lying(*lines) as address:
        done = run([BACKUP_SCRIPT, f"--folder={tmp_path}", "--keep=1", address])
    assert done.returncode == 1
    assert said in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["ledger-20250101T000000Z.db"]


def test_a_member_without_a_quorum_is_not_asked(tmp_path: Path) -> None:
    """Of three, two are gone: the third would give a snapshot, and it may be old. With two of three, the next one is asked."""
    objects = objects_with("etcd.bundled.replicas=3", BACKUPS)
    folder = secret_files(objects, "-client", tmp_path / "ours")
    with members(tmp_path / "etcd", 3) as made:
        started(made, objects)
        asyncio.run(written(made, tls_of(folder), "key", 3))
        made[0].close()
        asyncio.run(written(made[1:], tls_of(folder), "elected", 1))  # the two have a leader
        addresses = [each.address for each in made]
        out = tmp_path / "backup"
        out.mkdir()
        words: list[str | Path] = [BACKUP_SCRIPT, f"--folder={out}", "--keep=9", f"--tls={folder}", *addresses]
        done = run(words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith((f"from {addresses[1]}\n", f"from {addresses[2]}\n"))
        made[1].close()
        done = run(words)
        assert done.returncode == 1
        assert "no member of the ledger gave a snapshot" in done.stderr
        assert len(list(out.iterdir())) == 1


def test_the_newest_are_kept_here_and_in_the_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older snapshots are removed once the new one is complete, in both places; other files stay, as do parts of a run that may still be
    under way; a part of yesterday goes. A clock that went back removes others, never the one just taken."""
    objects = objects_with("etcd.bundled.tls.enabled=false", "acceptInsecure=true", BACKUPS)
    out = tmp_path / "backup"
    out.mkdir()
    for name in (
        "ledger-20240101T000000Z.db",
        "ledger-20250101T000000Z.db",
        "mine.db",
        ".other-1.part",
        ".died-1.part",
    ):
        (out / name).write_text(name)
    os.utime(out / ".died-1.part", (time.time() - 2 * 86400,) * 2)
    with members(tmp_path / "etcd", 1) as made, moto(tmp_path) as server:
        started(made, objects)
        asyncio.run(written(made, None, "key", 3))
        endpoint = {"AWS_ENDPOINT_URL": f"http://{server.address}", "AWS_ALLOW_HTTP": "true"}
        url = f"s3://{BUCKET}/ledger"
        words: list[str | Path] = [BACKUP_SCRIPT, f"--folder={out}", "--keep=2", f"--bucket={url}", made[0].address]
        names = []
        for _ in range(3):
            done = run(words, **server.credentials, **endpoint)
            assert done.returncode == 0, done.stderr
            names.append(done.stdout.partition(":")[0])
            second = int(time.time())
            assert_eventually(lambda then=second: int(time.time()) > then, 5)  # type: ignore[misc] # names are of seconds
        for name, value in {**server.credentials, **endpoint}.items():
            monkeypatch.setenv(name, value)
        import obstore
        from obstore.store import from_url

        listed = sorted(each["path"] for batch in obstore.list(from_url(url)) for each in batch)
        assert listed == names[1:]
        assert bytes(obstore.get(from_url(url), names[2]).bytes()) == (out / names[2]).read_bytes()
        assert {each.name for each in out.iterdir()} == {*names[1:], "mine.db", ".other-1.part"}
        for name in ("ledger-29990101T000000Z.db", "ledger-29990102T000000Z.db"):
            (out / name).write_text("of a clock that went back")
        done = run([*words[:3], made[0].address])
        assert done.returncode == 0, done.stderr
        assert (out / done.stdout.partition(":")[0]).exists()
