"""The ledger as a file: who may read it, where it may be, and the errors for a file that cannot be used."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sparkonce.blocking import run
from sparkonce.errors import SparkonceError, StoreUnavailable, StoreUnusable
from sparkonce.model.record import Record, Report
from sparkonce.store.ledger import at
from sparkonce.store.protocol import Lease
from sparkonce.store.sqlite import database as sqlite
from sparkonce.store.sqlite import schema
from sparkonce.store.sqlite.database import SqliteDatabase
from sparkonce.store.sqlite.lease import network_file_system
from sparkonce.store.sqlite.store import SqliteStore
from store.backends import Sqlite
from store.racing import at_once, in_children
from store.samples import Key, reserved, result
from store.worker import Worker

MOUNTS = """\
/dev/vda / ext4 rw 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/ann/local\\040disk ext4 rw 0 0
me@host: /mnt/far fuse.sshfs rw 0 0
//nas/share /mnt/far/nas cifs rw 0 0
tmpfs /mnt/far/nas tmpfs rw 0 0
"""


def test_only_the_user_may_read_a_ledger(tmp_path: Path) -> None:
    """A new ledger, its folder and its leases are readable by the user only, since the ledger holds specs. An existing folder keeps its
    mode."""
    tmp_path.chmod(0o755)
    store = SqliteStore(tmp_path / "new" / "ledger.db")
    run(store.open_lease(owner="me"))
    reserved(store)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
    assert modes.pop("ledger.db.leases") == 0o700
    assert set(modes) == {"ledger.db", "ledger.db-wal", "ledger.db-shm"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    run(store.close())


def test_answers_are_durable(tmp_path: Path) -> None:
    """Every connection uses WAL with synchronous=FULL, unless a test says otherwise."""
    store = SqliteStore(tmp_path / "ledger.db")
    with store._database._connection() as one, store._database._connection() as other:
        for connection in (one, other):
            assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
            assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    run(store.close())
    with pytest.raises(ValueError):
        SqliteStore(tmp_path / "ledger.db", synchronous="SOMETIMES")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ann/ledger.db", "nfs4"),
        ("/home/ann/local disk/ledger.db", None),
        ("/homes/ann/ledger.db", None),
        ("/mnt/far/x/ledger.db", "fuse.sshfs"),
        ("/mnt/far/nas/ledger.db", None),
        ("/var/ledger.db", None),
    ],
)
def test_the_mount_that_a_path_is_on(path: str, kind: str | None) -> None:
    """The longest mount point decides, and of two equal ones the later; spaces are decoded as the kernel writes them."""
    assert network_file_system(Path(path), mounts=MOUNTS) == kind


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    """A ledger on a network file system is refused, naming its type, before anything is created there."""
    mounts = f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path} nfs rw 0 0\n"
    with pytest.raises(StoreUnusable, match=r"network file system \(nfs\)"):
        SqliteStore(tmp_path / "ledger.db", mounts=mounts)
    assert not (tmp_path / "ledger.db").exists()
    run(SqliteStore(tmp_path / "ledger.db", mounts="/dev/vda / ext4 rw 0 0\n").close())


def newer_layout(path: Path) -> None:
    run(SqliteStore(path).close())
    change(path, "UPDATE meta SET layout = layout + 1")


def another_install(path: Path) -> None:
    run(SqliteStore(path, install="cluster-b").close())


def something_else(path: Path) -> None:
    change(path, "CREATE TABLE notes (text)")


def not_sqlite(path: Path) -> None:
    path.write_bytes(b"orders,2026-01-01\n" * 100)


def header_lost(path: Path) -> None:
    run(SqliteStore(path).close())
    path.write_bytes(bytes(100) + path.read_bytes()[100:])


def a_folder(path: Path) -> None:
    path.mkdir()


def below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("a file")


def no_tables(path: Path) -> None:
    run(SqliteStore(path).close())
    change(path, "DELETE FROM meta")


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_a_ledger_of_an_earlier_version_counts_from_its_next_report(tmp_path: Path) -> None:
    """A ledger without the table of report sizes is opened and gets it; earlier reports are kept and not counted."""
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    key = reserved(store)
    assert run(store.report(key.address, 1, Report(attempt=1, reporter="before", kind="values")))
    run(store.close())
    change(path, "DROP TABLE report_sizes")
    store = SqliteStore(path)
    assert run(store.report(key.address, 1, Report(attempt=1, reporter="after", kind="values")))
    assert [each.reporter for each in run(store.reports(key.address, 1))] == ["after", "before"]
    with store._database.reading() as reader:
        counted = reader.row("get report size", at(key.address) | {"of": 1, "in_attempt": 1})
    assert counted["reports"] == 1
    run(store.close())


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (newer_layout, "upgrade sparkonce"),
        (another_install, "belongs to install 'cluster-b'"),
        (something_else, "another application's database"),
        (not_sqlite, "damaged or not a ledger"),
        (header_lost, "damaged or not a ledger"),
        (a_folder, "is a folder"),
        (below_a_file, "cannot be created"),
        (no_tables, "name another file"),
    ],
)
def test_a_file_that_is_no_ledger_of_ours(tmp_path: Path, made: Callable[[Path], None], says: str) -> None:
    """Each such file is refused when it is opened, in one sentence that names it, and is not changed."""
    path = tmp_path / "place" / "ledger.db"
    path.parent.mkdir()
    made(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreUnusable, match=says) as raised:
        SqliteStore(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_ledger_that_may_not_be_written(sqlite: Sqlite, worker: Worker) -> None:
    """A file that this user cannot write to is refused when it is opened, not at the first result."""
    run(SqliteStore(sqlite.path).close())  # the file exists
    sqlite.path.chmod(0o444)
    sqlite.path.parent.chmod(0o755)
    assert worker.do(as_nobody, partial(refused, sqlite.path, "not readable and writable")) == [0]


def as_nobody(store: SqliteStore, lease: Lease, call: Callable[[], object]) -> list[int]:
    return in_children([partial(without_rights, call)])


def without_rights(call: Callable[[], object]) -> None:
    if os.geteuid() == 0:  # root may write to every file
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    call()


def refused(path: Path, says: str) -> None:
    with pytest.raises(StoreUnusable, match=says):
        SqliteStore(path)


def test_a_page_that_is_damaged(tmp_path: Path) -> None:
    """Damage that shows only when a page is read is an error that names the file, never an empty ledger."""
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    key = reserved(store)
    run(store.close())
    page = root_of(path, "records")
    with path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xff" * 4096)
    damaged = SqliteStore(path)
    with pytest.raises(StoreUnusable, match="damaged"):
        run(damaged.load(key.address))
    run(damaged.close())


def root_of(path: Path, table: str) -> int:
    """The number of a table's root page, from 1."""
    connection = sqlite3.connect(path)
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()[0]
    connection.close()
    return int(page)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """On a full disk the write is StoreUnavailable, the ledger keeps its content, and works again once there is room."""
    store = SqliteStore(tmp_path / "ledger.db", synchronous="OFF")
    key = reserved(store)
    with store._database._connection() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
    lease = run(store.open_lease(owner="me"))
    with pytest.raises(StoreUnavailable, match="check the disk"):
        fill(store, lease)
    assert key.view().record == key.record
    key.finalize()  # after an error the store uses another connection, on which there is room
    assert run(store.result(key.address, 1)) == result()
    run(store.close())


