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
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sparkonce.blocking import run
from sparkonce.driver.attempt import BEAT, expected_of, sinks_of
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.context import Job
from sparkonce.driver.stream import Streamed
from sparkonce.driver.written import Written
from sparkonce.engine import prepare as preparing
from sparkonce.engine.drive import Drive
from sparkonce.engine.embedded import Embedded, attempts_folder
from sparkonce.engine.operate import INLINE, again
from sparkonce.engine.prepare import Prepared
from sparkonce.engine.request import Answer, Answered
from sparkonce.errors import (
    AttemptEnded,
    Busy,
    HeldForPerson,
    JobFailed,
    JobMismatch,
    LaunchUnavailable,
    ResultGone,
    SparkonceError,
    UndeclaredOutput,
)
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
        self.outputs = tuple(output.name for output in result.outputs)
        self.written: dict[str, Written] = {}
        """As after a transaction."""

    def write(self, frame: object, output: str, **options: object) -> Written:  # noqa: ARG002 - the DataFrame is not run
        for each in self.recorded.outputs:
            if each.name == output:
                self.written[output] = Written(each.name, each.uri, each.rows, each.bytes, fresh=False)
                return self.written[output]
        raise UndeclaredOutput(f"output {output!r} is not part of the recorded result of {self.key}")

    def stream(self, frame: object) -> ReplayedStream:  # noqa: ARG002 - no query is started
        return ReplayedStream(self)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Replayed]:
        yield self

    def result(self, **values: Any) -> None:
        """Nothing: the recorded values stay."""

    def report(self, kind: str, **body: Any) -> None:
        """Nothing: the record is closed."""

    def fail(self, message: str) -> NoReturn:
        """Ends the block as a job would; the result stays."""
        sys.exit(f"sparkonce: {message}")


class ReplayedStream:
    """In the place of a stream that has its result."""

    def __init__(self, job: Replayed) -> None:
        self._job = job

    def write(self, output: str, **options: object) -> Streamed:  # noqa: ARG002 - no query is started
        told = self._job.write(None, output)
        return Streamed(told.output, told.uri, told.rows, told.bytes, batches=None, last_batch=None, fresh=False)

    def foreach_batch(
        self,
        function: object,  # noqa: ARG002 - it is not called
        *,
        outputs: Sequence[str] | None = None,
        **options: object,  # noqa: ARG002 - no query is started
    ) -> dict[str, Streamed]:
        return {name: self.write(name) for name in (self._job.outputs if outputs is None else outputs)}


class _Ready(Exception):
    """A signal inside this module: the drive has come to the point where the block runs."""

    def __init__(self, assignment: Assignment, lock: int) -> None:
        self.assignment, self.lock = assignment, lock


class _Later(Exception):
    """As `_Ready`: an attempt is granted and not begun, which is the next run of the cell."""


@dataclass(frozen=True)
class _Begun:
    """An attempt that this process holds."""

    drive: Drive
    assignment: Assignment
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
            raise _Later
        folder = self.attempts / assignment.name
        try:
            lock = place(folder, assignment, stopped=False)
            if lock is None:
                return self._look(folder)  # a twin's, or somebody else's: the drive finds out
            record_process(folder)
        except OSError as problem:
            raise LaunchUnavailable(
                f"the attempt cannot be started in {folder}: {problem.strerror}; mend that and run the cell again"
            ) from None
        self.used = True
        raise _Ready(assignment, lock)


def _no_command(_: Assignment) -> Any:
    raise AssertionError("an inline attempt starts no process")


