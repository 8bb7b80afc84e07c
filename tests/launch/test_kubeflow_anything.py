"""Any JSON that an API server may return can be observed, and nothing that may still run is called ended."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launch.kubeflow_scene import ASSIGNMENT, DRIVER, NOTED, UID, at, stored
from launch.kubeflow_tables import (
    EXISTS,
    EXITED,
    MARK,
    NOT_FOUND,
    PODS,
    SPARKS_OWN,
    STATUS,
    UNSEEN,
    seen,
)
from sparkonce.launch.kubeflow.observe import observe, submission_over
from sparkonce.launch.protocol import ENDED, Phase
from sparkonce.model.record import Application

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
times = junk | st.sampled_from(
    [at(1), at(59), "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "2026-05-01T12:00:00"]
)


def shaped(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return junk | st.fixed_dictionaries({}, optional=fields)


ended = shaped(exitCode=junk | st.integers(0, 255), reason=junk | st.just("OOMKilled"), finishedAt=times, message=junk)
containers = shaped(
    name=junk | st.just("spark-kubernetes-driver"),
    restartCount=junk | st.integers(0, 1),
    ready=junk,
    state=shaped(terminated=ended, running=junk, waiting=shaped(reason=junk, message=junk)),
)
conditions = shaped(
    type=st.sampled_from(["DisruptionTarget", "Ready", "PodScheduled"]) | junk,
    status=st.sampled_from(["True", "False"]) | junk,
    reason=st.just("DeletionByTaintManager") | junk,
    lastTransitionTime=times,
    message=junk,
)
metadata = shaped(
    name=st.sampled_from([ASSIGNMENT.name, f"{ASSIGNMENT.name}-driver"]) | junk,
    uid=st.sampled_from([UID, DRIVER]) | junk,
    generation=st.integers(1, 3) | junk,
    labels=junk | st.just(SPARKS_OWN["labels"]),
    annotations=junk
    | st.just(stored("")["metadata"]["annotations"])
    | st.just(stored("", **MARK)["metadata"]["annotations"]),
    ownerReferences=junk | st.just([{"kind": "SparkApplication", "uid": UID}]) | st.lists(junk, max_size=2),
    deletionTimestamp=times,
    deletionGracePeriodSeconds=junk | st.integers(),
)
some_pod = shaped(
    metadata=metadata,
    status=shaped(
        phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]) | junk,
        reason=st.sampled_from(["Evicted", "NodeLost", "DeadlineExceeded"]) | junk,
        message=junk,
        containerStatuses=st.lists(containers, max_size=2) | junk,
        conditions=st.lists(conditions, max_size=2) | junk,
    ),
)
states = st.sampled_from([state for state, *_ in STATUS]) | junk
some_application = st.fixed_dictionaries(
    {},
    optional={
        "metadata": metadata,
        "spec": shaped(suspend=junk),
        "status": shaped(
            applicationState=shaped(state=states, errorMessage=junk | st.sampled_from([EXITED, EXISTS, NOT_FOUND])),
            executionAttempts=junk,
            driverInfo=shaped(podName=junk),
            submissionID=junk,
        ),
    },
)
records = st.none() | st.sampled_from([NOTED, UNSEEN, Application(name="so", uid="another", driver="another")])


@given(some_application, st.none() | st.lists(some_pod, max_size=2), records)
def test_whatever_the_api_server_returns_is_seen(
    application: dict[str, Any], pods: list[Any] | None, noted: Application | None
) -> None:
    """No JSON raises. An exit code comes only with a phase that it explains, and only from the attempt's own application."""
    found = observe(application, pods, ASSIGNMENT, noted)
    submission_over(application, ASSIGNMENT)

    texts: list[object] = [found.name, found.uid, found.nonce, found.message, found.log_tail, *found.detail.values()]
    assert all(isinstance(text, str) for text in texts)
    assert found.exit_code is None or found.phase in {Phase.SUCCEEDED, Phase.FAILED_KNOWN}
    assert found.phase is not Phase.SUCCEEDED or found.exit_code == 0 or found.nonce != ASSIGNMENT.nonce
    assert found.nonce == ASSIGNMENT.nonce or (found.driver, found.exit_code, found.repeated) == (None, None, False)


ALIVE = [driver for driver, phase, _ in PODS if phase in {Phase.STARTING, Phase.RUNNING, Phase.FINISHING}]


@given(st.sampled_from(STATUS), st.sampled_from(ALIVE), st.sampled_from([NOTED, UNSEEN, None]), st.booleans())
def test_a_driver_that_may_run_is_never_called_ended(
    row: tuple[str | None, str, Phase, Phase], driver: dict[str, Any], noted: Application | None, marked: bool
) -> None:
    """Whatever the status shows, with or without our mark, an existing pod that has not ended is never an end."""
    application = stored(row[0], row[1], **(MARK if marked else {}))
    assert seen(application, [driver], noted).phase not in ENDED
