"""The bundled etcd's certificates: real members from the rendered chart, clients with and without a certificate, and upgrades."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.binaries import component
from harness.chart_etcd import (
    PEER_URLS,
    ChartMember,
    documented_commands,
    etcd_programs,
    members,
    objects_with,
    peer_urls,
    refused_by,
    replaced,
    restore,
    secret_files,
    started,
    tls_of,
    translated,
)
from harness.eventually import assert_eventually
from harness.helm import one
from harness.patience import Patience, completed
from sparkonce.etcd.channel import Tls
from sparkonce.etcd.client import Client
from sparkonce.etcd.errors import EtcdUnavailable
from sparkonce.etcd.kv import Put, Range

PLAIN = ("etcd.bundled.tls.enabled=false", "acceptInsecure=true")
"""Values for the plain text that earlier releases always used."""
TIMEOUT = 12.0
"""Seconds for a call: two for each member that speaks another protocol, before the client tries the next one."""
ANSWER = 30.0
"""Seconds for a write to succeed; an election takes one or two."""
REFUSED = 3.0
"""Seconds for a call that is to be refused: gRPC reconnects until the time is over."""
THREE = "etcd.bundled.replicas=3"


async def written(made: Sequence[ChartMember], tls: Tls | None, value: bytes) -> None:
    """Writes under one key through any member that answers, and reads it back."""
    client = Client.open([each.address for each in made], tls=tls, timeout=TIMEOUT)
    try:
        patience = Patience(ANSWER)
        while True:  # some members speak another protocol, and the leader may just have been replaced
            try:
                await client.txn([], [Put(b"ledger", value)])
                break
            except EtcdUnavailable as late:
                if patience.over():
                    raise AssertionError("not written in time") from late
                await asyncio.sleep(0.5)
        (found,) = (await client.range(Range(b"ledger"))).kvs
        assert found.value == value
    finally:
        await client.close()


async def read(made: Sequence[ChartMember], tls: Tls | None, *, timeout: float = TIMEOUT) -> bytes:
    client = Client.open([each.address for each in made], tls=tls, timeout=timeout)
    try:
        (found,) = (await client.range(Range(b"ledger"))).kvs
        return bytes(found.value)
    finally:
        await client.close()


def test_the_ledger_answers_the_releases_own_certificate_only(tmp_path: Path) -> None:
    """The operator's client reads and writes with the Secret that it mounts. Plain text, a missing certificate, and one of another
    release's CA are refused, also at the port for members."""
    objects = objects_with()
    ours = tls_of(secret_files(objects, "-client", tmp_path / "ours"))
    strangers = secret_files(objects_with(), "-client", tmp_path / "theirs")
    with members(tmp_path / "etcd", 1) as made:
        started(made, objects)
        asyncio.run(written(made, ours, b"1"))
        for tls in (None, Tls(ca=ours.ca), Tls(ca=ours.ca, cert=strangers / "tls.crt", key=strangers / "tls.key")):
            with pytest.raises(EtcdUnavailable):
                asyncio.run(read(made, tls, timeout=REFUSED))
        for port in (made[0].client, made[0].peer):
            assert refused_by(port)
            assert refused_by(port, strangers)
            assert not refused_by(port, tmp_path / "ours"), "the check itself works"


def test_a_member_keeps_its_data_when_it_begins_to_ask_for_certificates(tmp_path: Path) -> None:
    """A member of an earlier release is replaced by one of this release on the same data: the record is there, and plain text is
    refused."""
    secured = objects_with()
    ours = tls_of(secret_files(secured, "-client", tmp_path / "ours"))
    with members(tmp_path / "etcd", 1) as made:
        started(made, objects_with(*PLAIN))
        asyncio.run(written(made, None, b"of before"))
        replaced(made[0], secured)
        assert asyncio.run(read(made, ours)) == b"of before"
        with pytest.raises(EtcdUnavailable):
            asyncio.run(read(made, None, timeout=REFUSED))


