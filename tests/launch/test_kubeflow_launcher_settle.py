"""Launching and observing a settle run: one application per number, beside the attempt's and never mistaken for it."""

from __future__ import annotations

import asyncio

import pytest

from launch.fake_api import Fault
from launch.kubeflow_scene import NAMESPACE
from launch.kubeflow_world import DECLARED, NAME, World, run
from sparkonce.errors import LaunchUnavailable
from sparkonce.launch.kubeflow.labels import ROLE_LABEL, Role
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS
from sparkonce.launch.protocol import ApplicationState, Phase, Stopped

RUN = DECLARED.model_copy(update={"run": 2})


def of_the_run(world: World) -> dict[str, object]:
    found = run(world.process()[1].get(SPARK_APPLICATIONS, NAMESPACE, f"{NAME}-s2"))
    assert found is not None
    return found


def test_it_has_its_own_name_and_the_attempts_nonce() -> None:
    """It neither creates the attempt's own application nor is observed as one."""
    world = World()
    seen = run(world.process()[0].settle(RUN))
    assert (seen.name, seen.nonce, seen.phase) == (f"{NAME}-s2", DECLARED.nonce, Phase.ACCEPTED)
    made = of_the_run(world)
    assert made["metadata"]["labels"][ROLE_LABEL] == Role.SETTLE  # type: ignore[index]  # JSON
    assert run(world.process()[0].observe(DECLARED)) is None
    assert run(world.process()[0].settled(RUN.model_copy(update={"run": 1}))) is None


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.ANSWER_LOST])
def test_whatever_happens_to_the_call_the_same_call_again_makes_it_one(fault: Fault) -> None:
    """The outcome of an unanswered create is unknown; repeating it with the same number finds the application."""
    world = World()
    with pytest.raises(LaunchUnavailable, match="it is not known whether"):
        run(world.process({0: fault})[0].settle(RUN))
    again = run(world.process()[0].settle(RUN))
    assert again.uid == run(world.process()[0].settle(RUN)).uid
    assert world.made("sparkapplications") == 1


def test_two_at_once_make_one() -> None:
    """Two operators should never count the same number; if they do, there is still one application."""
    world = World()

    async def both() -> list[ApplicationState]:
        return await asyncio.gather(*(world.process()[0].settle(RUN) for _ in range(2)))

    one, other = run(both())
    assert one == other
    assert world.made("sparkapplications") == 1


def test_stopping_the_attempt_leaves_its_settle_run_alone() -> None:
    """Stopping the attempt beside a settle run does not change the settle run's application."""
    world = World()
    run(world.process()[0].launch(DECLARED))
    run(world.process()[0].settle(RUN))
    world.spark.settle()
    before = of_the_run(world)
    assert isinstance(run(world.process()[0].stop(DECLARED, timeout=30)), Stopped)
    after = of_the_run(world)
    assert after["spec"] == before["spec"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]  # type: ignore[index]  # JSON
