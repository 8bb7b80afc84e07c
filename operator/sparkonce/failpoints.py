"""Failpoints: named points in the code at which a test can make the process die, freeze, sleep or fail; modelled on etcd's gofail.

    SPARKONCE_FAILPOINTS="sink.slots.create.before=kill;store.sql.commit.after=2*off->stop"

A term is `[N*]action`; terms are chained with `->`: each applies to its N hits, the last one to all that follow (a used-up `N*` means
off). Actions: `off`, `kill` (SIGKILL to this process), `stop` (SIGSTOP), `sleep(MILLISECONDS)`, `raise` (FailpointError), `exit(CODE)`.
Without any setting a point costs one comparison. With `SPARKONCE_FAILPOINTS_LOG=FILE` every hit appends its name to FILE, as
`name=action` if an action was performed, so that a test can assert what it reached.

With `SPARKONCE_FAILPOINTS_ONCE=FOLDER` (an existing folder) each point kills or stops one process in all, however many attempts the job
has. With `SPARKONCE_FAILPOINTS_TALLY=FOLDER` (likewise) each performed action leaves an empty file with its point's name, so that a run of
all tests can list the points at which none played a fault.

Names that are not in `NAMES` are refused: a typo in a test would otherwise test nothing. Random fault injection is the tests' task.
docs/failpoints.md is generated from `NAMES`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

NAMES: dict[str, str] = {
    "store.sql.statement.before": "before a statement inside a write transaction of a SQL store",
    "store.sql.statement.after": "after a statement inside a write transaction of a SQL store",
    "store.sql.commit.before": "the transaction is complete and not committed",
    "store.sql.commit.after": "the transaction is committed and its caller has no answer yet",
    "store.etcd.request.before": "before a request of the store to etcd",
    "store.etcd.request.after": "etcd has answered a request and its caller has no answer yet",
    "store.etcd.reserve.before": "there is room for a new key, and it is not asked for yet",
    "engine.reserve.before": "the request is known to be new and not reserved",
    "engine.reserve.after": "the key is reserved, attempt 1 is granted, nothing is launched",
    "engine.launch.before": "an attempt is granted and its application not created",
    "engine.launch.after": "the application exists and its UID is not in the record",
    "engine.note.after": "the application's UID is in the record",
    "engine.settling.before": "the attempt ended and `settling` is not written",
    "engine.settling.after": "`settling` is written, no output is fenced",
    "engine.settle.rolled": "a sealed intent is rolled forward, the outputs are not fenced",
    "engine.settle.fenced": "every output is fenced, the verdict is not acted on",
    "engine.settle-run.counted": "a settle run is counted in the record and not sent",
    "engine.settle-run.before": "before the application of a settle run is created",
    "engine.settle-run.after": "the application of a settle run exists and the operator does not know yet",
    "engine.stop.after": "the attempt's processes are stopped, nothing is granted",
    "engine.grant.after": "the next attempt is granted and not launched",
    "engine.finalize.before": "the result is known and not recorded",
    "engine.finalize.after": "the result is recorded and no waiting client has it yet",
    "replies.reserved": "a request has reserved its key and has not begun",
    "replies.effect.before": "a request that owns its key begins",
    "replies.effect.after": "a request has run, its outcome is not noted",
    "replies.finalize.before": "a request's answer is known and not recorded",
    "replies.finalize.after": "a request's answer is recorded, its client has not got it",
    "replies.taken": "a stale key is taken over, nothing is reconciled",
    "replies.reconciled": "a stale key's outcome is known and not recorded",
    "replica.reserve.before": "an object was read and its key is not reserved",
    "replica.reserve.after": "the key is reserved and nothing drives it",
    "replica.take-over.before": "a key without an owner was seen and not claimed",
    "replica.hand-over.before": "every drive was dropped and the lease lives",
    "launch.local.placed": "the attempt's folder exists, no process is started",
    "launch.local.spawned": "the process is started, the launcher has not returned",
    "driver.current": "the driver took its lock and has not done anything",
    "driver.stage.before": "before the DataFrame runs",
    "driver.stage.after": "the files are staged and not committed",
    "driver.commit.after": "the slot is committed and the driver does not know yet",
    "driver.write.done": "one output is committed, the driver goes on",
    "driver.stream.open.before": "a stream's first batch was delivered, its opening is not committed",
    "driver.stream.opened": "the opening is committed, no batch is",
    "driver.stream.batch": "a batch is committed, or was found so, and Spark does not know yet",
    "driver.stream.end.before": "a stream's query has ended, its end is not committed",
    "driver.stream.ended": "the end of a stream is committed, its driver goes on",
    "driver.native.open": "a native block begins, its opening is not committed, or its branch not made",
    "driver.native.before": "the slot of a statement is stored where it has one, Spark has not begun it",
    "driver.native.after": "Spark has run a statement, its driver has not looked at the table",
    "driver.native.empty": "a statement made no entry, its driver has made none either",
    "driver.native.end.before": "all statements of a native block are done, its end is not committed",
    "driver.seal.before": "all outputs of a transaction are staged, nothing is sealed",
    "driver.seal.after": "the transaction is sealed, no slot is committed",
    "driver.tx.between": "some slots of a sealed transaction are committed, some are not",
    "driver.abort.closed": "an aborted write closed its slot, its files are still there",
    "lanes.claim.before": "the claim of a lane is put together and not created",
    "lanes.claim.after": "a lane is claimed and its writer does not know yet",
    "lanes.uploaded": "the files of a place are uploaded, its commit is not sent",
    "lanes.commit.before": "the commit of a place is put together and not sent",
    "lanes.commit.after": "a place of a lane is committed and its writer does not know yet",
    "lanes.kafka.rows": "the rows of a place are in a transaction on Kafka, the position is not",
    "lanes.rolled": "a generation of a lane has ended, the next one is not open",
    "lanes.trim.before": "parts of a lane are to be hidden from readers",
    "lanes.trim.after": "parts of a lane are hidden from readers, their files are there",
    "lanes.trim.removed": "the files of a place that readers do not see any more are deleted",
    "sink.slots.close.before": "before a lower slot is filled with `closed`",
    "sink.slots.close.after": "after a lower slot was filled with `closed`",
    "sink.slots.looked": "an overwrite has decided what it replaces, before its slot is created",
    "sink.slots.create.before": "before the attempt's own slot is created",
    "sink.slots.create.after": "after the attempt's own slot was created",
    "sink.slots.sweep.before": "before a staging folder of a closed slot is deleted",
    "sink.skipping": "a slot has come late, its job skips, and nothing of the skip is written",
    "sink.iceberg.created": "the Iceberg table exists and has no snapshot yet",
    "sink.iceberg.columns.before": "the columns of a new Iceberg table are not sent to the catalog",
    "sink.iceberg.columns.after": "the catalog has given a new Iceberg table its columns and this process does not know yet",
    "sink.iceberg.staged": "the rows and their slot lie beside the table, no commit was sent",
    "sink.iceberg.commit.before": "the commit is put together and not sent to the catalog",
    "sink.iceberg.commit.after": "the catalog has made the commit and this process does not know yet",
    "sink.iceberg.fence.before": "the fence is put together and not sent to the catalog",
    "sink.iceberg.fence.after": "the catalog has set the fence and this process does not know yet",
    "sink.iceberg.branch.before": "the branch of a native block is not sent to the catalog",
    "sink.iceberg.branch.after": "the catalog has made the branch of a native block and this process does not know yet",
    "sink.iceberg.sweep.before": "before a staging folder that can never be committed is deleted",
    "sink.delta.noted": "a fence is noted beside a Delta table and not in its log",
    "sink.delta.fence.before": "before the log entry of a fence is created",
    "sink.delta.fence.after": "after the log entry of a fence was created",
    "sink.delta.table.before": "before version 0 of a Delta table is created",
    "sink.delta.table.after": "a Delta table exists and has no rows",
    "sink.delta.commit.before": "before the log entry that commits a slot is created",
    "sink.delta.commit.after": "after the log entry that commits a slot was created",
    "sink.delta.checkpoint.before": "a log entry exists, and a checkpoint is due",
    "sink.delta.sweep.before": "before a staging folder that can never be committed is deleted",
}
"""Every point, with the state of the system when it is hit."""


class FailpointError(RuntimeError):
    """Raised by the `raise` action, where a real component cannot be made to fail on demand."""


@dataclass
class _Term:
    action: str
    argument: int
    times: int | None  # None: every hit from here on


_TERM = re.compile(r"(?:(\d+)\*)?(off|kill|stop|raise|sleep|exit)(?:\((\d+)\))?$")


def parse(text: str) -> dict[str, list[_Term]]:
    """Parses SPARKONCE_FAILPOINTS into terms by name. Raises: ValueError: an unknown name or action, in one sentence."""
    plan: dict[str, list[_Term]] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, _, terms = part.partition("=")
        if name not in NAMES:
            raise ValueError(
                f"SPARKONCE_FAILPOINTS names {name!r}, which does not exist; docs/failpoints.md lists them"
            )
        plan[name] = []
        for term in terms.split("->"):
            match = _TERM.match(term.strip())
            if match is None:
                raise ValueError(
                    f"SPARKONCE_FAILPOINTS has {term!r} at {name}; write [N*]off|kill|stop|raise|sleep(MS)|exit(CODE)"
                )
            times, action, argument = match.groups()
            plan[name].append(_Term(action, int(argument or 0), int(times) if times else None))
    return plan


_plan: dict[str, list[_Term]] | None = None
_log: str | None = None


def _spent(name: str) -> bool:
    """With SPARKONCE_FAILPOINTS_ONCE, takes this point's one kill or stop. True: another process has taken it already."""
    folder = os.environ.get("SPARKONCE_FAILPOINTS_ONCE")
    if folder is None:
        return False
    try:
        Path(folder, name).touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


