"""The hypothesis state machine: the possible events and their targets.

A rule is one event: a process runs on, several run at once, a request takes effect late, a fault strikes, a user requests something. A rule
draws its target as a number, modulo the number of possible targets. After the last rule all faults end, and the key must reach its end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from machine.applications import Behaviour
from machine.places import staged_files
from machine.process import Broken, Driver, Process
from machine.scene import Config, Counts, Scene
from machine.world import LONG, World
from sparkonce.attempt import settle_runs as entrust
from sparkonce.commands import operate
from sparkonce.launch import protocol as launch
from sparkonce.local import runner as embedded
from sparkonce.model.spec import WriteMode
from sparkonce.sink.slotlog import sink as slots

T = TypeVar("T")

RULES = 30
"""Rules of one schedule: with about 8 single steps per rule, enough for three attempts in a tenth of a second."""
SHRINK = os.environ.get("SPARKONCE_SHRINK") == "1"
"""Shrinking takes minutes; the log of a failing schedule is usually short enough to be read as it is."""
AT_LEAST_STEPS = 10
OTHERS = 6
"""Other keys that write to the outputs in one schedule."""
DRIVERS = 4
"""With this many drivers alive, no further application is started twice."""

OWNERS_WRITES = frozenset({"store.update", "store.finalize"})

which = st.integers(0, 7)
seeds = st.integers(0, 2**16 - 1)
behaviours = st.builds(
    Behaviour,
    how=st.sampled_from(("well", "well", "well", "well", "exit", "permanent", "nothing")),
    at=st.integers(0, 3),
)


def pick(number: int, among: list[T]) -> T:
    return among[number % len(among)]


def happens(**draws: Any) -> Callable[[Callable[..., None]], Any]:
    """Makes a rule: all awake processes take a few steps, and then this event happens, whatever they are doing."""

    def made(body: Callable[..., None]) -> Any:
        @rule(seed=seeds, **draws)
        @functools.wraps(body)
        def both(self: Machine, seed: int, **drawn: Any) -> None:
            with self._watched():
                self.world.mingle(random.Random(seed), seed % 13)
                body(self, **drawn)

        return both

    return made


class Machine(RuleBasedStateMachine):
    scene: Scene
    counts: Counts

    def __init__(self) -> None:
        super().__init__()
        self.world: World
        self.broken = False
        self.started = False

    @initialize(
        behaviours=st.lists(behaviours, max_size=5),
        max_attempts=st.sampled_from((3, 3, 2, 1)),
        seed=seeds,
        first=st.sampled_from(("request", "reply", "late", "kill", "freeze")),
        moment=st.integers(1, 60),
    )
    def begin(self, behaviours: list[Behaviour], max_attempts: int, seed: int, first: str, moment: int) -> None:
        """Two clients send the same request; the first fault strikes early, whatever rules follow."""
        self.world = World(self.scene, behaviours, max_attempts=max_attempts, seed=seed)
        self.seed, self.started = seed, True
        self.world.request("A")
        self.world.request("A")
        with self._watched():
            self.world.mingle(random.Random(seed), moment)
            self._strike(first, seed)

    def _strike(self, fault: str, seed: int) -> None:
        if fault in ("kill", "freeze"):
            for process in self.world.clients[seed % 2 :][:1]:
                if fault == "kill":
                    self._kill(process, lands=bool(seed & 2), lease_ends=bool(seed & 4))
                else:
                    self._freeze(process)
        elif able := self.world.losing(random.Random(seed)):
            self.world.advance(pick(seed, able), fault)

    def _kill(self, process: Process, *, lands: bool, lease_ends: bool) -> None:
        self.world.fault(f"killed: {_kind(process)}", process)
        self.world.kill(process, lands=lands, lease_ends=lease_ends)

    def _freeze(self, process: Process) -> None:
        self.world.fault(f"frozen: {_kind(process)}", process)
        process.frozen = True

    # --- work

    @rule(who=which, steps=st.integers(1, 20))
    def one_goes_on(self, who: int, steps: int) -> None:
        if awake := self.world.awake:
            process = pick(who, awake)
            with self._watched():
                for _ in range(steps):
                    if not process.over:
                        self.world.advance(process)

    @rule(seed=seeds, steps=st.integers(4, 24))
    def all_go_on(self, seed: int, steps: int) -> None:
        with self._watched():
            self.world.mingle(random.Random(seed), steps)

    @happens(who=which)
    def something_lands_late(self, who: int) -> None:
        if self.world.late:
            self.world.fault("landed late", "")
            self.world.land(who % len(self.world.late))

    # --- messages

    @happens(who=which, fate=st.sampled_from(("request", "reply", "reply", "late", "late", "late")))
    def a_message_is_lost(self, who: int, fate: str) -> None:
        if able := self.world.losing(random.Random(who)):
            self.world.advance(pick(who, able), fate)

    @happens(who=which, after=st.integers(1, 60))
    def a_write_is_overtaken(self, who: int, after: int) -> None:
        """An owner's write of the record gets no answer, the owner continues, and then the write takes effect."""
        rng = random.Random(who)
        if able := self.world.writing(rng, OWNERS_WRITES):
            self.world.advance(pick(who, able), "late")
            effect = self.world.late[-1]
            self.world.mingle(rng, after)
            if effect in self.world.late:
                self.world.fault("overtaken", effect.what)
                self.world.land(self.world.late.index(effect))

    @happens(who=which)
    def a_slot_cannot_be_read(self, who: int) -> None:
        """A read of a slot gets no answer: the slot's content is unknown, which is not the same as empty."""
        if able := self.world.looking(random.Random(who)):
            self.world.advance(pick(who, able), "reply")

    # --- processes

    @happens(who=which, lands=st.booleans(), lease_ends=st.booleans())
    def somebody_is_killed(self, who: int, lands: bool, lease_ends: bool) -> None:
        alive = [each for each in self.world.processes if not each.over]
        if alive:
            self._kill(pick(who, alive), lands=lands, lease_ends=lease_ends)

    @happens(who=which)
    def somebody_freezes(self, who: int) -> None:
        if awake := self.world.awake:
            self._freeze(pick(who, awake))

    @happens(who=which)
    def somebody_thaws(self, who: int) -> None:
        frozen = [each for each in self.world.processes if each.frozen and not each.over]
        if frozen:
            process = pick(who, frozen)
            self.world.note(f"-- thaws: {process}")
            process.frozen = False

    @happens(who=which)
    def a_lease_ends(self, who: int) -> None:
        """The lease of a living process, frozen or not, or of a dead one that still held it, ends."""
        held = [each for each in self.world.processes if each.lease is not None and not each.lease.ended]
        if held:
            process = pick(who, held)
            self.world.fault("lease ended", process)
            self.world.expire(process)

    @happens(really=st.sampled_from((True, False, False)))
    def silence(self, really: bool) -> None:
        """Time passes without a sign of life from any process: claims and heartbeats become stale. Rare, since little else could happen
        otherwise."""
        if really:
            self.world.fault("silence", f"{LONG:.0f} s")
            self.scene.clock.at += LONG

    # --- applications

    @happens(ahead=st.integers(0, 3))
    def a_name_is_taken(self, ahead: int) -> None:
        name = self.world.next_name(ahead)
        if self.world.applications.squat(name):
            self.world.fault("name taken", name)

    @happens(who=which, phase=st.sampled_from(("SUCCEEDED", "FAILED_KNOWN", "FAILED_INFRA", "UNKNOWN")))
    def an_application_is_said_to_have_ended(self, who: int, phase: str) -> None:
        """Its phase says that it ended, which may be wrong: a living driver lives on."""
        running = [each for each in self.world.applications.by_name.values() if each.driver is not None]
        if running:
            application = pick(who, running)
            self.world.fault("end lied about", f"{application.name} {phase}")
            application.phase = launch.Phase[phase]

    @happens(reachable=st.booleans())
    def nodes(self, reachable: bool) -> None:
        """Whether nodes can be reached: a stop on an unreachable node ends nothing."""
        if self.world.applications.reachable and not reachable:
            self.world.fault("nodes out of reach", "")
        self.world.applications.reachable = reachable

    @happens(who=which)
    def a_driver_starts_twice(self, who: int) -> None:
        """Starts another driver with the same token and nonce, as a second submission of the application would."""
        running = [each for each in self.world.applications.by_name.values() if each.assignment is not None]
        alive = [each for each in self.world.processes if isinstance(each, Driver) and not each.over]
        if running and len(alive) < DRIVERS:
            application = pick(who, running)
            assert application.assignment is not None  # only those were selected
            self.world.fault("driver twice", application.name)
            self.world.applications.start_driver(application.assignment)

    @happens(
        says=st.sampled_from(
            ("STARTING", "RUNNING", "RUNNING", "FINISHING", "SUCCEEDED", "FAILED_KNOWN", "FAILED_INFRA", "UNKNOWN")
        )
    )
    def something_is_said_of_theirs(self, says: str) -> None:
        """The phase of the application that a generation follows changes."""
        if self.world.applications.say(launch.Phase[says]):
            self.world.fault("theirs", says)

    @happens(replaced=st.booleans(), really=st.sampled_from((True, False, False)))
    def theirs_is_deleted(self, replaced: bool, really: bool) -> None:
        if really and self.world.applications.lose(replaced=replaced):
            self.world.fault("theirs deleted", "another one has its name" if replaced else "")

    # --- other keys

    @happens(who=which, overwrites=st.booleans())
    def another_key_writes(self, who: int, overwrites: bool) -> None:
        """Another key adds rows to an output that this one overwrites, or overwrites it as well."""
        if self.scene.config.mode is WriteMode.OVERWRITE and self.world.numbers["other key"] < OTHERS:
            mode = WriteMode.OVERWRITE if overwrites else WriteMode.APPEND
            self.world.another_key_writes(pick(who, list(self.scene.config.outputs)), mode)

    # --- users

    @happens(
        version=st.sampled_from("AAAB"),
        supersede=st.booleans(),
        again=st.booleans(),
        patient=st.sampled_from((True, True, False)),
    )
    def a_request(self, version: str, supersede: bool, again: bool, patient: bool) -> None:
        if self._room():
            self.world.note(f"-- request {version} supersede={supersede} rerun_if_failed={again} patient={patient}")
            self.world.request(version, supersede=supersede, rerun_if_failed=again, patient=patient)

    @happens(kind=st.sampled_from(("cancel", "rerun", "rerun", "forget", "retry", "failed")))
    def a_command(self, kind: str) -> None:
        if not self._room():
            return
        self.world.note(f"-- {kind}")
        match kind:
            case "cancel":
                self.world.cancel()
            case "rerun":
                self.world.rerun("A")
            case "forget":
                self.world.forget()
            case "retry" | "failed":
                self.world.resolve(kind)

    @happens(who=which)
    def an_interrupt(self, who: int) -> None:
        """Ctrl-C: a leader cancels, a follower detaches."""
        if able := self.world.clients:
            process = pick(who, able)
            self.world.note(f"-- interrupt: {process}")
            self.world.embedded[process].cancel("ctrl-c")

    def _room(self) -> bool:
        return len(self.world.clients) < 5

    # --- the end

    def teardown(self) -> None:
        if not self.started:
            return
        try:
            if not self.broken:
                with self._watched():
                    ending = self.world.peace(random.Random(self.seed))
                self._count(ending)
        finally:
            self.world.close()

    def _count(self, ending: str) -> None:
        counts, world = self.counts, self.world
        counts.schedules += 1
        counts.steps += world.steps
        counts.faults.update(world.faults)
        counts.endings[ending] += 1
        counts.counted += world.steps >= AT_LEAST_STEPS and world.faults.total() > 0

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Attaches the log of events to a failure, in the order in which they happened."""
        try:
            yield
        except BaseException:
            self.broken = True
            note("\n".join(self.world.log))
            raise


def _kind(process: Process) -> str:
    return "driver" if isinstance(process, Driver) else "client"


def prepared(folder: Path, config: Config, patch: pytest.MonkeyPatch) -> Scene:
    """A scene, with patches where the real code would open real outputs or sleep."""
    scene = Scene(folder, config)
    patch.setattr(embedded, "describe", scene.describe)
    patch.setattr(embedded, "recorded_sinks", scene.recorded_sinks)
    patch.setattr(operate, "describe", scene.describe)
    patch.setattr(slots, "staged_files", staged_files)
    patch.setattr(entrust, "LIMIT", 5.0)  # a frozen settle run counts as lost after one silence
    patch.setattr(slots, "RESEND_AFTER", (0, 0, 0))  # no pause before resending: the schedule decides
    return scene


def play(folder: Path, config: Config, patch: pytest.MonkeyPatch, *, schedules: int, seed: int | None = None) -> Counts:
    """Plays this many schedules, drawn from `seed`; raises Broken for the first one that breaks a promise."""
    scene, counts = prepared(folder, config, patch), Counts()
    machine: type[Machine] = type("Played", (Machine,), {"scene": scene, "counts": counts})
    if seed is not None:
        machine = hypothesis.seed(seed)(machine)
    health = [
        HealthCheck.too_slow,  # a schedule makes a hundred transactions on a real database
        HealthCheck.data_too_large,  # and draws many numbers
        HealthCheck.filter_too_much,  # a rule without a possible target still counts as an example
        HealthCheck.differing_executors,
    ]
    asked = settings(
        max_examples=schedules,
        stateful_step_count=RULES,
        deadline=None,
        database=None,
        phases=[Phase.generate, *([Phase.shrink] if SHRINK else [])],
        suppress_health_check=health,
    )
    try:
        run_state_machine_as_test(machine, settings=asked)
    except Broken as broken:
        broken.schedules = counts.schedules + 1
        raise
    finally:
        scene.close()
    return counts


__all__ = ["Broken", "Machine", "play"]
