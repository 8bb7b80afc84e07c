"""`Objects`: a create-if-absent that survives a power cut, and errors that a person can read."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.arrow_stage import arrow_stage, table_of
from harness.slots import committing
from sparkonce.blocking import run
from sparkonce.errors import OutputUnavailable, OutputUnsafe
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.protocol import Listed, TableObjects, Tail
from sparkonce.sink.protocol import Committed, SinkKey
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.sink import SlotLogSink

NOBODY = 65534


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Runs the block as an unprivileged user, since root may write everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_create_is_once(objects: TableObjects) -> None:
    """The second create of a path returns False and changes nothing."""
    assert run(objects.create("_idem/k/1.json", b"first")) is True
    assert run(objects.create("_idem/k/1.json", b"second")) is False
    assert run(objects.get("_idem/k/1.json")) == b"first"


def test_create_leaves_nothing_else(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the create succeeds, loses to another one at the last moment, or fails, no temporary file is left in the folder."""
    objects = FolderObjects(table)
    run(objects.create("_idem/k/1.json", b"x"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: path.name != "1.json")  # the path did not exist when we checked
        assert not run(objects.create("_idem/k/1.json", b"y"))

    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OutputUnavailable):
        run(objects.create("_idem/k/2.json", b"y"))
    assert [path.name for path in (table / "_idem/k").iterdir()] == ["1.json"]


def test_create_by_many_threads_has_one_winner(objects: TableObjects) -> None:
    """Of 8 simultaneous creates of one path exactly one returns True, and its content is stored."""
    for turn in range(25):
        start = threading.Barrier(8)

        def contend(me: int, turn: int = turn, start: threading.Barrier = start) -> bool:
            start.wait()
            return run(objects.create(f"_idem/k/{turn}.json", str(me).encode()))

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(contend, range(8)))
        assert sum(answers) == 1
        assert run(objects.get(f"_idem/k/{turn}.json")) == str(answers.index(True)).encode()


def test_what_is_not_there(objects: TableObjects) -> None:
    """Every read reports a missing object as an answer, not as an error, and deleting one is not an error."""
    assert run(objects.get("a/b")) is None
    assert run(objects.tail("a/b", 10)) is None
    assert run(objects.list("a")) == ()
    assert run(objects.folders("a")) == ()
    run(objects.delete("a/b"))
    run(objects.delete_folder("a"))


def test_listing(objects: TableObjects) -> None:
    """Listings are by folder (never by the beginning of a name), sorted, with sizes."""
    for path in ("d/k10/f", "d/k1/b", "d/k1/sub/c", "d/k1/a"):
        run(objects.create(path, path.encode()))
    assert run(objects.list("d/k1")) == (Listed("d/k1/a", 6), Listed("d/k1/b", 6), Listed("d/k1/sub/c", 10))
    assert run(objects.folders("d")) == ("d/k1", "d/k10")
    assert len(run(objects.list(""))) == 4
    run(objects.delete_folder("d/k1"))
    assert run(objects.list("")) == (Listed("d/k10/f", 7),)


def test_tail(objects: TableObjects) -> None:
    """Reading the end of an object also returns the size of the whole."""
    run(objects.create("f", b"0123456789"))
    assert run(objects.tail("f", 4)) == Tail(b"6789", 10)
    assert run(objects.tail("f", 100)) == Tail(b"0123456789", 10)


def test_temporary_files_of_the_dead_are_not_objects(table: Path) -> None:
    """A process killed inside create leaves `<name>#<digits>`: that file is not a slot, does not block one, and is deleted with its
    folder."""
    objects = FolderObjects(table)
    run(objects.create("_data/k/0000000001.json", b"x"))
    (table / "_data/k/0000000002.json#42").write_bytes(b"half")
    assert [each.path for each in run(objects.list("_data"))] == ["_data/k/0000000001.json"]
    assert run(objects.create("_data/k/0000000002.json", b"y"))
    run(objects.delete_folder("_data/k"))
    assert list((table / "_data").iterdir()) == []


def test_a_table_is_never_deleted_as_a_whole(table: Path) -> None:
    """An empty prefix is refused as the caller's mistake."""
    with pytest.raises(ValueError, match="never deleted as a whole"):
        run(FolderObjects(table).delete_folder(""))


def name_of(descriptor: int) -> str:
    """The path of an open file."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


class Disk:
    """Records fsyncs, and the links that make names visible."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        fsync, link = os.fsync, os.link

        def recorded_fsync(descriptor: int) -> None:
            self.calls.append(("fsync", name_of(descriptor)))
            fsync(descriptor)

        def recorded_link(source: Path, target: Path) -> None:
            self.calls.append(("link", str(target)))
            link(source, target)

        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(os, "link", recorded_link)

    def flushed(self) -> set[str]:
        return {path for call, path in self.calls if call == "fsync"}


