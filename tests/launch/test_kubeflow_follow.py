"""Observing a foreign application: the meaning of each of its states, by reads only."""

from __future__ import annotations

import pytest

from harness.kubeflow.states import State
from launch.kubeflow_scene import NAMESPACE
from launch.kubeflow_world import OPAQUE, World, run
from sparkonce.errors import LaunchUnavailable
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS, ApiUnavailable, Json
from sparkonce.launch.protocol import ENDED, ApplicationState, Phase
from sparkonce.model.record import Bound

BOUND = Bound(application="nightly", uid="u1")
EXITED = "driver container failed with ExitCode: 3, Reason: Error"


def foreign(state: str, message: str = "") -> Json:
    return {
        "metadata": {"name": "nightly", "namespace": NAMESPACE, "uid": "u1", "generation": 1},
        "spec": {"restartPolicy": {"type": "OnFailure"}},
        "status": {"executionAttempts": 2, "applicationState": {"state": state, "errorMessage": message}},
    }


def looked(world: World) -> tuple[ApplicationState | None, list[str]]:
    """The observation, and the requests to the API server for it."""
    launcher, kubernetes = world.process(watches=True)
    return run(launcher.follow(OPAQUE, BOUND)), kubernetes.calls


@pytest.mark.parametrize("state", list(State))
def test_its_spark_operators_word_is_reported(state: State) -> None:
    """One read and nothing else, in each state; an end is COMPLETED or FAILED alone, and no end is what runs again."""
    world = World()
    body = foreign(state, EXITED if state in {State.FAILING, State.FAILED, State.PENDING_RERUN} else "")
    world.put("nightly", kind="application", status=body["status"])
    seen, calls = looked(world)
    assert seen is not None
    assert (seen.name, seen.nonce, seen.rewound) == ("nightly", "", False)
    assert (seen.phase in ENDED) == (state in {State.COMPLETED, State.FAILED})
    assert calls == ["get sparkapplications"]


@pytest.mark.parametrize(
    ("state", "message", "phase", "code"),
    [
        ("COMPLETED", "", Phase.SUCCEEDED, 0),
        ("FAILED", EXITED, Phase.FAILED_KNOWN, 3),
        ("FAILED", "driver pod not found", Phase.UNKNOWN, None),
        ("FAILED", "failed to run spark-submit: driver container failed with ExitCode: 3", Phase.UNKNOWN, None),
    ],
)
def test_an_end_is_known_only_with_an_exit_code(state: str, message: str, phase: Phase, code: int | None) -> None:
    """FAILED alone proves nothing about effects."""
    world = World()
    world.put("nightly", kind="application", status=foreign(state, message)["status"])
    seen, _ = looked(world)
    assert seen is not None
    assert (seen.phase, seen.exit_code) == (phase, code)


def test_what_is_not_there_is_none() -> None:
    """Read from the API server, and answered."""
    assert looked(World()) == (None, ["get sparkapplications"])


def test_no_answer_is_no_absence() -> None:
    """If the API server does not answer, nothing is known about the application."""
    launcher, _ = World().process({0: ApiUnavailable("no answer")})
    with pytest.raises(LaunchUnavailable, match=f"application nightly in namespace {NAMESPACE} cannot be read"):
        run(launcher.follow(OPAQUE, BOUND))


def test_it_is_in_the_jobs_namespace() -> None:
    """One of that name elsewhere is another one's."""
    world = World()
    elsewhere = {**foreign("COMPLETED"), "metadata": {"name": "nightly"}}
    world.api = type(world.api)(NAMESPACE, "elsewhere")
    world.api.create(SPARK_APPLICATIONS, "elsewhere", elsewhere)
    assert looked(world)[0] is None