async def _wait(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - run without an event loop, see sparkonce.blocking


def _document(key: str, outputs: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    arguments = [f"{name}={value}" for name, value in sorted(parameters.items())]
    spec = {"type": "Python", "mainApplicationFile": INLINE, "arguments": arguments}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "inline"},
        "spec": {
            "idempotencyKey": key,
            "template": {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "spec": spec},
            "outputs": [{"name": name, "slotLog": {"path": path}} for name, path in outputs.items()],
            "retry": {"maxAttempts": 1000, "backoff": {"initial": "0s", "max": "0s"}},
            "stopTimeoutSeconds": 1,  # a process that is not ours to end: waiting for it longer helps nobody
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
        run(ledger.close())


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


def _recorded(embedded: Embedded, prepared: Prepared, said: Answered, record: Record | None) -> Replayed:
    assert record is not None  # an unknown key is New
    key, unblock = prepared.key.text, said.unblock
    if said.answer is Answer.REPLAY:
        result = run(embedded.store.result(record.address, record.generation))
        if result is None or result.outcome is not Outcome.SUCCEEDED:
            raise JobFailed(_ended_badly(record, result))
        return Replayed(record, result)
    if said.answer is Answer.RESULT_GONE:
        unblock = again(key)  # there is no file that `sparkonce rerun` could run
    errors = {Answer.MISMATCH: JobMismatch, Answer.HELD: HeldForPerson, Answer.RESULT_GONE: ResultGone}
    raise errors.get(said.answer, Busy)(f"{key}: {said.evidence}" + (f"; {unblock}" if unblock else ""))


def _ended_badly(record: Record, result: Result | None) -> str:
    outcome = (record.outcome or Outcome.FAILED).lower()
    why = result.failure.message if result and result.failure else record.note
    return f"{record.key} {outcome}" + (f": {why}" if why else "") + f"; to run it anew: {again(record.key)}"


def _to_launch(embedded: Embedded, owned: Owned) -> _Begun | None:
    """Drives until an attempt is to start; None when the generation ended first (its predecessor had committed)."""
    embedded.launcher = _Inline(embedded.attempts)
    drive = embedded.engine()
    drive.wait = _wait
    try:
        run(drive.run(owned.record, owned.claim))
    except _Ready as ready:
        return _Begun(drive, ready.assignment, owned.record, owned.claim, ready.lock)
    return None


def _attempt(embedded: Embedded, prepared: Prepared, lease: Lease, begun: _Begun) -> Iterator[Job]:
    try:
        held = _held(embedded, prepared, lease, begun)
        try:
            yield held
        finally:
            held.heartbeat.stop()
    except BaseException:
        with contextlib.suppress(
            SparkonceError, OSError
        ):  # the block's own error is the one to see; the next run settles
            _end(embedded, begun, 1)
        raise
    _end(embedded, begun, 0)
    _check(embedded, prepared, begun)


def _held(embedded: Embedded, prepared: Prepared, lease: Lease, begun: _Begun) -> Job:
    """The job of the attempt, once its application is in the record."""
    view = run(embedded.patiently(lambda: embedded.store.load(begun.record.address)))
    record, told = view.record, begun.assignment
    if (
        record is None
        or view.claim != begun.claim
        or (record.generation, record.attempt) != (told.generation, told.attempt)
    ):
        raise Busy(f"{told.key} was taken over before this block began; run the cell again")
    seen = run(begun.drive.launcher.observe(told, record.application))
    if seen is not None:
        run(begun.drive.note(record, begun.claim, seen))
    channel = _Kept(embedded, told, lease)
    held = Job(
        told, sinks_of(prepared.job, prepared.spec.base), channel, interval=BEAT, expected=expected_of(prepared.job)
    )
    if not channel.renew({}):
        raise AttemptEnded(f"attempt {told.attempt} of {told.key} is over before its block began; run the cell again")
    held.heartbeat.start()
    return held


def _end(embedded: Embedded, begun: _Begun, code: int) -> None:
    """The application has ended; what that means is settled."""
    try:
        record_exit(embedded.attempts / begun.assignment.name, code)
    finally:
        os.close(begun.lock)
    with contextlib.suppress(_Later):
        run(embedded.patiently(lambda: begun.drive.run(begun.record, begun.claim)))


def _check(embedded: Embedded, prepared: Prepared, begun: _Begun) -> None:
    """After a block that ended well: an error unless the key has its result."""
    view = run(embedded.patiently(lambda: embedded.store.load(begun.record.address)))
    record, told = view.record, begun.assignment
    if record is None or record.generation != told.generation:
        raise JobFailed(f"generation {told.generation} of {told.key} was ended by somebody else; run the cell again")
    if record.state is State.HELD:
        raise HeldForPerson(f"{told.key} is held: {record.note}; `sparkonce keys resolve {told.key}` decides")
    if record.state is State.FINALIZED:
        if record.outcome is not Outcome.SUCCEEDED:
            result = run(embedded.store.result(record.address, record.generation))
            raise JobFailed(_ended_badly(record, result))
        return
    if view.claim is not None and view.claim != begun.claim:
        raise Busy(f"{told.key} was taken over by {view.claim.owner}; run the cell again to see what became of it")
    raise JobFailed(
        f"attempt {told.attempt} of {told.key} ended without all of its outputs ({', '.join(o.name for o in prepared.sinks)}); "
        "run the cell again: what is committed stays"
    )


class _Kept(DirectChannel):
    """A heartbeat of an inline attempt also keeps the lease of its owner: they are one process."""

    def __init__(self, embedded: Embedded, assignment: Assignment, lease: Lease) -> None:
        super().__init__(embedded.store, assignment)
        self.lease = lease

    def renew(self, progress: Mapping[str, Any]) -> bool:
        run(self.lease.keep_alive())
        return super().renew(progress)