def _load() -> dict[str, list[_Term]]:
    global _plan, _log  # noqa: PLW0603 - read once per process: the environment of a job does not change under it
    _log = os.environ.get("SPARKONCE_FAILPOINTS_LOG")
    text = os.environ.get("SPARKONCE_FAILPOINTS")
    _plan = parse(text) if text else {}
    return _plan


def reset() -> None:
    """Makes the next hit read the environment again, for tests that change it within one process."""
    global _plan  # noqa: PLW0603 - see _load
    _plan = None


def hit(name: str) -> None:
    """Performs the action that the environment names for this point; none by default."""
    plan = _plan if _plan is not None else _load()
    if plan or _log is not None:
        _perform(name, plan)


def _perform(name: str, plan: dict[str, list[_Term]]) -> None:
    term = _next(plan.get(name))
    if term is not None and term.action in ("kill", "stop") and _spent(name):
        term = None
    if _log is not None:
        with Path(_log).open("a", encoding="ascii") as log:  # O_APPEND: short lines of several processes do not mix
            log.write(f"{name}={term.action}\n" if term and term.action != "off" else f"{name}\n")
    if term is not None:
        if (folder := os.environ.get("SPARKONCE_FAILPOINTS_TALLY")) and term.action != "off":
            Path(folder, name).touch()
        _act(name, term)


