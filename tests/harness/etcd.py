"""A real etcd of one or three members on loopback, which a test may kill, freeze, restart, fill, compact and lock.

Each member keeps its ports and its data over kill and start. Tests inspect and change it from outside (content, compaction, users) through
etcd's JSON gateway on a plain port beside the one under test, so that the tested client never checks itself. Data is written without fsync:
a killed process loses nothing by that, only a power failure would.

The program is Debian's etcd 3.4 (package etcd-server), so that the quick tier waits for no build. The full tier runs the 3.6 that the
chart ships.
"""

from __future__ import annotations

import atexit
import base64
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from harness import binaries
from harness.child import Child, NotStarted, free_port
from harness.eventually import assert_eventually
from harness.patience import stretched
from harness.tiers import tier

START_TIMEOUT = 60.0
"""Seconds: one on free cores, and up to twenty beside nine other test runs on the same two."""
TRIES = 3
"""Attempts to start: another process may take the port between the check and the server's bind."""
ROOT_PASSWORD = "rooted"


@dataclass(frozen=True)
class Certificates:
    """A CA, a certificate for servers on loopback, and certificates for users by common name."""

    folder: Path
    authority: trustme.CA

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder, trustme.CA())
        made.authority.cert_pem.write_to_path(made.ca)
        made._issue("server", "127.0.0.1", "localhost")
        return made

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def chain(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def user(self, name: str) -> tuple[Path, Path]:
        """Chain and key of a certificate with this user's name as common name."""
        self._issue(name, f"{name}.users.test", common_name=name)
        return self.chain(name), self.key(name)

    def _issue(self, name: str, *identities: str, common_name: str | None = None) -> None:
        issued = self.authority.issue_cert(*identities, common_name=common_name)
        issued.private_key_pem.write_to_path(self.key(name))
        issued.cert_chain_pems[0].write_to_path(self.chain(name))


def program() -> list[str]:
    """The first words of etcd's command. Skips the test if it cannot be had."""
    system = shutil.which("etcd")
    if tier() == "full" or (system is None and tier() == "all"):
        return binaries.component("etcd")
    if system is None:
        pytest.skip("no etcd: install etcd-server (scripts/setup --tests does, as root)")
    return [system]


class Member:
    """One etcd process: `address` is for clients, everything else for the test."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        ports: tuple[int, int, int],
        peers: str,
        tls: Certificates | None,
        flags: Sequence[str],
    ) -> None:
        client, admin, peer = ports
        self.name = name
        self.data = folder / name
        """All of its state; may be copied, restored or removed while it is killed."""
        self.address = f"127.0.0.1:{client}"
        self._url = f"http://127.0.0.1:{admin}"
        self._token: str | None = None
        # Keeps no connection, which would be dead after each kill, and loads no certificates, since it is plain loopback.
        self._http = httpx.Client(
            base_url=self._url,
            trust_env=False,
            verify=False,
            timeout=10.0,
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        scheme = "http" if tls is None else "https"
        secure = (
            []
            if tls is None
            else [
                f"--cert-file={tls.chain('server')}",
                f"--key-file={tls.key('server')}",
                f"--trusted-ca-file={tls.ca}",
                "--client-cert-auth",
            ]
        )
        command = [
            *program(),
            f"--name={name}",
            f"--data-dir={self.data}",
            f"--listen-client-urls={scheme}://{self.address},{self._url}",
            f"--advertise-client-urls={scheme}://{self.address}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster={peers}",
            "--log-level=warn",
            "--unsafe-no-fsync",
            *secure,
            *flags,
        ]
        self.child = Child(f"etcd {name}", command, folder / f"{name}.log")

    def start(self) -> None:
        """Starts the member; it serves when this returns."""
        self.child.start()
        self.until_ready()

    def kill(self) -> None:
        self.child.kill()

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        self.child.freeze()

    def thaw(self) -> None:
        self.child.thaw()

    def close(self) -> None:
        self.thaw()
        self.kill()
        self._http.close()

    def until_ready(self) -> None:
        self.child.until(self.is_ready, START_TIMEOUT)

    def is_ready(self) -> bool:
        try:
            reply = self._http.get("/health", timeout=stretched(2.0))
            return bool(reply.json()["health"] == "true")
        except (httpx.HTTPError, ValueError):
            return False

    def knows_its_version(self) -> bool:
        """The members have agreed on the version of their cluster."""
        return bool(self._http.get("/version", timeout=2.0).json()["etcdcluster"] != "not_decided")

    def post(self, path: str, body: dict[str, Any], *, timeout: float = 10.0) -> dict[str, Any]:
        """The answer of etcd's gateway; fails the test if it is an error."""
        headers = {"Authorization": self._token} if self._token else {}
        reply = self._http.post(f"/v3/{path}", json=body, headers=headers, timeout=stretched(timeout))
        if "invalid auth token" in reply.text and self._token:
            self.log_in()
            return self.post(path, body, timeout=timeout)
        assert reply.is_success, f"{path}: {reply.status_code} {reply.text}"
        answer: dict[str, Any] = reply.json()
        return answer

    def log_in(self) -> None:
        self._token = None
        self._token = self.post("auth/authenticate", {"name": "root", "password": ROOT_PASSWORD})["token"]

    def log_out(self) -> None:
        self._token = None

    def counted(self, metric: str, **labels: str) -> float:
        """Sum of this metric over all series with these labels."""
        text = self._http.get("/metrics").text
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        lines = [line for line in text.splitlines() if re.match(rf"{metric}(\{{|\s)", line)]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(each in line for each in wanted))

    def is_leader(self) -> bool:
        status = self.post("maintenance/status", {})
        return bool(status.get("leader") == status["header"]["member_id"])


