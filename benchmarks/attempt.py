"""One attempt of a fresh key, as a local run makes it: the spec, the reservation, and the driver's Job on a real ledger.

What the command line adds (a lock file, a child process) costs the same with and without sparkonce's outputs, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from measure import WrongEffect

from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.context import Job
from sparkonce.local.prepare import Prepared, assemble
from sparkonce.model.record import Assignment
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Declared
from sparkonce.store.open import open_store
from sparkonce.store.protocol import IdempotencyStore, Lease, Owned

OUTPUT = "rows"

INSTALL = "local"


TEMPLATE: Mapping[str, Any] = {
    "type": "Python",
    "mainApplicationFile": "job.py",
    "arguments": ["--day", "2024-05-01", "--input", "lake/raw"],
    "sparkConf": {"spark.sql.shuffle.partitions": "8", "spark.sql.session.timeZone": "UTC"},
    "driver": {"cores": 1, "memory": "1g"},
    "executor": {"cores": 2, "instances": 2, "memory": "4g"},
}
"""A SparkApplication's spec of typical size."""


def job(key: str, place: dict[str, Any] | None, template: Mapping[str, Any] = TEMPLATE) -> IdempotentJob:
    """A job document with one output, `place` as in `spec.outputs[]`, or with none."""
    document: dict[str, Any] = {
        "apiVersion": "sparkonce.dev/v1alpha1",
        "kind": "IdempotentJob",
        "metadata": {"name": "measured", "labels": {"team": "benchmarks"}},
        "spec": {
            "idempotencyKey": key,
            "template": {
                "apiVersion": "sparkoperator.k8s.io/v1beta2",
                "kind": "SparkApplication",
                "spec": dict(template),
            },
            "outputs": [] if place is None else [{"name": OUTPUT, **place}],
        },
    }
    return IdempotentJob.of(document)


@contextmanager
def ledger(scratch: Path) -> Iterator[tuple[IdempotencyStore, Lease]]:
    """Opens a new store, with a lease on it."""
    store = open_store(str(scratch / "ledger.db"))
    try:
        lease = run(store.open_lease(owner="benchmark"))
        try:
            yield store, lease
        finally:
            run(lease.revoke())
    finally:
        run(store.close())


def slot_log(table: Path) -> dict[str, Any]:
    return {"slotLog": {"path": str(table)}}


def prepared(table: Path, place: dict[str, Any] | None = None) -> Prepared:
    """A prepared request for an unused key; its output is a slot log unless `place` is given."""
    made = job(f"measured-{uuid4()}", place or slot_log(table))
    return assemble(made, contents={"application file job.py": "0" * 64}, base=str(table))


def reserving(store: IdempotencyStore, lease: Lease, ready: Prepared) -> Callable[[], Owned]:
    """A call that reserves, with everything else prepared in advance. Raises WrongEffect if the key is not owned."""
    request = ready.request(uuid4().hex)

    def reserve() -> Owned:
        reply = run(store.reserve(request, lease=lease, floor=0))
        if not isinstance(reply, Owned):
            raise WrongEffect(f"a fresh key was not reserved: {type(reply).__name__}")
        return reply

    return reserve


def begun(
    store: IdempotencyStore, lease: Lease, table: Path, *, durable: bool = True, place: dict[str, Any] | None = None
) -> Job:
    """The driver's Job with a running heartbeat; the caller must call `heartbeat.stop()`. `durable`: see `open_sink`."""
    ready = prepared(table, place)
    record = reserving(store, lease, ready)().record
    assignment = Assignment.of(record, ready.spec, install=INSTALL)
    (output,) = ready.job.resolved_outputs
    declared = Declared(name=output.name, kind=output.kind, location=output.location)
    sink = open_sink(declared, base=None, durable=durable)
    started = Job(assignment, {OUTPUT: sink}, DirectChannel(store, assignment))
    if not started.channel.renew({}):
        raise WrongEffect("the ledger says that an attempt is over which has just begun")
    started.heartbeat.start()
    return started
