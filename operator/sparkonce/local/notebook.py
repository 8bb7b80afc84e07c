"""`sparkonce.job(KEY, outputs={...})`: exactly-once writes of a block of code, for notebooks and scripts without a manifest.

    with sparkonce.job("load-orders-2024-05-01", outputs={"orders": "lake/orders"}) as job:
        job.write(df, "orders")

The process is owner and driver at once: it reserves the key, is the attempt's application (with its lock and heartbeat), writes, and
settles when the block ends. If the key already has a result, the block still runs, but every `write` returns the recorded output without
running its DataFrame; `job.replayed` is True then. A block that raises ends its attempt; running the cell again starts the next one.

It never waits for another process: a key that runs elsewhere raises `Busy`, which names the owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sparkonce.attempt.drive import Drive
from sparkonce.attempt.request import Answer, Answered
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel, Written
from sparkonce.driver.context import Job
from sparkonce.driver.current import BEAT, expected_of, merged_on
from sparkonce.driver.statements import Statement, StatementBlock, recognised
from sparkonce.driver.stream import Streamed
from sparkonce.errors import (
    AttemptEnded,
    Busy,
    HeldForPerson,
    InvalidInput,
    JobFailed,
    JobMismatch,
    LaunchUnavailable,
    ResultChanged,
    ResultGone,
    SparkonceError,
    StoreUnavailable,
    UndeclaredOutput,
)
from sparkonce.launch.local import LocalLauncher, place, record_exit, record_process
from sparkonce.launch.protocol import ApplicationState
from sparkonce.local import prepare as preparing
from sparkonce.local.prepare import Prepared
from sparkonce.local.runner import INLINE, LocalRunner, again, attempts_folder
from sparkonce.model import entrance
from sparkonce.model.record import Assignment, Outcome, Record, Result, State
from sparkonce.model.spec import API_VERSION, KIND
from sparkonce.sink.open import sinks_of
from sparkonce.sink.protocol import Evidence, Found
from sparkonce.store.open import default_url, is_remote, open_store, redacted
from sparkonce.store.protocol import Claim, Lease, Owned


class Replayed:
    """Stands in for the job when the key has a result: writes return the recorded outputs and run nothing."""

    replayed = True

    def __init__(self, record: Record, result: Result, found: Mapping[str, Found] | None = None) -> None:
        self.key, self.generation, self.attempt = record.key, record.generation, record.attempt
        self.recorded = result
        self.outputs = tuple(output.name for output in result.outputs)
        self.changed = {name: each.why for name, each in (found or {}).items() if each.verdict is Evidence.CHANGED}
        """Output name -> which commits removed or rewrote rows of it since; the results of `write` are as recorded."""
        self.written: dict[str, Written] = {}
        """Output name -> what `write` returned, as on a job after a transaction."""

    def write(self, frame: object, output: str, **options: object) -> Written:  # noqa: ARG002 - the DataFrame is not run
        for each in self.recorded.outputs:
            if each.name == output:
                self.written[output] = Written(
                    each.name, each.uri, each.rows, each.bytes, fresh=False, skipped=each.skipped or ""
                )
                return self.written[output]
        raise UndeclaredOutput(f"output {output!r} is not part of the recorded result of {self.key}")

    def stream(self, frame: object) -> ReplayedStream:  # noqa: ARG002 - no query is started
        return ReplayedStream(self)

    def sql(self, text: str, output: str, **options: object) -> Written:  # noqa: ARG002 - the statement is not run
        return self.write(None, output)

    @contextlib.contextmanager
    def native(self, output: str, **options: object) -> Iterator[ReplayedNative]:  # noqa: ARG002 - it wrote nothing that could be torn
        block = ReplayedNative(self.write(None, output))
        with recognised(block):
            yield block

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Replayed]:
        yield self

    def result(self, **values: Any) -> None:
        """Does nothing: the recorded values are kept."""

    def report(self, kind: str, **body: Any) -> None:
        """Does nothing: the generation is finalized."""

    def fail(self, message: str) -> NoReturn:
        """Exits like `Job.fail`; the recorded result is kept."""
        sys.exit(f"sparkonce: {message}")


class ReplayedNative(StatementBlock):
    """Stands in for a native block when the key has a result: its statements are not run."""

    def __init__(self, written: Written) -> None:
        super().__init__(written.output)
        self.written = written

    def statement(self, statement: Statement) -> Any:
        return statement.session.createDataFrame([], "num_affected_rows long")


class ReplayedStream:
    """Stands in for a stream when the key has a result: no query is started."""

    def __init__(self, job: Replayed) -> None:
        self._job = job

    def write(self, output: str, **options: object) -> Streamed:  # noqa: ARG002 - no query is started
        recorded = self._job.write(None, output)
        return Streamed(
            recorded.output, recorded.uri, recorded.rows, recorded.bytes, batches=None, last_batch=None, fresh=False
        )

    def foreach_batch(
        self,
        function: object,  # noqa: ARG002 - it is not called
        *,
        outputs: Sequence[str] | None = None,
        **options: object,  # noqa: ARG002 - no query is started
    ) -> dict[str, Streamed]:
        return {name: self.write(name) for name in (self._job.outputs if outputs is None else outputs)}


class _BlockReached(Exception):
    """Internal signal: the drive has launched the attempt, so the block may run."""

    def __init__(self, assignment: Assignment, lock: int) -> None:
        self.assignment, self.lock = assignment, lock


class _Later(Exception):
    """Internal signal: another attempt is granted, which the next run of the cell starts."""


@dataclass(frozen=True)
class _Begun:
    """An attempt that this process holds."""

    drive: Drive
    assignment: Assignment
    record: Record
    claim: Claim
    lock: int
    """File descriptor of the attempt's lock."""


