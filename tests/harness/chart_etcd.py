"""The bundled etcd as the chart renders it, as processes on loopback: its command, with other addresses and folders.

Everything else is the chart's: flags, certificates, the order of its members. A member may be replaced by one of other values on the same
data, as a rolling upgrade of the StatefulSet does.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import sys
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.binaries import component
from harness.child import Child, free_port
from harness.helm import CHART, NAMESPACE, RELEASE, ROOT, one, rendered
from harness.patience import completed
from images import contents, go
from sparkonce.etcd.channel import Tls

START_TIMEOUT = 60.0
"""Seconds for a member to serve: two on free cores."""
PEER_URLS = CHART / "files" / "peer_urls.py"
"""What the chart runs before an upgrade."""
BACKUP_SCRIPT = CHART / "files" / "backup.py"
"""What its CronJob runs."""


def secret_files(objects: Sequence[dict[str, Any]], name: str, folder: Path) -> Path:
    """The folder, with the Secret's entries as files; `name` is the end of the Secret's. A program that reads one meanwhile finds the old
    content or the new, as in a pod."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry, value in one(objects, "Secret", name)["data"].items():
        new = folder / f"{entry}.new"
        new.write_bytes(base64.b64decode(value))
        new.replace(folder / entry)
    return folder


def tls_of(folder: Path) -> Tls:
    return Tls(ca=folder / "ca.crt", cert=folder / "tls.crt", key=folder / "tls.key")


class ChartMember:
    """One member: a process that is started from rendered objects, again and again."""

    def __init__(self, folder: Path, number: int, ports: Sequence[tuple[int, int, int]]) -> None:
        self.folder, self.number, self.ports = folder, number, list(ports)
        self.client, self.peer, self.metrics = ports[number]
        self.address = f"127.0.0.1:{self.client}"
        self.data = folder / f"data-{number}"
        self.data.mkdir(mode=0o700, parents=True)
        self._child: Child | None = None

    def start(self, objects: Sequence[dict[str, Any]]) -> None:
        """Starts it as these objects say; `until_ready` waits until it serves."""
        if any(each["kind"] == "Secret" and each["metadata"]["name"].endswith("-members") for each in objects):
            secret_files(objects, "-members", self.folder / "members")
        words = self.words(objects)
        name = words["$(POD_NAME)"]
        command = [translated(each, words) for each in container(objects)["command"][1:]]
        self._child = Child(name, [*component("etcd"), *command, "--unsafe-no-fsync"], self.folder / f"{name}.log")
        self._child.start()

    def words(self, objects: Sequence[dict[str, Any]]) -> dict[str, str]:
        """Word of the chart -> this member's: its name, folders and addresses on loopback."""
        etcd = one(objects, "StatefulSet", "etcd")
        name = f"{etcd['metadata']['name']}-{self.number}"
        host = f"{etcd['spec']['serviceName']}.{NAMESPACE}.svc"
        words = {"$(POD_NAME)": name, "/var/lib/etcd": str(self.data), "/etc/etcd/tls": str(self.folder / "members")}
        for number, (client, peer, _) in enumerate(self.ports):
            there = f"{etcd['metadata']['name']}-{number}.{host}"
            words |= {f"{there}:2379": f"127.0.0.1:{client}", f"{there}:2380": f"127.0.0.1:{peer}"}
        for theirs, mine in (("2379", self.client), ("2380", self.peer), ("2381", self.metrics)):
            words[f"0.0.0.0:{theirs}"] = words[f"127.0.0.1:{theirs}"] = f"127.0.0.1:{mine}"
        return words

    def environment(self, objects: Sequence[dict[str, Any]]) -> dict[str, str]:
        """Environment of a program that `kubectl exec` starts in this member's container."""
        words = self.words(objects)
        return {each["name"]: translated(each["value"], words) for each in container(objects)["env"] if "value" in each}

    def until_ready(self) -> None:
        """Returns once the chart's readiness probe would succeed, which reads through the quorum."""
        assert self._child is not None
        self._child.until(self.is_ready, START_TIMEOUT)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def close(self) -> None:
        if self._child is not None:
            self._child.end()


