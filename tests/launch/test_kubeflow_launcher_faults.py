"""A fault hits each call of a launch or a stop, and another process continues; applications and drivers are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from harness import effort
from launch.fake_api import Died, FakeKubernetes, Fault
from launch.kubeflow_scene import NAMESPACE
from launch.kubeflow_world import BOTH, DRIVER, NAME, OPAQUE, TIMEOUT, World, is_stub, run
from sparkonce.errors import LaunchUnavailable
from sparkonce.launch.kubeflow.launcher import KubeflowLauncher
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS, ApiRefused, ApiUnavailable
from sparkonce.launch.protocol import Stopped
from sparkonce.model.record import Assignment

FREEZES = {Fault.FREEZES_BEFORE, Fault.FREEZES_AFTER}
ANSWERS: list[ApiUnavailable | ApiRefused] = [
    ApiUnavailable("500"),
    ApiRefused("too many requests", code=429, retry_after=1.0),
]
DEATHS = [Fault.DIES_BEFORE, Fault.DIES_AFTER]
USUAL: list[Fault | ApiUnavailable | ApiRefused] = [
    *(Fault.LOST, Fault.ANSWER_LOST, Fault.LATE),
    *ANSWERS,
    *DEATHS,
    *DEATHS,
]


def nothing(_: World, __: Assignment) -> None:
    """The name is free."""


def created(world: World, assignment: Assignment) -> None:
    world.launch(assignment)


def submitting(world: World, assignment: Assignment) -> None:
    world.launch(assignment)
    world.spark.step()
    assert world.spark.in_flight


def running(world: World, assignment: Assignment) -> None:
    world.running(assignment)


def exited(world: World, assignment: Assignment) -> None:
    """The driver has ended, but the status does not show it yet."""
    world.running(assignment)
    world.spark.finish(NAME, 3)


def collected(world: World, assignment: Assignment) -> None:
    """The application is gone, but its driver runs."""
    world.running(assignment)
    world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)


SCENES: list[Callable[[World, Assignment], None]] = [nothing, created, submitting, running, exited, collected]


async def stopped(launcher: KubeflowLauncher, assignment: Assignment) -> bool:
    """Whether `ending` completes the stop."""
    return await ending(launcher, assignment) is not None


async def ending(launcher: KubeflowLauncher, assignment: Assignment) -> Stopped | None:
    """Repeats the stop until it is complete, as a drive does. None if the answer is StillThere."""
    for _ in range(20):
        try:
            answer = await launcher.stop(assignment, timeout=TIMEOUT)
        except LaunchUnavailable:
            continue
        return answer if isinstance(answer, Stopped) else None
    raise AssertionError("it never stops")


async def struck(kubernetes: FakeKubernetes, task: asyncio.Task[bool]) -> None:
    """Waits until the first process is dead, frozen, or done."""
    frozen = asyncio.ensure_future(kubernetes.frozen.wait())
    await asyncio.wait([task, frozen], return_when=asyncio.FIRST_COMPLETED)
    frozen.cancel()


async def mortal(launcher: KubeflowLauncher, assignment: Assignment) -> bool:
    try:
        return await stopped(launcher, assignment)
    except Died:
        return False


@pytest.mark.parametrize("fault", [*Fault, *ANSWERS], ids=str)
@pytest.mark.parametrize("assignment", BOTH, ids=["declared", "opaque"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda each: each.__name__)
def test_a_stop_is_gone_on_with_from_wherever_it_stands(
    scene: Callable[[World, Assignment], None], assignment: Assignment, fault: Fault | ApiUnavailable | ApiRefused
) -> None:
    """A fault hits the stopping process at each of its calls in turn. Another process then stops the attempt, the first one continues an
    hour later, late requests take effect, and the Spark operator becomes idle. One application of ours has the name, no driver runs, none
    of an opaque job started after the end, and nothing else was created."""
    for call in range(100):
        world = World(seed=call)
        scene(world, assignment)

        async def story(world: World = world, call: int = call) -> bool:
            launcher, kubernetes = world.process({call: fault})
            first = asyncio.ensure_future(mortal(launcher, assignment))
            await struck(kubernetes, first)
            assert await stopped(world.process()[0], assignment)
            world.api.clock += 3600
            started = len(world.spark.drivers)
            kubernetes.thawed.set()
            await first
            world.late_requests_land()
            world.spark.settle()
            assert assignment is not OPAQUE or len(world.spark.drivers) == started
            return len(kubernetes.calls) > call

        was_struck = run(story())

        application = world.application()
        assert application["metadata"]["annotations"]["sparkonce.dev/nonce"] == assignment.nonce
        assert world.made("sparkapplications") == 1 + (scene is collected)
        assert (world.spark.alive(), len(world.spark.drivers) <= 1) == ([], True)
        assert {name for _, name in world.api.made} <= {NAME, DRIVER}
        if not was_struck:
            assert call > 2
            return
    raise AssertionError("a stop that makes a hundred calls")


@pytest.mark.parametrize("assignment", BOTH, ids=["declared", "opaque"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda each: each.__name__)
def test_two_who_stop_at_once_disturb_nobody(
    scene: Callable[[World, Assignment], None], assignment: Assignment
) -> None:
    """Two processes stop at once, alternating call by call: both report completion, and the work was done once."""
    world = World()
    scene(world, assignment)

    async def both() -> list[bool]:
        return await asyncio.gather(*(stopped(world.process()[0], assignment) for _ in range(2)))

    assert run(both()) == [True, True]
    world.spark.settle()
    assert (world.spark.alive(), world.made("sparkapplications")) == ([], 1 + (scene is collected))
    assert world.application()["metadata"]["generation"] <= 2
    assert [name for plural, name in world.api.made if plural == "pods"].count(DRIVER) <= 2


SEEDS = effort.size("launcher storms")
FIRST = effort.seed("launcher storms")


@pytest.mark.parametrize("part", range(4))
def test_any_order_of_everybodys_steps(part: int) -> None:
    """Random schedules, as many as EFFORT asks for: owners that launch and stop one opaque attempt, die, freeze and lose answers; a Spark
    operator that submits twice and dies; a queue that suspends and resumes; a user who deletes the driver, also by force; a full quota; an
    API server that loses its history. A confirmed stop is final: no driver runs then or starts later, and if it reports that none ever ran,
    none did. There are never two applications, nor two drivers at a time."""
    for number in range(part * SEEDS // 4, (part + 1) * SEEDS // 4):
        Storm(FIRST + number).play()


def test_storms_reach_what_they_should() -> None:
    """Of 90 fixed storms at least 15 stop an attempt whose driver pod had been created while the storm lasts, and 10 prove that nothing
    ever ran."""
    played = [Storm(number).play() for number in range(90)]
    assert sum(stopped and started for stopped, started, _ in played) >= 15
    assert sum(proven for *_, proven in played) >= 10


class Storm:
    """One random schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world = World(seed)
        self.world.each_sleep = self.something
        self.ended_with: int | None = None
        """The number of drivers that had started when a stop was first confirmed."""
        self.in_the_storm = False
        """True once an owner's stop was confirmed while others were still active."""

        self.proven = False
        """True once a stop reported that nothing ever ran."""
        full = self.rng.random() < 0.25
        self.world.api.refusing = lambda verb, resource, body: (
            ApiRefused("exceeded quota", code=403)
            if full and verb == "create" and resource == PODS and not is_stub(dict(body))
            else None
        )

    def play(self) -> tuple[bool, bool, bool]:
        """Returns whether a stop was confirmed during the storm, whether a driver was ever created, and whether a stop reported that none
        ever ran."""
        run(self.storm())
        return self.in_the_storm, bool(self.world.spark.drivers), self.proven

    async def storm(self) -> None:
        owners = [self.rng.choice([self.launches, self.stops])() for _ in range(self.rng.randrange(1, 5))]
        await asyncio.gather(*owners)
        await self.peace()
        assert self.world.made("sparkapplications") <= 1
        self.nothing_after_the_end()

    async def peace(self) -> None:
        """Delivers all pending requests; then a process without faults stops the attempt."""
        self.world.late_requests_land()
        self.world.each_sleep = self.world.spark.settle
        end = await ending(self.world.process()[0], OPAQUE)
        assert end is not None
        self.over(end)
        self.world.late_requests_land()
        self.queue(suspend=False)
        self.world.spark.settle()

    async def launches(self) -> None:
        launcher, kubernetes = self.process()
        try:
            await launcher.launch(OPAQUE)
        except (LaunchUnavailable, Died):
            return
        assert kubernetes.calls

    async def stops(self) -> None:
        launcher, _ = self.process()
        try:
            if end := await ending(launcher, OPAQUE):
                self.over(end)
                self.in_the_storm = True
        except Died:
            return

    def over(self, end: Stopped) -> None:
        assert self.world.spark.alive() == []
        if end.seen is not None and end.seen.never_ran:
            self.proven = True
            assert not self.world.spark.ran
        if self.ended_with is None:
            self.ended_with = len(self.world.spark.drivers)
        self.nothing_after_the_end()

    def nothing_after_the_end(self) -> None:
        assert self.ended_with in {None, len(self.world.spark.drivers)}

    def process(self) -> tuple[KubeflowLauncher, FakeKubernetes]:
        rng = self.rng
        faults = {call: rng.choice(USUAL) for call in range(40) if rng.random() < 0.08}
        return self.world.process(faults, watches=True, meanwhile=self.something)

    def something(self) -> None:
        """Lets all other actors take a few steps."""
        world, rng = self.world, self.rng
        for _ in range(rng.randrange(4)):
            world.spark.step()
        draw = rng.random()
        if draw < 0.03:
            world.spark.forgets += 1
        elif draw < 0.06:
            self.queue(suspend=rng.random() < 0.5)
        elif draw < 0.08 and world.driver() is not None and self.ended_with is None:
            world.api.delete(PODS, NAMESPACE, DRIVER)
        elif draw < 0.085 and world.driver() is not None and self.ended_with is None:
            world.api.remove(PODS, NAMESPACE, DRIVER)
        elif draw < 0.09:
            world.api.forgotten = len(world.api.changes)
        elif draw < 0.10 and world.api.late:
            effect = world.api.late.pop(rng.randrange(len(world.api.late)))
            try:
                effect()
            except ApiRefused:
                return
        elif draw < 0.12 and world.spark.in_flight:
            world.spark.in_flight.append(rng.choice(world.spark.in_flight))

    def queue(self, *, suspend: bool) -> None:
        if (SPARK_APPLICATIONS.plural, NAMESPACE, NAME) in self.world.api.objects:
            self.world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"spec": {"suspend": suspend}})