def _next(terms: list[_Term] | None) -> _Term | None:
    """The term for this hit; used-up terms are removed."""
    while terms:
        if terms[0].times is None:
            return terms[0]
        if terms[0].times > 0:
            terms[0].times -= 1
            return terms[0]
        terms.pop(0)
    return None


def _act(name: str, term: _Term) -> None:
    match term.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        case "stop":
            # To this thread: one sent to the process is taken by the main thread, and this one would go on until that runs.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "sleep":
            time.sleep(term.argument / 1000)
        case "raise":
            raise FailpointError(f"failpoint {name}")
        case "exit":
            os._exit(term.argument)


def markdown() -> str:
    """The text of docs/failpoints.md."""
    rows = "".join(f"| `{name}` | {state} |\n" for name, state in NAMES.items())
    return f"""# Failpoints

Named points in the code at which a test can make a process die, freeze, sleep or fail. They are off unless the process's environment
names them; drivers inherit the settings of `sparkonce run`.

    SPARKONCE_FAILPOINTS="driver.commit.after=kill" sparkonce run job.yaml

| variable | value |
| --- | --- |
| `SPARKONCE_FAILPOINTS` | `NAME=TERMS`, joined by `;`. A term is `[N*]ACTION`, chained by `->`: `2*off->kill` passes twice, then kills |
| `SPARKONCE_FAILPOINTS_LOG` | a file: each hit appends `NAME`, or `NAME=ACTION` if an action was performed |
| `SPARKONCE_FAILPOINTS_ONCE` | a folder: each point kills or stops one process in all, however many attempts there are |
| `SPARKONCE_FAILPOINTS_TALLY` | a folder: each action that is performed leaves an empty file with its point's name |

Actions: `off`, `kill` (SIGKILL), `stop` (SIGSTOP), `sleep(MILLISECONDS)`, `raise`, `exit(CODE)`.
A name that is not in this list is refused.

| point | state of the system when it is hit |
| --- | --- |
{rows}
Generated: `python -m sparkonce.failpoints > docs/failpoints.md`.
"""


if __name__ == "__main__":
    sys.stdout.write(markdown())