class _Inline(LocalLauncher):
    """A launcher whose application is this process."""

    def __init__(self, attempts: Path) -> None:
        super().__init__(attempts, _no_command, _wait)
        self.used = False

    async def launch(self, assignment: Assignment) -> ApplicationState:
        if self.used:
            raise _Later
        folder = self.attempts / assignment.name
        try:
            lock = place(folder, assignment, stopped=False)
            if lock is None:
                return self._state(
                    folder, assignment
                )  # another process has the lock: the drive decides from what is observed
            try:
                record_process(folder)
            except OSError:
                os.close(lock)
                raise
        except OSError as problem:
            raise LaunchUnavailable(
                f"the attempt cannot be started in {folder}: {problem.strerror}; fix that and run the cell again"
            ) from None
        self.used = True
        raise _BlockReached(assignment, lock)


def _no_command(_: Assignment) -> Any:
    raise AssertionError("an inline attempt starts no process")


async def _wait(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - run without an event loop, see sparkonce.blocking


OutputLike = str | os.PathLike[str] | Mapping[str, Any]
"""A slot log's folder, or the fields of `spec.outputs[]` other than `name`."""


def _declared(name: str, output: OutputLike) -> dict[str, Any]:
    """An element of `spec.outputs`, with absolute paths: the cell may run from another folder next time."""
    if not isinstance(output, Mapping):
        return {"name": name, "slotLog": {"path": _absolute(os.fspath(output))}}
    if "name" in output:
        raise InvalidInput(f"outputs[{name!r}] has a name already, {name}; leave `name` out")
    fields = {field: dict(value) if isinstance(value, Mapping) else value for field, value in output.items()}
    for kind in ("slotLog", "delta"):
        place = fields.get(kind)
        if isinstance(place, dict) and isinstance(place.get("path"), str | os.PathLike):
            place["path"] = _absolute(os.fspath(place["path"]))
    return {"name": name, **fields}


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _document(
    key: str, outputs: Mapping[str, OutputLike], parameters: Mapping[str, Any], series: Mapping[str, Any] | None
) -> dict[str, Any]:
    arguments = [f"{name}={value}" for name, value in sorted(parameters.items())]
    spec = {"type": "Python", "mainApplicationFile": INLINE, "arguments": arguments}
    ordered = {} if series is None else {"series": dict(series)}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "inline"},
        "spec": {
            "idempotencyKey": key,
            "template": {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "spec": spec},
            "outputs": [_declared(name, output) for name, output in outputs.items()],
            **ordered,
            "retry": {"maxAttempts": 1000, "backoff": {"initial": "0s", "max": "0s"}},
            "stopTimeoutSeconds": 1,  # we cannot stop another notebook's process, so waiting longer is pointless
        },
    }