def fill(store: SqliteStore, lease: Lease) -> None:
    for _ in range(1000):
        reserved(store, lease)


def test_a_failing_disk_at_commit(tmp_path: Path) -> None:
    """A real write error during a commit is StoreUnavailable, and the earlier content stays."""
    path = tmp_path / "ledger.db"
    store = SqliteStore(path)
    key = reserved(store)
    script = f"""
import resource, signal
from pathlib import Path
from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable
from sparkonce.store.sqlite.store import SqliteStore
from sparkonce.store.sqlite.database import SqliteDatabase
from sparkonce.model.record import Address
store = SqliteStore(Path({str(path)!r}))
record = run(store.load(Address(realm="local", key_hash={key.record.key_hash!r}))).record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    run(store.attach(record, "follower" * 1000))
except StoreUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "could not be read or written" in done.stdout, done.stderr
    assert key.now() == key.record
    key.finalize()
    run(store.close())


def test_a_ledger_that_somebody_holds(tmp_path: Path) -> None:
    """While another process holds the write lock for longer than the timeout, writes are StoreUnavailable and reads continue."""
    store = SqliteStore(tmp_path / "ledger.db", busy_timeout=0.05)
    key = reserved(store)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        key.change(phase="Running")
    assert key.now() == key.record
    other.execute("ROLLBACK")
    other.close()
    key.change(phase="Running")
    run(store.close())


def test_a_write_transaction_begins_alone(tmp_path: Path) -> None:
    """A second write transaction reads nothing before the first has ended: otherwise its reads could be outdated when it writes, and the
    write would fail as "locked" although no process holds the lock."""
    run(SqliteStore(tmp_path / "ledger.db").close())
    first, second = (SqliteDatabase(tmp_path / "ledger.db", busy_timeout=0.05) for _ in range(2))
    began = []
    with first.writing() as transaction:
        transaction.row("meta")
        with pytest.raises(StoreUnavailable, match="locked by another process"), second.writing():
            began.append("beside the first")
    assert began == []
    with second.writing() as transaction:
        assert transaction.row("meta")["layout"] > 0
    first.close()
    second.close()


def test_a_process_that_is_frozen_in_a_write(sqlite: Sqlite, worker: Worker) -> None:
    """While a process is frozen inside a transaction, others can read and not write; after it is killed, the earlier content is there."""
    store = sqlite.open(busy_timeout=0.05)
    key = reserved(store)
    worker.ask(attach_to, key.record, fail="store.sql.commit.before=stop")
    worker.wait_until_frozen()
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        key.change(phase="Running")
    assert key.now() == key.record
    worker.kill()
    assert key.change(phase="Running").objects == ()


def attach_to(store: SqliteStore, lease: Lease, record: Record) -> object:
    return run(store.attach(record, "follower"))


def test_a_ledger_that_was_emptied(tmp_path: Path) -> None:
    """An empty file becomes a new ledger; tables that vanish under an open store are an error in one sentence."""
    path = tmp_path / "ledger.db"
    path.touch()
    store = SqliteStore(path)
    reserved(store)
    change(path, "DROP TABLE records")
    with pytest.raises(StoreUnusable, match="cannot be used") as raised:
        run(store.count())
    assert "\n" not in str(raised.value)
    run(store.close())


def test_processes_open_a_new_ledger(sqlite: Sqlite, worker: Worker) -> None:
    """Six processes that open the same new ledger at once all get it; no other file is left beside it."""
    for number in range(8):
        path = sqlite.path.parent / f"{number}" / "ledger.db"
        assert worker.do(open_at_once, path) == [0] * 6
        store = SqliteStore(path)
        assert run(store.count()) == 6
        run(store.close())
        assert sorted(entry.name for entry in path.parent.iterdir()) == ["ledger.db", "ledger.db.leases"]


def open_at_once(store: SqliteStore, lease: Lease, path: Path) -> list[int]:
    return in_children([partial(open_and_reserve, path)] * 6)


def open_and_reserve(path: Path) -> None:
    reserved(SqliteStore(path), key=f"of {os.getpid()}")


def test_threads_open_a_new_ledger(tmp_path: Path) -> None:
    """Threads of one process that open it at once do not release each other's locks."""
    calls: list[Callable[[], SqliteStore]] = [partial(SqliteStore, tmp_path / "ledger.db")] * 6
    stores = at_once(calls)
    for store in stores:
        reserved(store)
    assert [run(store.count()) for store in stores] == [6] * 6
    for store in stores:
        run(store.close())


