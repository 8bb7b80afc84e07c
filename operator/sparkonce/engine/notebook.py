"""`sparkonce.job(KEY, outputs={...})`: the same promise without a YAML, for notebooks and plain scripts.

    with sparkonce.job("load-orders-2024-05-01", outputs={"orders": "lake/orders"}) as job:
        job.write(df, "orders")

The process is owner and driver at once: it reserves, is the attempt's application (its lock, its heartbeat), writes, and settles when the
block ends. When the key has its result already, the block runs and every `write` returns what is recorded without running its
DataFrame; `job.replayed` says so beforehand. A block that raises ends its attempt; running the cell again is the next one.

It never waits for somebody else: a key that is running elsewhere is an error that says where.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkonce.blocking import run
from sparkonce.driver.attempt import BEAT, sinks_of
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.context import Job, Written
from sparkonce.engine import prepare as preparing
from sparkonce.engine.drive import Drive
from sparkonce.engine.embedded import Embedded, attempts_folder
from sparkonce.engine.prepare import Prepared
from sparkonce.engine.request import Answer
from sparkonce.errors import Busy, HeldForPerson, JobFailed, JobMismatch, ResultGone, StoreUnavailable, UndeclaredOutput
from sparkonce.launch.local import LocalLauncher, place, record_exit, record_process
from sparkonce.launch.protocol import Seen
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Outcome, Record, State
from sparkonce.model.result import Result
from sparkonce.model.spec import API_VERSION, KIND, IdempotentJob
from sparkonce.store.open import open_store
from sparkonce.store.protocol import Claim, Lease, Owned


class Replayed:
    """Stands in for the job when the key has its result: the block runs, and its writes return what is recorded."""

    replayed = True

    def __init__(self, record: Record, result: Result) -> None:
        self.key, self.generation, self.attempt = record.key, record.generation, record.attempt
        self.recorded = result

    def write(self, frame: object, output: str) -> Written:  # noqa: ARG002 - the DataFrame is not run
        for each in self.recorded.outputs:
            if each.name == output:
                return Written(each.name, each.uri, each.rows, each.bytes, fresh=False)
        raise UndeclaredOutput(f"output {output!r} is not part of the recorded result of {self.key}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Replayed]:
        yield self

    def result(self, **values: Any) -> None:
        """Nothing: the recorded values stay."""


class _Ready(Exception):
    """A signal inside this module: the drive has come to the point where the block runs."""

    def __init__(self, lock: int) -> None:
        self.lock = lock


@dataclass(frozen=True)
class _Begun:
    """An attempt that this process holds."""

    drive: Drive
    record: Record
    claim: Claim
    lock: int
    """Descriptor that holds the attempt's lock."""


class _Inline(LocalLauncher):
    """The attempt's application is this very process."""

    def __init__(self, attempts: Path) -> None:
        super().__init__(attempts, _no_command, _wait)
        self.used = False

    async def launch(self, assignment: Assignment) -> Seen:
        if self.used:
            raise _Ready(-1)  # granted, not begun: that is the next run of the cell
        self.used = True
        folder = self.attempts / assignment.name
        lock = place(folder, assignment, stopped=False)
        if lock is None:
            return await super().launch(assignment)
        record_process(folder)
        raise _Ready(lock)


def _no_command(_: Assignment) -> Any:
    raise AssertionError("an inline attempt starts no process")


async def _wait(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - run without an event loop, see sparkonce.blocking


def _document(key: str, outputs: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    arguments = [f"{name}={value}" for name, value in sorted(parameters.items())]
    spec = {"type": "Python", "mainApplicationFile": "local:///inline", "arguments": arguments}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "inline"},
        "spec": {
            "idempotencyKey": key,
            "template": {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "spec": spec},
            "outputs": [{"name": name, "slotLog": {"path": path}} for name, path in outputs.items()],
            "retry": {"maxAttempts": 1000, "backoff": {"initial": "0s", "max": "0s"}},
        },
    }