def container(objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = one(objects, "StatefulSet", "etcd")["spec"]["template"]["spec"]["containers"][0]
    return found


def translated(text: str, words: Mapping[str, str]) -> str:
    for old, new in words.items():  # in turn: a word may stand for a part of another one
        ends = r"(?!\d)"  # the port 23791, which was drawn, begins like the chart's
        text = re.sub(re.escape(old) + ends, new.replace("\\", r"\\"), text)
    return text


@contextmanager
def members(folder: Path, count: int) -> Iterator[list[ChartMember]]:
    """Members that are not started yet; all are ended afterwards."""
    ports = [(free_port(), free_port(), free_port()) for _ in range(count)]
    made = [ChartMember(folder, number, ports) for number in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def started(made: Sequence[ChartMember], objects: Sequence[dict[str, Any]]) -> None:
    """Starts all, as a new StatefulSet does (podManagementPolicy: Parallel)."""
    for each in made:
        each.start(objects)
    for each in made:
        each.until_ready()


def replaced(member: ChartMember, objects: Sequence[dict[str, Any]]) -> None:
    """What a rolling upgrade does with one pod: ended, started anew on its data, waited for."""
    member.close()
    member.start(objects)
    member.until_ready()


def peer_urls(wanted: str, folder: Path, made: Sequence[ChartMember]) -> str:
    """Output of the chart's hook before an upgrade, run on these members; `folder` has the clients' certificate, if there is one."""
    addresses = [each.address for each in made]
    done = completed([sys.executable, "-I", str(PEER_URLS), wanted, str(folder), *addresses], 120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused_by(port: int, folder: Path | None = None) -> bool:
    """Whether a TLS server on loopback ends the connection of a client with this certificate, or without one, before it answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the server's identity is not asked here
    if folder is not None:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    try:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/version", timeout=5, context=context) as answer:
            return not answer.read()
    except OSError:
        return True


def objects_with(*sets: str) -> list[dict[str, Any]]:
    """The objects of a release with a bundled etcd and these settings."""
    return rendered(sets=["etcd.bundled.enabled=true", "crds.install=false", *sets], fresh=True)


def etcd_programs(folder: Path) -> Path:
    """A folder with etcdctl and etcdutl of the etcd image. Skips the test if the image's programs cannot be had."""
    try:
        layer = go.layer(contents.image("etcd"))
    except contents.NotBuilt as missing:
        pytest.skip(str(missing))
    with tarfile.open(layer.path) as tar:
        for each in tar:
            name = each.name.rpartition("/")[2]
            if each.isfile() and name in {"etcdctl", "etcdutl"}:
                each.name, each.mode = name, 0o755
                tar.extract(each, folder, filter="data")
    return folder


# --- what docs/helm.md says ---


def documented_commands(title: str) -> str:
    """The first block of commands after this title in docs/helm.md."""
    text = (ROOT / "docs" / "helm.md").read_text()
    return text[text.index(f"**{title}.**") :].split("```sh\n", 1)[1].split("```", 1)[0]


def documented_restore() -> dict[str, Any]:
    """The pod that restores a snapshot."""
    (text,) = re.findall(r"<<'END'\n(.*?)^END$", documented_commands("Restore"), re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


SNAPSHOT = re.compile(r"/backup/ledger-\d{8}T\d{6}Z\.db")


def restore(member: ChartMember, objects: Sequence[dict[str, Any]], snapshot: Path, programs: Path) -> None:
    """Runs the containers of the documented pod for this member, which is ended: with its own number and claims, as the page says for
    three."""
    pod = documented_restore()["spec"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        words = [SNAPSHOT.sub(str(snapshot), each) for each in [*container["command"], *container["args"]]]
        for at, each in enumerate(words):
            if each.startswith("--initial-cluster="):
                (first,) = re.findall(r"=(sparkonce-etcd-0=.*)", each)
                names = [first.replace("etcd-0", f"etcd-{number}") for number in range(len(member.ports))]
                words[at] = f"--initial-cluster={','.join(names)}"
            else:
                words[at] = each.replace("etcd-0", f"etcd-{member.number}")
        words = [_of_the_test(each) if each.startswith("--") else each for each in words]
        run_container([translated(each, member.words(objects)) for each in words], programs)


def run_container(words: Sequence[str], programs: Path) -> None:
    """A container's command as a process: etcd's programs are those of its image."""
    words = [sys.executable if words[0] == "python3" else words[0], *words[1:]]
    done = completed(words, 60, env={"PATH": f"{programs}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stdout + done.stderr


def _of_the_test(text: str) -> str:
    """With the names of the tests' release for those of the page's."""
    return (
        text.replace("sparkonce-etcd", f"{RELEASE}-sparkonce-etcd")
        .replace("etcd.sparkonce.svc", f"etcd.{NAMESPACE}.svc")
        .replace("token=sparkonce-", f"token={NAMESPACE}-")
    )
