"""An attempt that was granted, as its driver sees it: a record in a store, outputs in a folder, a job to write through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import parquet

from harness.arrow_stage import arrow_stage
from harness.memory_store import MemoryStore
from sparkonce.blocking import run
from sparkonce.driver.channel import Channel, DirectChannel
from sparkonce.driver.context import Job
from sparkonce.driver.current import merged_on
from sparkonce.errors import OutputUnavailable
from sparkonce.local.prepare import Prepared, assemble
from sparkonce.model.record import Assignment, Record, Settling, Why
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.open import sinks_of
from sparkonce.sink.protocol import Sink, SinkKey, Slot
from sparkonce.sink.transaction import sink_key
from sparkonce.store.protocol import Claim, IdempotencyStore, Owned, Updated


def document(outputs: Mapping[str, str], /, **spec: Any) -> dict[str, Any]:
    """A job with these outputs, as parsed YAML; it never waits between attempts."""
    template = {"type": "Python", "mainApplicationFile": "local:///job.py"}
    return {
        "apiVersion": "sparkonce.dev/v1alpha1",
        "kind": "IdempotentJob",
        "metadata": {"name": "test"},
        "spec": {
            "idempotencyKey": "load-may",
            "template": {
                "apiVersion": "sparkoperator.k8s.io/v1beta2",
                "kind": "SparkApplication",
                "spec": {**template, **spec.pop("template", {})},
            },
            "outputs": [{"name": name, "slotLog": {"path": path}} for name, path in outputs.items()],
            "retry": {"maxAttempts": 3, "backoff": {"initial": "0s", "max": "0s"}},
            **spec,
        },
    }


def prepared(folder: Path, *outputs: str, **spec: Any) -> Prepared:
    """The request for it; each output is a folder of its own name."""
    job = IdempotentJob.of(document({name: name for name in outputs}, **spec))
    return assemble(job, contents={}, base=str(folder))


@dataclass
class Granted:
    folder: Path
    store: IdempotencyStore
    prepared: Prepared
    record: Record
    claim: Claim

    @property
    def assignment(self) -> Assignment:
        return Assignment.of(self.record, self.prepared.spec, install="local", store=self.store.url)

    def sinks(self) -> dict[str, Sink]:
        return sinks_of(self.prepared.job, str(self.folder), stager=arrow_stage)

    def job(self, *, channel: Channel | None = None, sinks: Mapping[str, Sink] | None = None) -> Job:
        """What `current()` returns; its heartbeat is not started."""
        return Job(
            self.assignment,
            sinks or self.sinks(),
            channel or DirectChannel(self.store, self.assignment),
            merged_on=merged_on(self.prepared.job),
        )

    def key(self, output: str) -> SinkKey:
        return sink_key(self.record.key_hash, self.record.generation, self.sinks()[output])

    def now(self) -> Record:
        record = run(self.store.load(self.record.address)).record
        assert record is not None
        return record

    def update(self, **change: Any) -> None:
        """As the owner does."""
        now = self.now()
        done = run(self.store.update(now, self.claim, now.changed(**change)))
        assert isinstance(done, Updated), done
        self.record = done.record

    def settling(self, why: Why = Why.LOST) -> None:
        self.update(settling=Settling(attempt=self.record.attempt, why=why))

    def next_attempt(self) -> None:
        """Settled by fencing every output, and granted again."""
        for name in self.sinks():
            self.fence(name, self.record.attempt + 1)
        self.update(attempt=self.record.attempt + 1, nonce=f"nonce-{self.record.attempt + 1}")

    def fence(self, output: str, token: int) -> Slot | None:
        sink = self.sinks()[output]
        return run(sink.fence(self.key(output), token, fingerprint=self.record.fingerprint, by="a successor"))

    def committed(self, output: str) -> Slot | None:
        return run(self.sinks()[output].find(self.key(output)))

    def rows(self, output: str) -> list[int]:
        """Of the files that the committed slot names."""
        slot = self.committed(output)
        files = [self.folder / output / file.path for file in slot.files] if slot else []
        columns: list[Any] = [parquet.read_table(f, partitioning=None)["n"].to_pylist() for f in files]
        return sorted(number for column in columns for number in column)

    def slots(self, output: str) -> list[tuple[int, str]]:
        """Token and state of each slot, of any state."""
        sink: Any = self.sinks()[output]
        found = [run(sink._read(self.key(output), token)) for token in range(1, self.record.attempt + 2)]
        return [(slot.token, slot.state.value) for slot in found if slot is not None]

    def staged(self, output: str) -> list[str]:
        """Names of the staging folders, which begin with the token."""
        return sorted(path.name for path in (self.folder / output).glob("_data/*/*"))


def granted(
    folder: Path, *outputs: str, store: IdempotencyStore | None = None, owner: str = "owner", **spec: Any
) -> Granted:
    """Attempt 1 of generation 1."""
    store = store or MemoryStore()
    request = prepared(folder, *outputs, **spec)
    lease = run(store.open_lease(owner=owner))
    done = run(store.reserve(request.request("nonce-1"), lease=lease, floor=0))
    assert isinstance(done, Owned), done
    return Granted(folder, store, request, done.record, done.claim)


class Silent:
    """Wraps the place of an output: creates of slots are carried out, or not, and nothing there is answered for a while."""

    def __init__(self, objects: Any, *, times: int, lands: bool) -> None:
        self._objects, self.times, self.lands = objects, times, lands

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    async def create(self, path: str, data: bytes) -> bool:
        if self.times == 0:
            return bool(await self._objects.create(path, data))
        if self.lands:
            await self._objects.create(path, data)
        raise self._lost(path)

    async def get(self, path: str) -> bytes | None:
        if self.times:
            raise self._lost(path)
        found: bytes | None = await self._objects.get(path)
        return found

    def _lost(self, path: str) -> OutputUnavailable:
        self.times -= 1
        return OutputUnavailable(f"cannot reach {path}: no answer")


def silent(sinks: dict[str, Sink], output: str, *, times: int, lands: bool = False) -> dict[str, Sink]:
    """The same sinks, one of them with a place that does not answer."""
    sink: Any = sinks[output]
    sink._objects = Silent(sink._objects, times=times, lands=lands)
    return sinks