def test_create_is_durable_before_it_is_visible(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is fsynced before the name exists; the name, and every new folder, before create returns."""
    disk = Disk(monkeypatch)
    run(FolderObjects(table).create("_idem/k/1.json", b"x"))
    at = disk.calls.index(("link", f"{table}/_idem/k/1.json"))
    before, after = disk.calls[:at], disk.calls[at + 1 :]
    assert any(path.startswith(f"{table}/_idem/k/1.json#") for _, path in before)
    assert [path for _, path in after] == [
        f"{table}/_idem/k",
        f"{table}/_idem",
        str(table),
        str(table.parent),
    ]
    assert ("fsync", str(table.parent.parent)) in before  # it contains a new folder


def test_what_another_process_created_is_flushed_before_it_decides(
    table: Path, key: SinkKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its creator may have died before its fsync: a process that relies on an existing slot fsyncs it first."""
    sink = SlotLogSink(FolderObjects(table), name="orders")
    run(SlotLogSink(FolderObjects(table, durable=False), name="orders").commit(key, committing(key, 1)))
    slot = f"{table}/{layout.slot_path(key, 1)}"
    for verb in (
        lambda: sink.commit(key, committing(key, 1)),
        lambda: sink.commit(key, committing(key, 2)),
        lambda: sink.fence(key, 2, fingerprint="f", by="settle"),
        lambda: sink.fence(key, 1, fingerprint="f", by="settle"),
        lambda: sink.abort(key, committing(key, 1)),
    ):
        with monkeypatch.context() as patch:
            disk = Disk(patch)
            run(verb())
            assert {slot, str(Path(slot).parent), str(table)} <= disk.flushed()


def test_staged_files_are_flushed(
    sink: SlotLogSink, table: Path, key: SinkKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files and all folders above them are on disk before a slot can name them."""
    disk = Disk(monkeypatch)
    slot = sink.stage(table_of(1, 2), key, 1, fingerprint="f")
    files = {table / file.path for file in slot.files}
    folders = {parent for file in files for parent in file.parents if parent.is_relative_to(table)}
    assert {str(path) for path in files | folders} <= disk.flushed()


def test_durability_can_be_switched_off(table: Path, key: SinkKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without durability nothing is fsynced, so that a benchmark of something else does not measure the disk."""
    disk = Disk(monkeypatch)
    sink = SlotLogSink(FolderObjects(table, durable=False), name="orders", stage=arrow_stage)
    slot = sink.stage(table_of(1, 2), key, 2, fingerprint="f")
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert disk.flushed() == set()


def test_a_flush_that_fails_is_unknown_and_then_repeated(
    table: Path, key: SinkKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an I/O error behind the link the slot exists, and it is reported as committed only once an fsync has succeeded."""
    fsync, fails = os.fsync, [True] * 4

    def flaky(descriptor: int) -> None:
        if name_of(descriptor) == str(table) and fails:
            fails.pop()
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    sink, slot = SlotLogSink(FolderObjects(table), name="orders"), committing(key, 1)
    run(sink.check())
    monkeypatch.setattr(os, "fsync", flaky)
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert fails == []
    fails.extend([True] * 99)
    with pytest.raises(
        OutputUnavailable, match="input/output error; whether slot 1 of a1b2-orders-g1 is committed is unknown"
    ):
        run(sink.commit(key, slot))


def test_a_file_system_without_hard_links_is_refused(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without link(2) a create-if-absent is impossible; the probe says so."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OutputUnsafe, match="file system without hard links"):
        run(SlotLogSink(FolderObjects(table), name="orders").check())


def sentences(folder: Path, key: SinkKey) -> list[str]:
    """The errors of the writing verbs on this folder."""
    sink, said = SlotLogSink(FolderObjects(folder), name="orders"), []
    for verb in (
        sink.check,
        lambda: sink.commit(key, committing(key, 1)),
        lambda: sink.fence(key, 2, fingerprint="f", by="settle"),
    ):
        with pytest.raises(OutputUnavailable) as refused:
            run(verb())
        said.append(str(refused.value))
    assert all("\n" not in each and str(folder) in each for each in said)
    return said


def test_an_unwritable_folder_is_one_sentence(tmp_path: Path, key: SinkKey) -> None:
    """Without permission the error is one sentence with the path and the reason, no traceback, and nothing is written."""
    tmp_path.chmod(0o555)
    for parent in (tmp_path.parent, tmp_path.parent.parent, tmp_path.parent.parent.parent):
        if parent.stat().st_uid == os.getuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    try:
        with unprivileged():
            assert all("permission denied" in each for each in sentences(tmp_path / "lake", key))
    finally:
        tmp_path.chmod(0o755)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_a_file_is_one_sentence(tmp_path: Path, key: SinkKey) -> None:
    """A file where the table, or a folder above it, should be is one sentence."""
    (tmp_path / "file").write_text("not a table")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper" / "table"):
        assert all("a part of that path is a file, not a folder" in each for each in sentences(folder, key))
        sink = SlotLogSink(FolderObjects(folder), name="orders")
        with pytest.raises(OutputUnavailable, match="a part of that path is a file, not a folder"):
            run(sink.find(key))
    assert (tmp_path / "file").read_text() == "not a table"


def test_a_slot_that_is_a_folder_is_never_empty(table: Path, key: SinkKey) -> None:
    """A folder under a slot's name is neither an open nor a decided slot: commit and fence say that the outcome is unknown."""
    (table / layout.slot_path(key, 1)).mkdir(parents=True)
    sink = SlotLogSink(FolderObjects(table), name="orders")
    with pytest.raises(OutputUnavailable, match="is unknown"):
        run(sink.commit(key, committing(key, 2)))
    with pytest.raises(OutputUnavailable, match="is unknown"):
        run(sink.fence(key, 2, fingerprint="f", by="settle"))


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A folder on a full disk, and a function that frees space: as root a small tmpfs, otherwise writes that fail as on a full disk."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        filler = folder / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield folder, filler.unlink
        subprocess.run(["umount", "-l", str(folder)], check=True)
        return

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    yield folder, monkeypatch.undo


def test_a_full_disk_at_commit_loses_nothing(full_disk: tuple[Path, Callable[[], None]], key: SinkKey) -> None:
    """Without space for the slot the commit fails with one sentence and leaves no partial slot; with space the same commit succeeds."""
    folder, make_room = full_disk
    sink, slot = SlotLogSink(FolderObjects(folder), name="orders"), committing(key, 1)
    with pytest.raises(OutputUnavailable, match="no space is left there"):
        run(sink.commit(key, slot))
    assert run(sink.find(key)) is None
    make_room()
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert run(sink.find(key)) == slot