class Etcd:
    """The cluster. Clients are given `endpoints`."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)

    @property
    def endpoints(self) -> list[str]:
        return [member.address for member in self.members]

    @property
    def one(self) -> Member:
        (member,) = self.members
        return member

    def leader(self, *, but: Member | None = None) -> Member:
        """The leader, as soon as there is one; `but`: a dead or frozen member that does not count."""
        asked = [each for each in self.members if each is not but]

        def look() -> list[Member]:
            return [each for each in asked if each.is_leader()]

        return assert_eventually(look, START_TIMEOUT)[0]

    # The following methods use the first member, or the one given.

    def content(self, prefix: bytes, *, at: Member | None = None) -> dict[bytes, bytes]:
        """All keys under the prefix, linearizable."""
        body = {"key": _b64(prefix), "range_end": _b64(_end(prefix))}
        kvs = (at or self.members[0]).post("kv/range", body).get("kvs", [])
        return {base64.b64decode(kv["key"]): base64.b64decode(kv.get("value", "")) for kv in kvs}

    def versions(self, prefix: bytes, *, at: Member | None = None) -> dict[bytes, int]:
        """Versions of the keys under the prefix: how often each was written since it was created."""
        body = {"key": _b64(prefix), "range_end": _b64(_end(prefix)), "keys_only": True}
        kvs = (at or self.members[0]).post("kv/range", body).get("kvs", [])
        return {base64.b64decode(kv["key"]): int(kv["version"]) for kv in kvs}

    def delete(self, key: bytes) -> None:
        self.members[0].post("kv/deleterange", {"key": _b64(key)})

    def revoke(self, lease: int) -> None:
        self.members[0].post("lease/revoke", {"ID": str(lease)})

    def revoke_under(self, prefix: bytes) -> None:
        """Revokes the leases of the keys under this prefix."""
        body = {"key": _b64(prefix), "range_end": _b64(_end(prefix))}
        for lease in {int(kv.get("lease", 0)) for kv in self.members[0].post("kv/range", body).get("kvs", [])} - {0}:
            self.revoke(lease)

    def put(self, key: bytes, value: bytes = b"x", *, at: Member | None = None) -> int:
        """Puts a key; returns the revision."""
        reply = (at or self.members[0]).post("kv/put", {"key": _b64(key), "value": _b64(value)})
        return int(reply["header"]["revision"])

    def compact(self, revision: int, *, at: Member | None = None) -> None:
        """Compacts; all older revisions are gone when this returns."""
        (at or self.members[0]).post("kv/compaction", {"revision": str(revision), "physical": True})

    def revision(self) -> int:
        return int(self.members[0].post("kv/range", {"key": _b64(b"\0"), "count_only": True})["header"]["revision"])

    def leases(self) -> list[int]:
        return [int(each["ID"]) for each in self.members[0].post("lease/leases", {}).get("leases", [])]

    def add_user(self, name: str, password: str | None, *, prefix: bytes) -> None:
        """Adds a user who may read and write under the prefix; without a password the user logs in by certificate."""
        post = self.members[0].post
        post("auth/role/add", {"name": name})
        permission = {"permType": "READWRITE", "key": _b64(prefix), "range_end": _b64(_end(prefix))}
        post("auth/role/grant", {"name": name, "perm": permission})
        options = {"options": {"no_password": True}} if password is None else {"password": password}
        post("auth/user/add", {"name": name, **options})
        post("auth/user/grant", {"user": name, "role": name})

    def turn_auth_on(self) -> None:
        """Requires a login from now on; this harness logs in as root."""
        post = self.members[0].post
        post("auth/user/add", {"name": "root", "password": ROOT_PASSWORD})
        post("auth/role/add", {"name": "root"})
        post("auth/user/grant", {"user": "root", "role": "root"})
        post("auth/enable", {})
        for member in self.members:
            member.log_in()

    def turn_auth_off(self) -> None:
        """Allows requests without a login again."""
        self.members[0].post("auth/disable", {})
        for member in self.members:
            member.log_out()

    def close(self) -> None:
        for member in self.members:
            member.close()


@contextmanager
def running(
    folder: Path, *, members: int = 1, tls: Certificates | None = None, flags: Sequence[str] = ()
) -> Iterator[Etcd]:
    """A serving cluster, removed afterwards. `flags` are etcd's own."""
    etcd = _started(folder, members=members, tls=tls, flags=flags)
    try:
        yield etcd
    finally:
        etcd.close()