@contextlib.contextmanager
def job(
    key: str,
    *,
    outputs: Mapping[str, OutputLike],
    store: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    series: Mapping[str, Any] | None = None,
) -> Iterator[Job | Replayed]:
    """Runs one keyed block of code whose writes happen exactly once.

    outputs: name -> folder of a slot log, or a mapping with the fields of `spec.outputs[]`, such as
    `{"delta": {"path": "lake/orders"}, "mode": "Overwrite"}`; paths are relative to the current folder. series: the fields of
    `spec.series`. parameters: further must-match values; another value under the same key is refused. store: as for the command line.

    Raises: InvalidInput: an output, the series or the key is not valid, named by its field in a job file. Busy: another process runs the
    key. JobMismatch: the key belongs to another job. HeldForPerson: a person must resolve it first. ResultGone: the recorded output is
    gone. JobFailed: the recorded outcome is a failure, or the block did not write every output. StoreUnavailable: the ledger did not
    answer, or the process lost its lease there; run the cell again."""
    document = entrance.admit(_document(key, outputs, parameters or {}, series))
    prepared = preparing.assemble(document, contents={}, base=str(Path.cwd()))
    url = default_url() if store is None else store
    if is_remote(url, None):
        raise InvalidInput(
            f"{redacted(url)} is a cluster's ledger, whose jobs are run by operators; give `store` a file or a PostgreSQL database"
        )
    ledger = open_store(url)
    try:
        runner = LocalRunner(store=ledger, attempts=attempts_folder(ledger.url), sleep=_wait)
        lease = run(ledger.open_lease(owner=runner.owner))
        try:
            begun = _begin(runner, prepared, lease)
            if isinstance(begun, Replayed):
                yield begun
                return
            yield from _attempt(runner, prepared, lease, begun)
        finally:
            with contextlib.suppress(StoreUnavailable):  # it ends by itself, and what the block wrote is settled
                run(lease.revoke())
    finally:
        run(ledger.close())


def _begin(runner: LocalRunner, prepared: Prepared, lease: Lease) -> Replayed | _Begun:
    """Requests the key until this process holds an attempt, or the key has a result."""
    nonce = os.urandom(16).hex()
    while True:
        view, said, found = run(runner.look(prepared))
        record, owned = view.record, None
        if said.answer is Answer.NEW:
            run(prepared.check())
            owned = run(runner.reserve(prepared, lease, nonce, view))
        elif record is not None and said.answer is Answer.TAKE_OVER:
            owned = run(runner.take_over(record, lease))
        elif record is not None and said.answer is Answer.REOPEN:
            owned = run(runner.reopen(prepared, record, lease, nonce))
        else:
            return _recorded(runner, prepared, said, record, found)
        if owned is not None and (begun := _to_launch(runner, owned)) is not None:
            return begun
        if not run(runner.patiently(lease.keep_alive)):
            raise StoreUnavailable("this process lost its lease on the ledger; nothing is lost, run the cell again")


def _recorded(
    runner: LocalRunner, prepared: Prepared, said: Answered, record: Record | None, found: Mapping[str, Found]
) -> Replayed:
    assert record is not None  # an unknown key is New
    key, unblock = prepared.key.text, said.unblock
    if said.answer is Answer.REPLAY:
        result = run(runner.store.result(record.address, record.generation))
        if result is None or result.outcome is not Outcome.SUCCEEDED:
            raise JobFailed(_ended_badly(record, result))
        replayed = Replayed(record, result, found)
        if replayed.changed:
            warnings.warn(f"{key}: {said.evidence}", ResultChanged, stacklevel=5)  # names the caller's `with` statement
        return replayed
    if said.answer is Answer.RESULT_GONE:
        unblock = again(key)  # there is no file that `sparkonce rerun` could run
    errors = {Answer.MISMATCH: JobMismatch, Answer.HELD: HeldForPerson, Answer.RESULT_GONE: ResultGone}
    raise errors.get(said.answer, Busy)(f"{key}: {said.evidence}" + (f"; {unblock}" if unblock else ""))