def test_a_symbolic_link_is_the_same_ledger(tmp_path: Path) -> None:
    """Opened through any link, a ledger sees its claims as alive, since the leases lie beside the real file."""
    (tmp_path / "real").mkdir()
    store = SqliteStore(tmp_path / "real" / "ledger.db")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "ledger.db").symlink_to(tmp_path / "real" / "ledger.db")
    key = reserved(store)
    for name in (tmp_path / "link" / "ledger.db", tmp_path / "ledger.db"):
        other = SqliteStore(name)
        assert run(other.load(key.address)).claim == key.claim
        assert other.url == store.url
        run(other.close())
    run(store.close())


def test_a_child_by_fork_has_connections_of_its_own(sqlite: Sqlite, worker: Worker) -> None:
    """After a fork both processes continue to use the store; when the child ends, nothing of its parent's is closed."""
    assert worker.do(use_in_children) == [0] * 3
    store = sqlite.open()
    assert run(store.count()) == 5
    connection = sqlite3.connect(store.path)
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    connection.close()


def use_in_children(store: SqliteStore, lease: Lease) -> list[int]:
    key = reserved(store, lease, key="before")
    statuses = in_children([partial(use, store, key)] * 3)
    key.change(phase="Running")
    reserved(store, lease, key="after")
    return statuses