@contextlib.contextmanager
def job(
    key: str,
    *,
    outputs: Mapping[str, str],
    store: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Iterator[Job | Replayed]:
    """One keyed block of code whose writes happen once.

    outputs: name -> folder, relative to the current one. parameters: what else the key stands for; another value under the same key is
    refused. store: as for the command line. Errors: Busy, JobMismatch, HeldForPerson, ResultGone, JobFailed, StoreUnavailable."""
    places = {name: str(Path(path).absolute()) if "://" not in path else path for name, path in outputs.items()}
    document = IdempotentJob.of(_document(key, places, parameters or {}))
    prepared = preparing.assemble(document, contents={}, base=str(Path.cwd()))
    ledger = open_store(store)
    embedded = Embedded(store=ledger, attempts=attempts_folder(ledger.url), sleep=_wait)
    lease = run(ledger.open_lease(owner=embedded.owner))
    try:
        begun = _begin(embedded, prepared, lease)
        if isinstance(begun, Replayed):
            yield begun
            return
        yield from _attempt(embedded, prepared, lease, begun)
    finally:
        run(lease.revoke())


def _begin(embedded: Embedded, prepared: Prepared, lease: Lease) -> Replayed | _Begun:
    """Until this process holds an attempt, or the key has its result."""
    nonce = os.urandom(16).hex()
    while True:
        view, said, _ = run(embedded.look(prepared))
        record, owned = view.record, None
        if said.answer is Answer.NEW:
            for sink in prepared.sinks:
                run(sink.check())
            owned = run(embedded.reserve(prepared, lease, nonce, view))
        elif record is not None and said.answer is Answer.TAKE_OVER:
            owned = run(embedded.take_over(record, lease))
        elif record is not None and said.answer is Answer.REOPEN:
            owned = run(embedded.reopen(prepared, record, lease, nonce))
        else:
            return _recorded(embedded, prepared, said, record)
        if owned is not None and (begun := _to_launch(embedded, owned)) is not None:
            return begun


def _recorded(embedded: Embedded, prepared: Prepared, said: Any, record: Record | None) -> Replayed:
    assert record is not None  # an unknown key is New
    sentence = f"{prepared.key.text}: {said.evidence}" + (f"; {said.unblock}" if said.unblock else "")
    if said.answer is Answer.REPLAY:
        result = run(embedded.store.result(record.address, record.generation))
        if result is None or result.outcome is not Outcome.SUCCEEDED:
            raise JobFailed(
                f"{prepared.key.text} failed: {result.failure.message if result and result.failure else record.note}"
            )
        return Replayed(record, result)
    errors = {Answer.MISMATCH: JobMismatch, Answer.HELD: HeldForPerson, Answer.RESULT_GONE: ResultGone}
    raise errors.get(said.answer, Busy)(sentence)


def _to_launch(embedded: Embedded, owned: Owned) -> _Begun | None:
    """Drives until an attempt is to start; None when the generation ended first (its predecessor had committed)."""
    embedded.launcher = _Inline(embedded.attempts)
    drive = embedded.engine()
    drive.wait = _wait
    try:
        run(drive.run(owned.record, owned.claim))
    except _Ready as ready:
        record = run(embedded.store.load(owned.record.address)).record
        if record is None:
            os.close(ready.lock)
            raise StoreUnavailable(f"the record of {owned.record.key} is gone; run the cell again") from None
        return _Begun(drive, record, owned.claim, ready.lock)
    return None


def _attempt(embedded: Embedded, prepared: Prepared, lease: Lease, begun: _Begun) -> Iterator[Job]:
    drive, record, claim = begun.drive, begun.record, begun.claim
    assignment = drive.assignment(record, run(drive.job(record)))
    folder = embedded.attempts / assignment.name
    run(drive.step(record, claim))  # notes the application
    channel = _Kept(embedded, assignment, lease)
    held = Job(assignment, sinks_of(prepared.job, prepared.spec.base), channel, interval=BEAT)
    channel.renew({})
    held.heartbeat.start()
    code = 1
    try:
        yield held
        code = 0
    finally:
        held.heartbeat.stop()
        record_exit(folder, code)
        os.close(begun.lock)
        with contextlib.suppress(_Ready):  # the next attempt is the next run of the cell
            run(drive.run(record, claim))
    ended = run(embedded.store.load(record.address)).record
    if ended is None or ended.state is not State.FINALIZED or ended.outcome is not Outcome.SUCCEEDED:
        raise JobFailed(f"{record.key} did not succeed: {ended.note if ended else 'its record is gone'}")


class _Kept(DirectChannel):
    """A heartbeat of an inline attempt also keeps the lease of its owner: they are one process."""

    def __init__(self, embedded: Embedded, assignment: Assignment, lease: Lease) -> None:
        super().__init__(embedded.store, assignment)
        self.lease = lease

    def renew(self, progress: Mapping[str, Any]) -> bool:
        run(self.lease.keep_alive())
        return super().renew(progress)
