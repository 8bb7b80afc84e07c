"""A ledger and its tables after real runs: keys that were reserved, written by a driver's code, settled and finalized.

All of this uses the product's own steps, with pyarrow instead of Spark; defects are then planted in the stored bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.arrow_stage import table_of
from harness.granted import Granted, granted
from sparkonce.attempt.decide import Finalize, Observation
from sparkonce.attempt.outcome import failed, succeeded
from sparkonce.audit.files import with_threads
from sparkonce.audit.findings import Finding, Kind
from sparkonce.audit.inspection import Audit
from sparkonce.audit.places import open_place
from sparkonce.audit.report import AuditReport
from sparkonce.blocking import run
from sparkonce.model.record import HeldReason, Outcome, State, Why
from sparkonce.sink.protocol import Inventory
from sparkonce.sink.transaction import settle
from sparkonce.store.open import open_store
from sparkonce.store.protocol import Finalized, IdempotencyStore, Owned

WEEK = 7 * 86400.0
ROWS = ((1, 2, 3), (10, 11, 12, 13), (20,))
"""Of the jobs of `Kinds`."""


@dataclass
class Scene:
    folder: Path
    store: IdempotencyStore
    written: list[Granted] = field(default_factory=list)

    def granted(self, key: str, *outputs: str, **spec: Any) -> Granted:
        """Attempt 1 of generation 1, before it has written anything."""
        job = granted(self.folder, *(outputs or ("orders",)), store=self.store, idempotencyKey=key, **spec)
        self.written.append(job)
        return job

    def ran(
        self, key: str, *rows: int, outputs: tuple[str, ...] = ("orders",), retention: float = WEEK, **spec: Any
    ) -> Granted:
        """A job that wrote these rows to each output, and is Succeeded."""
        job = self.granted(key, *outputs, **spec)
        for output in outputs:
            job.job().write(table_of(*rows), output)
        self.finalize(job, retention=retention)
        return job

    def finalize(self, job: Granted, outcome: Outcome = Outcome.SUCCEEDED, *, retention: float = WEEK) -> None:
        """Settles and finalizes as the owner does, with the result read from the slots."""
        job.settling(Why.COMPLETED if outcome is Outcome.SUCCEEDED else Why.EXITED)
        sinks = tuple(job.sinks().values())
        settlement = run(
            settle(
                sinks,
                key_hash=job.record.key_hash,
                generation=job.record.generation,
                attempt=job.record.attempt,
                fingerprint=job.record.fingerprint,
                intent=None,
                by="owner",
            )
        )
        now = run(self.store.now())
        if outcome is Outcome.SUCCEEDED:
            end = Finalize(outcome, Why.COMPLETED, "")
            result = succeeded(job.now(), end, settlement, sinks=sinks, reports=[], now=now)
        else:
            result = failed(job.now(), Finalize(outcome, Why.EXITED, ""), Observation(seen=None), settlement, now)
        done = run(self.store.finalize(job.now(), job.claim, result, retention=retention))
        assert isinstance(done, Finalized), done

    def rerun(self, job: Granted) -> None:
        """Opens the next generation of a finalized job and grants its first attempt."""
        request = job.prepared.request(f"rerun-{job.record.generation}")
        opened = run(self.store.reopen(job.now(), request, lease=run(self.store.open_lease(owner="owner"))))
        assert isinstance(opened, Owned), opened
        job.record, job.claim = opened.record, opened.claim

    def hold(self, job: Granted) -> None:
        job.update(state=State.HELD, held=HeldReason.PARTIAL, note="one output of two")

    def audit(self, *tables: str, ledger: bool = True, deep: bool = False) -> AuditReport:
        """Audits all tables of the ledger, or only these, by name."""
        from sparkonce.audit.places import named

        return Audit(
            places=named(tables, base=str(self.folder)) if tables else None,
            store=self.store if ledger else None,
            read_files=with_threads(open_place, deep=deep),
            deep=deep,
        ).run()

    # # the stored bytes
    def table(self, output: str = "orders") -> Path:
        return self.folder / output

    def slot_file(self, job: Granted, output: str = "orders", token: int = 1) -> Path:
        return self.table(output) / "_idem" / str(job.key(output)) / f"{token:010d}.json"

    def slot(self, job: Granted, output: str = "orders", token: int = 1) -> dict[str, Any]:
        return dict(json.loads(self.slot_file(job, output, token).read_text()))

    def files(self, job: Granted, output: str = "orders") -> list[Path]:
        """The files of its committed slot."""
        slot = job.committed(output)
        assert slot is not None
        return [self.table(output) / file.path for file in slot.files]

    def copied(self, job: Granted, sink_key: str, *, token: int = 1, nonce: str | None = None) -> str:
        """Commits a copy of the job's effect, with files of its own, under another sink key or token, and with the same nonce unless
        another is given. Returns the new slot's path."""
        slot = self.slot(job)
        folder = f"_data/{sink_key}/{token:010d}-{nonce or slot['nonce']}"
        old = self.files(job)[0].parent
        shutil.copytree(old, self.table() / folder, dirs_exist_ok=True)
        before = str(old.relative_to(self.table()))
        slot |= {"sinkKey": sink_key, "token": token, "nonce": nonce or slot["nonce"]}
        slot["files"] = [file | {"path": file["path"].replace(before, folder)} for file in slot["files"]]
        path = self.table() / "_idem" / sink_key / f"{token:010d}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(slot))
        return str(path.relative_to(self.table()))


@dataclass
class Kinds:
    """Three jobs on one table of a kind."""

    kind: str
    store: Scene

    def granted(self, key: str, at: Scene | None = None) -> Granted:
        where = {
            "slotLog": {"slotLog": {"path": "orders"}},
            "delta": {"delta": {"path": "orders"}},
            "iceberg": {"iceberg": {"catalog": "lake", "table": "sales.orders"}},
        }
        return (at or self.store).granted(key, outputs=[{"name": "orders", **where[self.kind]}])

    def ran(self, key: str, *rows: int, at: Scene | None = None) -> Granted:
        job = self.granted(key, at)
        job.job().write(table_of(*rows), "orders")
        (at or self.store).finalize(job)
        return job

    def stage(self, job: Granted, *rows: int) -> None:
        token = job.record.attempt
        job.sinks()["orders"].stage(table_of(*rows), job.key("orders"), token, fingerprint=job.record.fingerprint)

    def inventory(self) -> Inventory:
        return run(self.store.written[0].sinks()["orders"].inventory())

    @property
    def folder(self) -> Path:
        """The folder of the table's files."""
        table = self.inventory()
        return Path((table.location or table.uri).removeprefix("file://"))

    def files(self, job: Granted) -> list[Path]:
        [effect] = [each for each in self.inventory().effects if each.slot.sink_key == str(job.key("orders"))]
        return [self.folder / file.path for file in effect.files]


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """A scene on a SQLite ledger."""
    store = open_store(str(folder / "ledger.db"))
    try:
        yield Scene(folder, store)
    finally:
        run(store.close())


def kinds(report: AuditReport) -> list[Kind]:
    """The kinds of all findings, most severe first."""
    return [finding.kind for finding in report.findings]


def only(report: AuditReport) -> Finding:
    """The report's single finding; fails if there are several or none."""
    assert len(report.findings) == 1, [each.dump() for each in report.findings]
    return report.findings[0]
