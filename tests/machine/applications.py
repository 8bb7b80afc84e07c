"""The cluster as a launcher sees it: applications with unique names, and drivers that may outlive them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from machine.process import Driver, Effect, ask
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.context import Job
from sparkonce.driver.settle import settle_run
from sparkonce.errors import AttemptEnded, SparkonceError
from sparkonce.launch.protocol import ENDED, ApplicationState, Phase
from sparkonce.model.record import Assignment

if TYPE_CHECKING:
    from machine.world import World


class JobError(RuntimeError):
    """An error in a job's own code."""


@dataclass(frozen=True)
class Behaviour:
    """How a job ends; if not well, then before its `at`-th write."""

    how: str = "well"
    """well, exit (an error of its own), permanent (an error reported as permanent), nothing (exit code 0 without writing)."""
    at: int = 0


@dataclass
class Application:
    name: str
    uid: str
    nonce: str
    phase: Phase
    assignment: Assignment | None = None
    driver: Driver | None = None
    stopping: bool = False

    @property
    def seen(self) -> ApplicationState:
        driver = self.driver.name if self.driver else None
        return ApplicationState(
            name=self.name, uid=self.uid, nonce=self.nonce, phase=self.phase, driver=driver, stopping=self.stopping
        )


class Applications:
    def __init__(self, world: World) -> None:
        self.world = world
        self.by_name: dict[str, Application] = {}
        self.reachable = True
        """Whether a stop reaches the node that a driver runs on."""
        self.made: list[str] = []
        """Names of applications that the engine created, stopped or put a stub in place of."""
        self.told: set[Phase] = set()
        """Every phase that was observed of the followed application."""
        if (theirs := world.config.follows) is not None:
            there = self._new(theirs.application, "", Phase.ACCEPTED)
            assert there.uid == theirs.uid

    def _new(self, name: str, nonce: str, phase: Phase) -> Application:
        self.by_name[name] = Application(name, f"uid{len(self.by_name)}", nonce, phase)
        return self.by_name[name]

    def create(self, assignment: Assignment) -> ApplicationState:
        self.made.append(assignment.name)
        if (there := self.by_name.get(assignment.name)) is not None:
            return there.seen
        created = self._new(assignment.name, assignment.nonce, Phase.RUNNING)
        created.assignment = assignment
        created.driver = self.start_driver(assignment)
        return created.seen

    def settle(self, assignment: Assignment) -> ApplicationState:
        """Creates a settle run."""
        self.made.append(assignment.settle_run_name)
        if (there := self.by_name.get(assignment.settle_run_name)) is not None:
            return there.seen
        created = self._new(assignment.settle_run_name, assignment.nonce, Phase.RUNNING)
        created.assignment = assignment
        created.driver = self.start_driver(assignment)
        return created.seen

    def start_driver(self, assignment: Assignment) -> Driver:
        behaviour = self.world.next_behaviour()
        if assignment.run is not None:
            return self._start_settle_run(assignment, lost=behaviour.how == "exit")
        name = f"driver{self.world.number('driver')}(g{assignment.generation} a{assignment.attempt} {behaviour.how})"
        driver = Driver(name, lambda process: self._main(process, assignment, behaviour))
        self.world.processes.append(driver)
        return driver

    def _start_settle_run(self, assignment: Assignment, *, lost: bool) -> Driver:
        number = self.world.number("settle run")
        name = f"settle{number}(g{assignment.generation} a{assignment.attempt} s{assignment.run})"

        def main(process: Driver) -> object:
            code, outcome = 75, None
            try:
                if not lost:
                    settle_run(assignment, self.world.sinks, DirectChannel(self.world.store, assignment))
                    code = 0
            except SparkonceError as error:
                outcome = error
            run(ask(Effect(f"exit {code}", lambda: self.exited(process, code), None)))
            return outcome

        driver = Driver(name, main)
        self.world.processes.append(driver)
        return driver

    def seen(self, name: str) -> ApplicationState | None:
        there = self.by_name.get(name)
        return there.seen if there else None

    def mark(self, assignment: Assignment) -> None:
        """Begins to stop the application; if it does not exist, a stub takes its name."""
        self.made.append(assignment.name)
        there = self.by_name.get(assignment.name) or self._new(assignment.name, assignment.nonce, Phase.UNKNOWN)
        there.stopping = there.stopping or there.nonce == assignment.nonce

    def end(self, name: str) -> ApplicationState | None:
        there = self.by_name.get(name)
        if there is None or not there.stopping:
            return there.seen if there else None
        if there.driver is not None and self.reachable:
            there.driver.kill()
        if there.phase not in ENDED:
            there.phase = Phase.UNKNOWN
        return there.seen

    @property
    def theirs(self) -> Application | None:
        """The application that a generation follows, while it exists."""
        bound = self.world.config.follows
        there = self.by_name.get(bound.application) if bound else None
        return there if there and bound and there.uid == bound.uid else None

    def say(self, phase: Phase) -> bool:
        """Its Spark operator writes this phase, unless it has reported the end already."""
        there = self.theirs
        if there is None or there.phase in (Phase.SUCCEEDED, Phase.FAILED_KNOWN):
            return False
        there.phase = phase
        self.told.add(phase)
        return True

    def lose(self, *, replaced: bool) -> bool:
        """A user deletes it; if `replaced`, another application of the same name is created, and succeeds."""
        there = self.theirs
        if there is None:
            return False
        del self.by_name[there.name]
        if replaced:
            self.by_name[there.name] = Application(there.name, "another", "", Phase.SUCCEEDED)
        return True

    def squat(self, name: str) -> bool:
        """A foreign client creates an application under one of our names."""
        if name in self.by_name:
            return False
        self._new(name, "", Phase.SUCCEEDED)
        return True

    def exited(self, driver: Driver, code: int) -> None:
        for each in self.by_name.values():
            if each.driver is driver and each.phase is Phase.RUNNING:
                each.phase = Phase.FAILED_KNOWN if code else Phase.SUCCEEDED

    def bury(self) -> None:
        """In the end, shows the loss of each lost driver as its application's phase."""
        for each in self.by_name.values():
            if each.phase is Phase.RUNNING and each.driver is not None and each.driver.over:
                each.phase = Phase.UNKNOWN

    def _main(self, process: Driver, assignment: Assignment, behaviour: Behaviour) -> object:
        code, outcome = 1, None
        try:
            self._job(process.name, assignment, behaviour)
            code = 0
        except (SparkonceError, JobError, SystemExit) as error:
            outcome = error
        run(ask(Effect(f"exit {code}", lambda: self.exited(process, code), None)))
        return outcome

    def _job(self, name: str, assignment: Assignment, behaviour: Behaviour) -> None:
        """The job's script: begins as `sparkonce.current()` does, and continues as a user would write it."""
        job = Job(assignment, self.world.sinks, DirectChannel(self.world.store, assignment))
        if not job.channel.renew({}):
            raise AttemptEnded(f"attempt {assignment.attempt} is over")
        if behaviour.how == "nothing":
            return
        writes = 0
        for group in self.world.config.groups:
            if len(group) == 1:
                _misbehave(job, behaviour, writes)
                job.write(name, group[0])  # type: ignore[arg-type]  # this test's stager accepts a name in place of rows
                writes += 1
            else:
                with job.transaction() as together:
                    for output in group:
                        _misbehave(job, behaviour, writes)
                        together.write(name, output)  # type: ignore[arg-type]  # as above
                        writes += 1
                    _misbehave(job, behaviour, writes)
            with contextlib.suppress(SparkonceError):
                job.heartbeat.over = not job.channel.renew({})  # as its thread does every two seconds
        _misbehave(job, behaviour, writes)


def _misbehave(job: Job, behaviour: Behaviour, writes: int) -> None:
    if writes != behaviour.at:
        return
    if behaviour.how == "exit":
        raise JobError("the job's own error")
    if behaviour.how == "permanent":
        job.fail("trying again cannot help")
