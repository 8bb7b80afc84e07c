"""Audits and sweeps beside processes that commit, are killed and are frozen.

They report no false defect and delete nothing that may still be committed.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from pathlib import Path

import pytest

from audit.scene import Scene, kinds
from harness import effort
from harness.arrow_stage import table_of
from harness.eventually import assert_eventually
from harness.patience import until_ended
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of, rows_of, sink_in, start
from sparkonce.audit.cleanup import sweep
from sparkonce.audit.files import with_threads
from sparkonce.audit.findings import Finding, Kind, Severity
from sparkonce.audit.inspection import Audit
from sparkonce.audit.places import AuditedTable, open_place
from sparkonce.audit.report import AuditReport
from sparkonce.blocking import run
from sparkonce.model.record import Outcome
from sparkonce.sink.protocol import Committed, Inventory

KEYS = 60
PATIENCE = 60.0


def audited(folder: Path) -> AuditReport:
    places = [AuditedTable(sink_in(str(folder)))]
    return Audit(places=places, read_files=with_threads(open_place)).run()


def graver(report: AuditReport) -> list[Finding]:
    return [each for each in report.findings if each.severity is Severity.DEFECT]


def test_no_false_defect_while_jobs_commit_and_die(tmpfs_path: Path, say: pytest.FixtureRequest) -> None:
    """Five processes attempt sixty keys, some killed, some frozen; audits meanwhile and at the end find no defect."""
    dice = random.Random(effort.seed("audits beside jobs"))
    keys = tuple(f"k{number}" for number in range(KEYS))
    plans = [
        Plan(
            folder=str(tmpfs_path),
            process=f"p{token}",
            token=token,
            keys=tuple(dice.sample(keys, len(keys))),
            seed=dice.randrange(1 << 30),
        )
        for token in range(1, 6)
    ]
    processes = [start(plan) for plan in plans]
    audits, again = 0, 0
    deaths = dict(zip(itertools.islice(itertools.count(10, 25), 3), processes, strict=False))
    while any(process.is_alive() for process in processes):
        report = audited(tmpfs_path)
        assert graver(report) == []
        audits, again = audits + 1, again + report.unconfirmed
        done = sum(len(answers(plan)) for plan in plans)
        for at in [at for at in deaths if done >= at]:
            victim = deaths.pop(at)
            if victim.pid and victim.is_alive():
                os.kill(victim.pid, signal.SIGKILL)
    for process in processes:
        until_ended(process, PATIENCE)
    sink = sink_in(str(tmpfs_path))
    for name in keys:  # each key's next run
        slot = sink.stage(table_of(*rows_of(name)), key_of(name), 6, fingerprint=FINGERPRINT)
        run(sink.commit(key_of(name), slot))
    report = audited(tmpfs_path)
    assert graver(report) == []
    assert report.tables[0].effects == KEYS
    assert {each.kind for each in report.findings} <= {Kind.ORPHAN_STAGING}
    [swept] = sweep([AuditedTable(sink)], dry_run=False)
    assert swept.folders == len(report.findings)
    assert kinds(audited(tmpfs_path)) == []
    say(f"{audits} audits, {again} findings of a first look that a second did not confirm")  # type: ignore[operator]


class Late:
    """A sink whose first inventory shows the content as it was before."""

    def __init__(self, sink: object, before: Inventory) -> None:
        self._sink, self._before = sink, [before]

    def __getattr__(self, name: str) -> object:
        return getattr(self._sink, name)

    async def inventory(self) -> Inventory:
        return self._before.pop() if self._before else await self._sink.inventory()  # type: ignore[attr-defined]


def test_what_a_second_look_does_not_see_is_not_told(store: Scene) -> None:
    """An inventory from before a commit whose record is already final is not believed: the table is listed again, and nothing is
    reported."""
    job = store.granted("day")
    sink = job.sinks()["orders"]
    slot = sink.stage(table_of(1), job.key("orders"), 1, fingerprint=job.record.fingerprint)
    before = run(sink.inventory())
    assert isinstance(run(sink.commit(job.key("orders"), slot)), Committed)
    store.finalize(job)
    late = AuditedTable(Late(sink, before))  # type: ignore[arg-type]
    report = Audit(places=[late], store=store.store, read_files=with_threads(open_place)).run()
    assert kinds(report) == []
    assert report.unconfirmed >= 1


def test_a_record_that_comes_between_the_looks(store: Scene) -> None:
    """A key that is reserved, run and finalized after the ledger was listed is looked up individually, so its slot has a record."""
    store.ran("before", 1, 2)
    sink = store.written[0].sinks()["orders"]

    class Slow(Late):
        async def inventory(self) -> Inventory:
            if self._before:
                self._before.clear()
                store.ran("meanwhile", 3, 4)
            return await super().inventory()

    slow = AuditedTable(Slow(sink, run(sink.inventory())))  # type: ignore[arg-type]
    report = Audit(places=[slow], store=store.store, read_files=with_threads(open_place)).run()
    assert kinds(report) == []
    assert report.tables[0].effects == 2


def test_a_sweep_spares_what_may_be_committed(store: Scene) -> None:
    """A sweep between an attempt's staging and its commit removes the orphans and keeps the attempt's files, which are then committed."""
    job = store.granted("running")
    sink, key = job.sinks()["orders"], job.key("orders")
    sink.stage(table_of(7), key, 1, fingerprint=job.record.fingerprint)
    job.next_attempt()
    slot = sink.stage(table_of(8, 9), key, 2, fingerprint=job.record.fingerprint)
    [dry] = sweep([AuditedTable(sink)], dry_run=True)
    assert len(job.staged("orders")) == 2
    [done] = sweep([AuditedTable(sink)], dry_run=False)
    assert (done.folders, done.bytes, done.left) == (dry.folders, dry.bytes, dry.left) == (1, done.bytes, 1)
    assert done.bytes > 0
    assert isinstance(run(sink.commit(key, slot)), Committed)
    assert job.rows("orders") == [8, 9]
    store.finalize(job)
    assert kinds(store.audit()) == []


@pytest.mark.parametrize("action", ["kill", "stop"])
def test_a_sweep_that_dies_or_freezes(tmpfs_path: Path, action: str) -> None:
    """A sweep that is killed or frozen before it deletes a folder has removed nothing committed; the next one removes the rest, and the
    frozen one removes nothing more when it continues."""
    sink = sink_in(str(tmpfs_path))
    names = tuple(f"k{number}" for number in range(4))
    for name in names:
        slots = [sink.stage(table_of(*rows_of(name)), key_of(name), token, fingerprint=FINGERPRINT) for token in (1, 2)]
        run(sink.commit(key_of(name), slots[1]))
    failpoints = f"sink.slots.sweep.before=2*off->{action}"
    plan = Plan(folder=str(tmpfs_path), process="sweeper", token=1, keys=names, verb="sweep", failpoints=failpoints)
    process = start(plan)
    try:
        assert_eventually(lambda: f"={action}" in hits(plan), PATIENCE)
        if action == "kill":
            until_ended(process, PATIENCE)
        report = audited(tmpfs_path)
        assert kinds(report) == [Kind.ORPHAN_STAGING] * 2
        [done] = sweep([AuditedTable(sink)], dry_run=False)
        assert done.folders == 2
        if action == "stop":
            os.kill(process.pid or 0, signal.SIGCONT)
            until_ended(process, PATIENCE)
        assert process.exitcode == (0 if action == "stop" else -signal.SIGKILL)
    finally:
        process.kill()
    report = audited(tmpfs_path)
    assert kinds(report) == []
    assert report.tables[0].rows == sum(len(rows_of(name)) for name in names)


def hits(plan: Plan) -> str:
    file = Path(plan.hits)
    return file.read_text() if file.exists() else ""


def test_a_folder_that_is_half_deleted_is_swept(store: Scene) -> None:
    """The rest of a folder that an interrupted sweep left is still unreachable: it is reported, and deleted by the next sweep."""
    job = store.granted("killed")
    sink = job.sinks()["orders"]
    sink.stage(table_of(1, 2), job.key("orders"), 1, fingerprint=job.record.fingerprint)
    job.next_attempt()
    store.finalize(job, Outcome.FAILED)
    next(store.table().glob("_data/*/*/*.parquet")).unlink()
    assert kinds(store.audit()) == [Kind.ORPHAN_STAGING]
    [done] = sweep([AuditedTable(sink)], dry_run=False)
    assert (done.folders, kinds(store.audit())) == (1, [])


def test_a_key_that_cannot_be_read_keeps_its_folders(store: Scene) -> None:
    """A slot that cannot be parsed may be a commit: nothing of its key is swept, while other keys are."""
    jobs = [store.granted(name) for name in ("torn", "closed")]
    for job in jobs:
        job.sinks()["orders"].stage(table_of(1), job.key("orders"), 1, fingerprint=job.record.fingerprint)
        job.next_attempt()
    store.slot_file(jobs[0]).write_text("{")
    [done] = sweep([AuditedTable(jobs[0].sinks()["orders"])], dry_run=False)
    assert (done.folders, done.left, done.problems) == (1, 1, ())
    left = [path.name for path in (store.table() / "_data").glob("*/*")]
    assert left == [path.name for path in (store.table() / "_data" / str(jobs[0].key("orders"))).iterdir()]