@cache
def shared(members: int = 1) -> Etcd:
    """The cluster of this test process: it starts with the first test that needs it, in memory, and ends with the process. Tests that stop,
    fill or lock a member start their own."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="sparkonce-etcd-", dir=memory if os.access(memory, os.W_OK) else None))
    stack = ExitStack()
    atexit.register(stack.close)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return stack.enter_context(running(folder, members=members))


def _started(folder: Path, *, members: int, tls: Certificates | None, flags: Sequence[str]) -> Etcd:
    for attempt in range(1, TRIES + 1):
        place = folder / f"etcd-{attempt}"
        place.mkdir(parents=True)
        ports = [(free_port(), free_port(), free_port()) for _ in range(members)]
        peers = ",".join(f"m{number}=http://127.0.0.1:{peer}" for number, (_, _, peer) in enumerate(ports))
        etcd = Etcd(
            [
                Member(place, f"m{number}", ports=each, peers=peers, tls=tls, flags=flags)
                for number, each in enumerate(ports)
            ]
        )
        try:
            for member in etcd.members:
                member.child.start()
            for member in etcd.members:
                member.until_ready()
        except NotStarted:
            etcd.close()
            if attempt == TRIES:
                raise
        else:
            return etcd
    raise AssertionError("unreachable")


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _end(prefix: bytes) -> bytes:
    assert prefix and prefix[-1] < 0xFF, "a prefix of tests ends in a letter"
    return prefix[:-1] + bytes([prefix[-1] + 1])