@pytest.mark.parametrize("way", ["to TLS", "back to plain text"])
def test_three_members_change_between_plain_text_and_tls_one_by_one(tmp_path: Path, way: str) -> None:
    """After the chart's preparing step, the three always have a quorum: clients with the old values read and write until the last member is
    replaced, clients with the new ones from the first replacement on. The next upgrade removes the old URLs."""
    secured, plain = objects_with(THREE), objects_with(THREE, *PLAIN)
    folder = secret_files(secured, "-client", tmp_path / "ours")
    ours: Tls | None = tls_of(folder)
    (old, theirs), (new, mine), scheme = (plain, None), (secured, ours), "https"
    if way != "to TLS":
        (old, theirs), (new, mine), scheme = (secured, ours), (plain, None), "http"
    with members(tmp_path / "etcd", 3) as made:
        started(made, old)
        asyncio.run(written(made, theirs, b"0"))
        assert peer_urls(scheme, folder, made).count("http://127.0.0.1") == 3
        assert peer_urls(scheme, folder, made) == "", "once is enough"
        for number in (2, 1, 0):
            replaced(made[number], new)
            asyncio.run(written(made, mine, b"%d new" % number))
            if number:
                asyncio.run(written(made, theirs, b"%d old" % number))
        said = assert_eventually(lambda: peer_urls(scheme, folder, made), 60)  # all three have to answer it
        assert said.count("127.0.0.1") == said.count(f"{scheme}://127.0.0.1") == 3
        for each in made:
            replaced(each, new)
        assert asyncio.run(read(made, mine)) == b"0 new"


def test_nothing_is_prepared_where_no_ledger_is(tmp_path: Path) -> None:
    """Before the first installation no member's name resolves; the hook, which some tools run even then, succeeds."""
    command = [sys.executable, "-I", str(PEER_URLS), "https", str(tmp_path), "etcd-0.etcd.none.invalid:2379"]
    done = completed(command, 60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing to prepare" in done.stdout


# --- the commands of docs/helm.md, executed ---

KUBECTL = """#!/bin/sh
# Secrets are read from a file, by the real kubectl; the member's port is on loopback already.
case "$1 $2" in
"get secret") [ "$5" = sparkonce-etcd-client ] && exec {kubectl} annotate --local -f {secret} a=b "$6" "$7" ;;
"port-forward -n") exit 0 ;;
esac
exit 64
"""


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_documented_commands_work_with_certificates(tmp_path: Path, count: int) -> None:
    """The documented commands check and defragment the ledger from the container, save it from outside with the clients' Secret, and
    restore it from the snapshot alone."""
    programs = etcd_programs(tmp_path / "bin")
    objects = objects_with(f"etcd.bundled.replicas={count}")
    ours = tls_of(secret_files(objects, "-client", tmp_path / "ours"))
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(one(objects, "Secret", "-client")))
    kubectl = programs / "kubectl"
    kubectl.write_text(KUBECTL.format(kubectl=" ".join(component("kubectl")), secret=secret))
    kubectl.chmod(0o755)
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    with members(tmp_path / "etcd", count) as made:
        started(made, objects)
        asyncio.run(written(made, ours, b"of before"))
        for line in re.findall(r"-- (etcdctl [^#\n]+)", documented_commands("Room")):
            done = completed(line.split(), 60, env=path | made[0].environment(objects))
            assert done.returncode == 0, done.stderr
        saving = translated(documented_commands("By hand"), {"127.0.0.1:2379": made[0].address})
        done = completed(["sh", "-ec", saving], 60, env=path, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        asyncio.run(written(made, ours, b"of afterwards"))
        for each in made:
            each.close()
            shutil.rmtree(each.data)
        for each in made:
            restore(each, objects, tmp_path / "ledger.db", programs)
        started(made, objects)
        assert asyncio.run(read(made, ours)) == b"of before"
