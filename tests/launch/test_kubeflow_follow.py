"""Observing a foreign application: what each of its states means, by reads only."""

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
    """The observation, and the requests to the API server that it took."""
    launcher, kubernetes = world.process(watches=True)
    return run(launcher.follow(OPAQUE, BOUND)), kubernetes.calls


@pytest.mark.parametrize("state", list(State))
def test_its_spark_operators_word_is_reported(state: State) -> None:
    """In each state the observation takes one read and nothing else; only COMPLETED and FAILED are ends, since other states run again."""
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
    """FAILED without an exit code proves nothing about effects."""
    world = World()
    world.put("nightly", kind="application", status=foreign(state, message)["status"])
    seen, _ = looked(world)
    assert seen is not None
    assert (seen.phase, seen.exit_code) == (phase, code)


def test_what_is_not_there_is_none() -> None:
    """Absence is read from the API server, never assumed."""
    assert looked(World()) == (None, ["get sparkapplications"])


def test_no_answer_is_no_absence() -> None:
    """Without an answer of the API server nothing is known about the application."""
    launcher, _ = World().process({0: ApiUnavailable("no answer")})
    with pytest.raises(LaunchUnavailable, match=f"application nightly in namespace {NAMESPACE} cannot be read"):
        run(launcher.follow(OPAQUE, BOUND))


def test_it_is_in_the_jobs_namespace() -> None:
    """An application of that name in another namespace is a different one."""
    world = World()
    elsewhere = {**foreign("COMPLETED"), "metadata": {"name": "nightly"}}
    world.api = type(world.api)(NAMESPACE, "elsewhere")
    world.api.create(SPARK_APPLICATIONS, "elsewhere", elsewhere)
    assert looked(world)[0] is None
