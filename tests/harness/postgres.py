"""A PostgreSQL for the tests, from the binaries of Debian's package, in a temporary folder and on a free port of loopback.

Each pytest process has its own, started by the first test that needs it and ended with the process. `postgres` refuses to run as root, so
root runs it as the user `postgres` or `nobody`. It runs without fsync, since processes die in these tests and the machine does not; after
a kill the server must still have everything that it acknowledged, which the kernel ensures. Each test has its own schema.

If the binaries are missing, CI installs Debian's package as root; otherwise the tests are skipped with the command that installs it. An
existing server is not used, since these tests kill and freeze theirs.

A standby is a server of the same class, made from a base backup of another one; it follows until it is promoted.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from harness.child import REAP_TIMEOUT, Child, alive, free_port, freeze
from harness.eventually import assert_eventually
from harness.patience import cpu_of

PACKAGE = "postgresql"
USER, PASSWORD = "sparkonce", "pass/w@rd"
"""Contains characters that must be percent-encoded in an address."""
URL_PASSWORD = "pass%2Fw%40rd"
START_TIMEOUT = 60.0
"""Seconds: one on free cores."""
CONNECT_TIMEOUT = 60
"""Seconds for a connection: milliseconds on free cores."""
STANDBY = "standby"
"""The name by which a standby is known to its primary."""
INSTALL_TIMEOUT = 600.0
"""Seconds for fetching 50 MB over a slow line."""

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "autovacuum": "off",  # nothing here lives long enough for it, and it uses a core at odd times
    "max_wal_size": "256MB",
    "lc_messages": "C",
}


def binaries() -> Path | None:
    """The folder with `initdb` and `postgres`; Debian keeps them outside of PATH, one folder per version."""
    on_path = shutil.which("initdb")
    if on_path and shutil.which("postgres"):
        return Path(on_path).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def required_binaries() -> Path:
    """Installs the binaries in CI as root; otherwise skips the test with what to install."""
    found = binaries()
    if found is None and os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("apt-get"):
        _install()
        found = binaries()
    if found is None:
        pytest.skip(f"no PostgreSQL server here: install the package {PACKAGE} (initdb and postgres)")
    return found


def _install() -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", PACKAGE]):
        done = subprocess.run(
            ["apt-get", *command], env=environment, capture_output=True, text=True, timeout=INSTALL_TIMEOUT, check=False
        )
        if done.returncode != 0:
            raise AssertionError(f"apt-get {' '.join(command)} failed: {done.stderr.strip()[-500:]}")


class PostgresServer:
    """One server with its data; its addresses stay the same over `kill` and `start`."""

    def __init__(self, *, standby_of: PostgresServer | None = None, **settings: str) -> None:
        found = required_binaries()
        self.folder = Path(
            tempfile.mkdtemp(prefix="sparkonce-pg-")
        )  # short: a socket's path has at most 107 characters
        self.port = free_port()
        self._as_user = self._other_user()
        self._numbers = itertools.count()
        password = self.folder / "password"
        password.write_text(PASSWORD)
        if self._as_user:
            shutil.chown(password, self._as_user)
            shutil.chown(self.folder, self._as_user)
        flags = ["--no-sync", "--encoding=UTF8", "--locale=C", f"--username={USER}", f"--pwfile={password}"]
        auth = ["--auth-local=trust", "--auth-host=scram-sha-256"]
        self._initdb = [str(found / "initdb"), f"--pgdata={self.data}", *flags, *auth]
        if standby_of is None:
            self._run(self._initdb)
        else:
            source = f"host={standby_of.folder} port={standby_of.port} user={USER} application_name={STANDBY}"
            copy = ["--pgdata", str(self.data), "--write-recovery-conf", "--no-sync", "--checkpoint=fast"]
            self._run([str(found / "pg_basebackup"), "--dbname", source, *copy])
        options = {"port": str(self.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": str(self.folder)}
        given = [
            part for name, value in {**SETTINGS, **options, **settings}.items() for part in ("-c", f"{name}={value}")
        ]
        command = [*self._prefix(dies_with_us=True), str(found / "postgres"), "-D", str(self.data), *given]
        self.child = Child("postgres", command, self.folder / "log")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        """Over TCP, with the password."""
        return f"postgresql://{USER}:{URL_PASSWORD}@127.0.0.1:{self.port}/postgres"

    @property
    def socket_url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.folder}&port={self.port}"

    def _other_user(self) -> str | None:
        if os.geteuid() != 0:
            return None
        known = {entry.pw_name for entry in pwd.getpwall()}
        return "postgres" if "postgres" in known else "nobody"

    def _prefix(self, *, dies_with_us: bool = False) -> list[str]:
        """Command prefix that repeats `Child`'s request to the kernel after the change of user, which would drop it."""
        if self._as_user is None:
            return []
        user = pwd.getpwnam(self._as_user)
        ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        return ["setpriv", *ids, *(["--pdeathsig", "KILL"] if dies_with_us else []), "--"]

    def _run(self, command: list[str]) -> None:
        done = subprocess.run([*self._prefix(), *command], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command[0]} failed: {done.stdout}{done.stderr}"

    def start(self) -> None:
        """Starts the server; it serves when this returns. Retries if processes of a server that was just killed are still there."""

        def serves() -> bool:
            if not self.child.running:
                self.child.end()
                self.child.start()
            with contextlib.suppress(psycopg.OperationalError):
                self.connect().close()
                return True
            return False

        try:
            assert_eventually(
                serves,
                START_TIMEOUT,
                interval=0.05,
                progress=lambda: cpu_of(self.child.pid) if self.child.running else 0,
            )
        except AssertionError as error:
            raise AssertionError(f"postgres did not start: {self.child.last_words()}") from error

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.socket_url, autocommit=True, connect_timeout=CONNECT_TIMEOUT)

    def kill(self) -> None:
        """SIGKILL to the server and all of its processes; they and their connections are gone when this returns."""
        family = [self.child.pid, *self._children()]
        os.kill(self.child.pid, signal.SIGKILL)  # first, since it would restart the others
        for pid in family[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.child.kill()
        assert_eventually(lambda: not any(alive(pid) for pid in family), REAP_TIMEOUT)

    def _children(self) -> list[int]:
        tasks = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children")
        return [int(pid) for pid in tasks.read_text(encoding="ascii").split()]

    def freeze(self) -> None:
        """Stops all of its processes with SIGSTOP: connections stay open, nothing is answered."""
        for pid in [self.child.pid, *self._children()]:
            freeze(pid)

    def thaw(self) -> None:
        for pid in [self.child.pid, *self._children()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Frozen during the block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def take(self, place: Path) -> Path:
        """A backup as an administrator takes it: the folder of the stopped server. It serves again when this returns."""
        self.kill()
        shutil.copytree(self.data, place)
        self.start()
        return place

    def put_back(self, backup: Path | None) -> None:
        """Restores a backup, or with None makes an empty server. It serves when this returns."""
        self.kill()
        shutil.rmtree(self.data)
        if backup is None:
            self._run(self._initdb)
        else:
            shutil.copytree(backup, self.data)
            self._give_away(self.data)
        self.start()

    def _give_away(self, folder: Path) -> None:
        """A copy by root belongs to root."""
        if self._as_user is not None:
            for each in (folder, *folder.rglob("*")):
                shutil.chown(each, self._as_user)

    def commits_wait_for(self, standby: PostgresServer) -> None:
        """From now on a commit is acknowledged once the standby has it; returns when the standby is in step."""
        with self.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'".encode())
            connection.execute("SELECT pg_reload_conf()")

            def in_step() -> bool:
                found = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall()
                return found == [("sync",)]

            assert_eventually(in_step, START_TIMEOUT)
        assert standby.child.running

    def promote(self) -> None:
        """Makes a standby the primary; it takes writes when this returns."""
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")  # copied from the old primary
            connection.execute("SELECT pg_promote(false)")

            def writes() -> bool:
                try:
                    return connection.execute("SELECT pg_is_in_recovery()").fetchall() == [(False,)]
                except (
                    psycopg.errors.SerializationFailure
                ):  # what it still replays removes rows that this statement could see
                    return False

            assert_eventually(writes, START_TIMEOUT)

    def fresh_schema(self) -> str:
        return f"test_{next(self._numbers)}"

    def drop_schema(self, schema: str) -> None:
        with self.connect() as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())

    def close(self) -> None:
        if self.child.running:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def server() -> PostgresServer:
    """The server of this pytest process. Tests that kill or freeze a server start their own."""
    made, started_by = PostgresServer(), os.getpid()
    atexit.register(lambda: made.close() if os.getpid() == started_by else None)
    made.start()
    return made


class PostgresPair:
    """A primary and its standby. `url` names both: a client takes the one that accepts writes."""

    def __init__(self) -> None:
        self.primary = PostgresServer()
        try:
            self.primary.start()
            self.standby = PostgresServer(standby_of=self.primary)
        except BaseException:
            self.primary.close()
            raise
        self.standby.start()

    @property
    def url(self) -> str:
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://{USER}:{URL_PASSWORD}@{hosts}/postgres"

    def fail_over(self) -> None:
        """The primary dies, the standby takes writes when this returns."""
        self.primary.kill()
        self.standby.promote()

    def close(self) -> None:
        self.standby.close()
        self.primary.close()
