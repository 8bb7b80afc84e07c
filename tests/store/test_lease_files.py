"""Leases as file locks: held by one process, visible to all, and never kept alive by another process."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import threading
import time
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from harness.eventually import assert_eventually
from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable, StoreUnusable
from sparkonce.store.protocol import Lease
from sparkonce.store.sqlite import lease as lease_files
from sparkonce.store.sqlite.lease import FileLease, LeaseFiles
from sparkonce.store.sqlite.store import SqliteStore
from store.backends import Sqlite
from store.racing import at_once
from store.samples import reserved
from store.worker import Worker

ROUNDS = 200
WAITS = 60.0
"""Seconds for a step of another thread, which takes microseconds."""


def opened(leases: LeaseFiles) -> FileLease:
    return leases.open(owner="me", touch=lambda lease: None, forget=lambda lease: None)


def test_a_lease_is_held_until_it_is_let_go(tmp_path: Path) -> None:
    """A held lease is seen as held by its own process, too; after its release it is never held again; a lease that never existed is not
    held."""
    leases = LeaseFiles(tmp_path / "leases")
    lease = opened(leases)
    assert leases.held(lease.id)
    assert not lease.ended
    lease.let_go()
    assert lease.ended
    assert not leases.held(lease.id)
    assert not leases.held("never")


def test_looking_disturbs_nobody(tmp_path: Path) -> None:
    """Any number of processes that check at once see a dead lease as dead and a live one as alive: none mistakes another's check for the
    owner's lock."""
    leases = LeaseFiles(tmp_path / "leases")
    dead, alive = opened(leases), opened(leases)
    dead.let_go()
    calls = [partial(looks, leases, dead.id, alive.id)] * 8
    assert at_once(calls) == [(0, ROUNDS)] * 8


def looks(leases: LeaseFiles, dead: str, alive: str) -> tuple[int, int]:
    return sum(leases.held(dead) for _ in range(ROUNDS)), sum(leases.held(alive) for _ in range(ROUNDS))


def test_revoke_removes_the_file(tmp_path: Path) -> None:
    """Revoking a lease removes its file; revoking it twice does no harm."""
    leases = LeaseFiles(tmp_path / "leases")
    lease = opened(leases)
    assert stat.S_IMODE((tmp_path / "leases" / lease.id).stat().st_mode) == 0o600
    run(lease.revoke())
    run(lease.revoke())
    assert list((tmp_path / "leases").iterdir()) == []
    assert run(lease.keep_alive()) is False


@pytest.mark.parametrize("problem", [StoreUnavailable("it is locked"), StoreUnusable("it is read-only")])
def test_revoke_lets_go_whatever_becomes_of_the_ledger(tmp_path: Path, problem: Exception) -> None:
    """A ledger that cannot be written keeps no claim of a lease that was revoked: the lock goes, and its holder gets no error."""

    def fails(_: str) -> None:
        raise problem

    leases = LeaseFiles(tmp_path / "leases")
    lease = leases.open(owner="me", touch=lambda lease: None, forget=fails)
    run(lease.revoke())
    assert not leases.held(lease.id)


def test_revoke_closes_the_descriptor_of_a_file_that_was_removed(tmp_path: Path) -> None:
    """A folder of leases that was removed leaves no descriptor open in a process that lives on."""
    before = open_files()
    lease = opened(LeaseFiles(tmp_path / "leases"))
    shutil.rmtree(tmp_path / "leases")
    run(lease.revoke())
    assert open_files() == before


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_lease_whose_file_was_removed_has_ended(tmp_path: Path) -> None:
    """Other processes cannot see it any more, so its holder must treat it as ended, too."""
    leases = LeaseFiles(tmp_path / "leases")
    lease = opened(leases)
    (tmp_path / "leases" / lease.id).unlink()
    assert not leases.held(lease.id)
    assert lease.ended
    assert run(lease.keep_alive()) is False


def test_a_lease_whose_folder_was_moved_has_ended(tmp_path: Path) -> None:
    """Other processes look for it beside the ledger, so its holder must treat it as ended."""
    leases = LeaseFiles(tmp_path / "leases")
    lease = opened(leases)
    (tmp_path / "leases").rename(tmp_path / "moved")
    assert not leases.held(lease.id)
    assert lease.ended
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / lease.id).touch()
    assert lease.ended


