"""What many schedules share: the job in two versions, one ledger in memory with its clock, and counters.

Creating a ledger would take longer than a schedule; each schedule has a key and tables of its own instead, which is enough since keys are
independent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.attempt.decide import Policy
from sparkonce.attempt.drive import DrivenJob
from sparkonce.blocking import run
from sparkonce.local.prepare import Prepared, assemble
from sparkonce.model.record import Bound, Record, SpecBody
from sparkonce.model.spec import IdempotentJob, WriteMode
from sparkonce.sink.protocol import Sink
from sparkonce.store.protocol import Request
from sparkonce.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from machine.world import World


@dataclass(frozen=True)
class Config:
    """A job and its writes in order. A group of one output is a plain write, a group of several is a transaction."""

    name: str
    groups: tuple[tuple[str, ...], ...]
    blind: bool = False
    """Owners cannot reach any output; settle runs can."""
    follows: Bound | None = None
    """The foreign application that the generation follows."""
    mode: WriteMode = WriteMode.APPEND
    """How each output is written. In a table that is overwritten other keys write, too."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(output for group in self.groups for output in group)


CONFIGS = {
    config.name: config
    for config in (
        Config("one", (("a",),)),
        Config("two", (("a",), ("b",))),
        Config("tx", (("a", "b"),)),
        Config("mixed", (("a", "b"), ("c",))),
        Config("blind", (("a", "b"), ("c",)), blind=True),
        Config("overwrite", (("a",),), mode=WriteMode.OVERWRITE),
        Config("followed", (), follows=Bound(application="theirs", uid="uid0")),
    )
}


class Clock:
    """The ledger's clock; it advances when a process waits."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at


@dataclass(frozen=True, kw_only=True)
class Known(Prepared):
    """A request whose fingerprints are computed once per test run instead of once per schedule."""

    digests: Mapping[int, str]
    bound: Bound | None = None
    wants: Policy | None = None
    """Replaces the policy of the job."""

    @cached_property
    def policy(self) -> Policy:
        return self.wants or super().policy

    def request(self, nonce: str) -> Request:
        """A request as an operator makes it for an object with `spec.bind`; without a cluster a request may not have one."""
        return replace(super().request(nonce), bound=self.bound)

    @cached_property
    def fingerprints(self) -> Mapping[int, str]:
        return self.digests


class Scene:
    """What the schedules of one test share."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder, self.config, self.clock = folder, config, Clock()
        clock = self.clock.now
        self.store = SqliteStore(folder / "ledger.db", synchronous="OFF", clock=clock, monotonic=clock)
        self.jobs = {version: self._prepared(version) for version in ("A", "B")}
        self.worlds = 0
        self.world: World | None = None

    def _prepared(self, version: str) -> Known:
        mode = str(self.config.mode)
        outputs = [{"name": name, "slotLog": {"path": f"/{name}"}, "mode": mode} for name in self.config.outputs]
        template = {"mainApplicationFile": "job.py", "type": "Python", "arguments": ["--version", version]}
        document = {
            "apiVersion": "sparkonce.dev/v1alpha1",
            "kind": "IdempotentJob",
            "metadata": {"name": "job"},
            "spec": {
                "idempotencyKey": "key",
                "template": {
                    "apiVersion": "sparkoperator.k8s.io/v1beta2",
                    "kind": "SparkApplication",
                    "spec": template,
                },
                "outputs": outputs,
            },
        }
        made = assemble(IdempotentJob.of(document), contents={"application file job.py": "0"}, base="/")
        values = {name: getattr(made, name) for name in Prepared.__dataclass_fields__}
        return Known(**values, digests=made.fingerprints, bound=self.config.follows)

    def close(self) -> None:
        run(self.store.close())

    def describe(self, _: Record, spec: SpecBody) -> DrivenJob:
        """Replaces `prepare.describe`, which would open real sinks."""
        assert self.world is not None  # only a process in a schedule calls this
        return DrivenJob(spec=spec, policy=self.world.policy, sinks=self.recorded_sinks(spec))

    def recorded_sinks(self, _: SpecBody) -> tuple[Sink, ...]:
        """Replaces `prepare.recorded_sinks`, likewise."""
        assert self.world is not None  # as above
        return tuple(self.world.sinks.values())


@dataclass
class Counts:
    """What really happened in the schedules of one test."""

    schedules: int = 0
    counted: int = 0
    """Schedules with at least ten steps and at least one fault."""
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