def _ended_badly(record: Record, result: Result | None) -> str:
    outcome = (record.outcome or Outcome.FAILED).lower()
    why = result.failure.message if result and result.failure else record.note
    return f"{record.key} {outcome}" + (f": {why}" if why else "") + f"; to run it anew: {again(record.key)}"


def _to_launch(runner: LocalRunner, owned: Owned) -> _Begun | None:
    """Drives until an attempt is launched; None: the generation ended first (an earlier attempt had committed)."""
    runner.launcher = _Inline(runner.attempts)
    drive = runner.engine()
    drive.wait = _wait
    try:
        run(drive.run(owned.record, owned.claim))
    except _BlockReached as ready:
        return _Begun(drive, ready.assignment, owned.record, owned.claim, ready.lock)
    return None


def _attempt(runner: LocalRunner, prepared: Prepared, lease: Lease, begun: _Begun) -> Iterator[Job]:
    try:
        held = _held(runner, prepared, lease, begun)
        try:
            yield held
        finally:
            held.heartbeat.stop()
    except BaseException:
        with contextlib.suppress(
            SparkonceError, OSError
        ):  # the block's own error is the one to raise; the next run of the cell settles
            _end(runner, begun, 1)
        raise
    _end(runner, begun, 0)
    _check(runner, prepared, begun)


def _held(runner: LocalRunner, prepared: Prepared, lease: Lease, begun: _Begun) -> Job:
    """The job object for the block, once the attempt's application is noted in the record."""
    view = run(runner.patiently(lambda: runner.store.load(begun.record.address)))
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
    channel = _InlineHeartbeat(runner, told, lease)
    held = Job(
        told,
        sinks_of(prepared.job, prepared.spec.base),
        channel,
        interval=BEAT,
        expected=expected_of(prepared.job),
        merged_on=merged_on(prepared.job),
    )
    if not channel.renew({}):
        raise AttemptEnded(f"attempt {told.attempt} of {told.key} is over before its block began; run the cell again")
    held.heartbeat.start()
    return held


def _end(runner: LocalRunner, begun: _Begun, code: int) -> None:
    """Records the attempt's exit and drives the key on, which settles it."""
    try:
        record_exit(runner.attempts / begun.assignment.name, code)
    finally:
        fcntl.flock(begun.lock, fcntl.LOCK_UN)  # also for children by fork, which share it and may live on
        os.close(begun.lock)
    with contextlib.suppress(_Later):
        run(runner.patiently(lambda: begun.drive.run(begun.record, begun.claim)))


def _check(runner: LocalRunner, prepared: Prepared, begun: _Begun) -> None:
    """After a block that ended without an error: raises unless the key has succeeded."""
    view = run(runner.patiently(lambda: runner.store.load(begun.record.address)))
    record, told = view.record, begun.assignment
    if record is None or record.generation != told.generation:
        raise JobFailed(f"generation {told.generation} of {told.key} was ended by another process; run the cell again")
    if record.state is State.HELD:
        raise HeldForPerson(f"{told.key} is held: {record.note}; `sparkonce keys resolve {told.key}` decides")
    if record.state is State.FINALIZED:
        if record.outcome is not Outcome.SUCCEEDED:
            result = run(runner.store.result(record.address, record.generation))
            raise JobFailed(_ended_badly(record, result))
        return
    if view.claim is None:
        raise StoreUnavailable(
            f"this process lost its lease on the ledger while the block of {told.key} ran, so its outcome is not settled; "
            "run the cell again: what is committed stays"
        )
    if view.claim != begun.claim:
        raise Busy(f"{told.key} was taken over by {view.claim.owner}; run the cell again to see what became of it")
    raise JobFailed(
        f"attempt {told.attempt} of {told.key} ended without all of its outputs ({', '.join(o.name for o in prepared.sinks)}); "
        "run the cell again: what is committed stays"
    )


class _InlineHeartbeat(DirectChannel):
    """The heartbeat of an inline attempt; it also renews the owner's lease, since both are one process."""

    def __init__(self, runner: LocalRunner, assignment: Assignment, lease: Lease) -> None:
        super().__init__(runner.store, assignment)
        self.lease = lease

    def renew(self, progress: Mapping[str, Any]) -> bool:
        run(self.lease.keep_alive())
        return super().renew(progress)