def test_litter_is_swept_and_the_living_are_not(tmp_path: Path) -> None:
    """Opening a lease removes old files of killed processes; a file that is locked or recent stays."""
    leases = LeaseFiles(tmp_path / "leases")
    old_and_dead, old_and_alive, young = opened(leases), opened(leases), opened(leases)
    long_ago = time.time() - 2 * lease_files.LITTER_AGE
    for lease in (old_and_dead, old_and_alive):
        os.utime(tmp_path / "leases" / lease.id, (long_ago, long_ago))
    old_and_dead.let_go()
    young.let_go()
    newest = opened(leases)
    left = {path.name for path in (tmp_path / "leases").iterdir()}
    assert left == {old_and_alive.id, young.id, newest.id}
    assert leases.held(old_and_alive.id)


def test_a_forked_child_keeps_no_lease(sqlite: Sqlite, worker: Worker) -> None:
    """When a process is killed its lease ends although a forked child lives on; the child itself holds no lease."""
    store = sqlite.open()
    child, key = worker.do(fork_and_stay)
    try:
        assert run(store.load(key)).claim is not None
        worker.kill()
        os.kill(child, 0)
        assert run(store.load(key)).claim is None
    finally:
        os.kill(child, signal.SIGKILL)


def fork_and_stay(store: SqliteStore, lease: Lease) -> tuple[int, object]:
    """The child reports through a pipe whether its parent's lease counts as held by another process, and keeps running."""
    key = reserved(store, lease)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        assert isinstance(lease, FileLease)
        os.write(theirs, b"1" if lease.ended and key.view().claim == key.claim else b"0")
        while True:
            signal.pause()
    assert os.read(ours, 1) == b"1"
    return child, key.address


def test_a_fork_while_another_thread_checks_the_lease(worker: Worker) -> None:
    """The child's copy of the thread's lock is never released. The child finds the lease ended without it, and can let go of it."""
    assert worker.do(fork_while_a_thread_checks) == 0


def fork_while_a_thread_checks(_: SqliteStore, lease: Lease) -> int:
    """The child's exit code; SIGALRM ends a child that waits for the lock."""
    assert isinstance(lease, FileLease)
    path, checks, goes_on = lease._path, threading.Event(), threading.Event()

    class Slow:
        def stat(self) -> os.stat_result:
            checks.set()
            assert goes_on.wait(WAITS)
            return path.stat()

    lease._path = cast(Path, Slow())
    thread = threading.Thread(target=lambda: lease.ended)
    thread.start()
    assert checks.wait(WAITS)
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        ended = lease.ended
        lease.let_go()
        os._exit(0 if ended and lease.ended else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    goes_on.set()
    thread.join()
    lease._path = path
    assert not lease.ended
    return code


def test_a_child_by_exec_keeps_no_lease(sqlite: Sqlite, worker: Worker) -> None:
    """A command that a killed process had started lives on without its lease."""
    store = sqlite.open()
    child, key = worker.do(spawn_and_stay)
    try:
        worker.kill()
        os.kill(child, 0)
        assert run(store.load(key)).claim is None
    finally:
        os.kill(child, signal.SIGKILL)


def spawn_and_stay(store: SqliteStore, lease: Lease) -> tuple[int, object]:
    key = reserved(store, lease)
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
    assert_eventually(lambda: Path(f"/proc/{child}/comm").read_text(encoding="ascii").strip() == "sleep", 10.0)
    return child, key.address


def test_leases_of_one_process_are_apart(sqlite: Sqlite) -> None:
    """Two leases of one process end independently: a claim under the other one stays."""
    store = sqlite.open()
    one, other = reserved(store), reserved(store)
    sqlite.expire(one.lease)
    assert (one.view().claim, other.view().claim) == (None, other.claim)


def test_a_claim_of_another_boot_is_dead(sqlite: Sqlite, worker: Worker) -> None:
    """After a reboot the row exists and the lock does not; should an id be reused, the boot id tells them apart."""
    store = sqlite.open()
    key = reserved(store)
    with store._database.writing() as transaction:
        transaction.rows(
            "touch claim",
            {"at_realm": "local", "at_hash": key.record.key_hash, "new_touch": 1e9, "new_boot": "another"},
        )
        transaction.commit()
    assert key.view().claim is None
