"""One key with an owner: a store in memory, outputs in a folder, and applications controlled by the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.granted import Granted, granted
from harness.memory_store import MemoryStore
from sparkonce.attempt.drive import Drive, Ended, NotOurs
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.context import Job
from sparkonce.errors import LaunchRefused, StoreUnavailable
from sparkonce.launch.protocol import ENDED, ApplicationState, Phase, StillThere, Stopped
from sparkonce.local.prepare import describe
from sparkonce.model.record import Application, Assignment, Record, Result
from sparkonce.store.protocol import Claim, IdempotencyStore, Owned

Driver = Callable[[Assignment], Phase]
"""What an application does when it is created, in one step; returns its phase afterwards."""


class Applications:
    """A launcher. Each new application plays the next of `plays`; the last one is repeated."""

    kind = "local"

    def __init__(self, *plays: Driver | Phase) -> None:
        self.plays = list(plays)
        self.by_name: dict[str, ApplicationState] = {}
        self.launched: list[int] = []
        """Attempts, in the order in which they were created."""
        self.stopped: list[str] = []
        self.errors: list[Exception] = []
        """Errors that the next launches raise."""
        self.unstoppable = False
        self.unplaceable = False
        """Whether a placeholder is refused."""
        self.driverless = False
        """Whether the applications' drivers have not been observed yet."""

    async def launch(self, assignment: Assignment) -> ApplicationState:
        if self.errors:
            raise self.errors.pop(0)
        if assignment.name not in self.by_name:
            self.launched.append(assignment.attempt)
            play = self.plays.pop(0) if len(self.plays) > 1 else self.plays[0]
            self._put(assignment, Phase.RUNNING)
            phase = play if isinstance(play, Phase) else play(assignment)
            self._put(assignment, phase)
        return self.by_name[assignment.name]

    def _put(self, assignment: Assignment, phase: Phase, **seen: Any) -> None:
        name = assignment.name
        code = {Phase.SUCCEEDED: 0, Phase.FAILED_KNOWN: 1}.get(phase)
        self.by_name[name] = ApplicationState(
            name=name,
            uid=f"uid of {name}",
            nonce=assignment.nonce,
            phase=phase,
            driver=None if self.driverless else f"driver of {name}",
            exit_code=code,
            **seen,
        )

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> ApplicationState | None:
        return self.by_name.get(assignment.name)

    async def stop(
        self, assignment: Assignment, *, timeout: float, proof: bool = False, noted: Application | None = None
    ) -> Stopped | StillThere:
        del proof, noted
        self.stopped.append(assignment.name)
        if self.unplaceable:
            raise LaunchRefused("every application has a team")
        if self.unstoppable:
            return StillThere("it does not listen")
        if assignment.name not in self.by_name:
            self._put(assignment, Phase.UNKNOWN)
        seen = self.by_name[assignment.name]
        phase = seen.phase if seen.phase in ENDED else Phase.UNKNOWN
        self.by_name[assignment.name] = replace(seen, phase=phase, stopping=True)
        return Stopped(self.by_name[assignment.name])

    def become(self, name: str, phase: Phase) -> None:
        self.by_name[name] = replace(self.by_name[name], phase=phase)

    def squat(self, name: str) -> None:
        """Creates a foreign application under the attempt's name."""
        self.by_name[name] = ApplicationState(name=name, uid="foreign", nonce="", phase=Phase.RUNNING)


class Lossy:
    """A store that loses the answers of the next calls of one verb; these were carried out or not."""

    def __init__(self, store: IdempotencyStore, verb: str, *, times: int = 1, lands: bool = True) -> None:
        self._store, self._verb, self.times, self._lands = store, verb, times, lands

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name != self._verb:
            return real

        async def lost(*given: Any, **named: Any) -> Any:
            if self.times == 0:
                return await real(*given, **named)
            self.times -= 1
            if self._lands:
                await real(*given, **named)
            raise StoreUnavailable(f"no answer to {name}")

        return lost


@dataclass
class Owner:
    """The owner of one key, which it drives."""

    granted: Granted
    applications: Applications
    waits: Callable[[], object] = lambda: None
    """Called whenever the drive waits."""
    rows: list[str] = field(default_factory=list)
    """Rows of the decision table, in the order in which they decided."""
    _turns: int = 0

    @property
    def store(self) -> MemoryStore:
        store = self.granted.store
        assert isinstance(store, MemoryStore)
        return store

    def drive(self, store: Any = None) -> Drive:
        async def wait(_: float) -> None:
            self._turns += 1
            assert self._turns < 500, f"it never ends: {self.rows[-5:]}"
            self.waits()

        return Drive(
            store=store or self.store,
            launcher=self.applications,
            describe=describe,
            wait=wait,
            new_nonce=lambda: f"nonce-of-{self.granted.now().attempt + 1}",
            install="local",
            store_url="memory:",
            owner="the owner",
            on_decision=lambda record, decision, observation: self.rows.append(decision.row),
        )

    def run(self, store: Any = None) -> Ended | NotOurs:
        return run(self.drive(store).run(self.granted.record, self.granted.claim))

    def result(self) -> Result:
        """Drives the key to its end, which must be a result."""
        ended = self.run()
        assert isinstance(ended, Ended), ended
        assert ended.result is not None, ended.record
        return ended.result

    def held(self) -> Record:
        """Drives the key to its end, which must be held."""
        ended = self.run()
        assert isinstance(ended, Ended), ended
        assert ended.result is None, ended.result
        return ended.record

    def dies(self) -> None:
        """The owner's lease ends with it; a successor takes the key over."""
        self.store._leases[self.granted.claim.lease].expire()
        self.granted.claim = self.take_over()

    def take_over(self, nonce: str = "of the successor") -> Claim:
        lease = run(self.store.open_lease(owner="the successor"))
        done = run(self.store.take_over(self.granted.now(), lease=lease, nonce=nonce))
        assert isinstance(done, Owned), done
        return done.claim

    def job(self, assignment: Assignment) -> Job:
        """The job as the application's driver has it."""
        return Job(assignment, self.granted.sinks(), DirectChannel(self.store, assignment))


def owner(folder: Path, *outputs: str, plays: tuple[Driver | Phase, ...] = (), **spec: Any) -> Owner:
    """The owner of a new key; by default its applications are Running for ever. `clock` is passed to the store."""
    store = MemoryStore(clock=spec.pop("clock")) if "clock" in spec else None
    return Owner(granted(folder, *outputs, store=store, **spec), Applications(*(plays or (Phase.RUNNING,))))