def use(store: SqliteStore, key: Key) -> None:
    """Runs in the child: it does not use the parent's connections, and sees the parent's key as alive."""
    parents = {id(connection) for connection in sqlite._of_parents}
    assert parents
    assert key.view().claim == key.claim
    reserved(store, key=f"of {os.getpid()}")
    assert store._database._idle
    assert not parents & {id(connection) for connection in store._database._idle}


def test_a_replay_needs_no_sqlalchemy(tmp_path: Path) -> None:
    """Opening a ledger and a lease, and reading a finalized record and its result, import neither SQLAlchemy nor asyncio, which would slow
    down every replay."""
    store = SqliteStore(tmp_path / "ledger.db")
    key = reserved(store)
    key.finalize(evidence="slots of attempt 1")
    run(store.close())
    script = f"""
import sys
from sparkonce.blocking import run
from sparkonce.store.open import open_store
from sparkonce.model.record import Address
store = open_store({str(tmp_path / "ledger.db")!r})
run(store.open_lease(owner="me"))
record = run(store.load(Address(realm="local", key_hash="{key.address.key_hash}"))).record
print(run(store.result(record.address, record.generation)).evidence)
print([name for name in ("sqlalchemy", "asyncio") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["slots of attempt 1", "[]"]


def test_no_step_scans_a_table(tmp_path: Path) -> None:
    """The queries of every step use an index, however large the ledger is; only counts and leases scan, and only small tables."""
    store = SqliteStore(tmp_path / "ledger.db")
    connection = sqlite3.connect(store.path)
    scanning: dict[str, list[str]] = {}
    for name, statement in schema.STATEMENTS.items():
        names = dict.fromkeys(re.findall(r":([a-z_0-9]+)", statement))
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", names).fetchall()
        tables = [row[3].split()[1] for row in plan if row[3].startswith("SCAN ") and "USING" not in row[3]]
        if scans := [table for table in tables if table not in ("meta", "CONSTANT", "sqlite_master", "found")]:
            scanning[name] = scans
    connection.close()
    run(store.close())
    assert {name for name in scanning if name not in ("touch lease", "claims of lease", "changes", "count")} == set()
    assert set(scanning.get("changes", [])) <= {"claims", "changed", "(subquery-1)"}


def test_errors_are_sentences() -> None:
    """Every error of SQLite becomes one of our errors, in one line that names the file."""
    made = SqliteDatabase.__new__(SqliteDatabase)
    made.path, made._busy_timeout = Path("x/ledger.db"), 1.0
    for code in (*range(1, 29), 266, 522, 1032):
        error = sqlite3.OperationalError("why")
        error.sqlite_errorcode = code
        meaning = made._meaning(error)
        assert isinstance(meaning, SparkonceError)
        assert "x/ledger.db" in str(meaning)
        assert "\n" not in str(meaning)
