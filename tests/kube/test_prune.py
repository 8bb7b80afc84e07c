"""An informer keeps what an observation needs of an object, and little more."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.kubeflow_scene import ASSIGNMENT, NOTED, pod, stored
from launch.kubeflow_tables import MARK, PODS, STATUS
from launch.test_kubeflow_anything import records, some_application, some_pod
from sparkonce.kube.watch import prune_application, prune_pod
from sparkonce.launch.kubeflow.observe import observe, submission_over
from sparkonce.model.record import Application

LONG = [f"driver container failed with ExitCode: 3, Reason: Error {'x' * 9000} the last words", "y" * 6000, "z" * 4096]


@given(some_application, st.lists(some_pod, max_size=2), records)
def test_anything_is_seen_as_before(application: dict[str, Any], pods: list[Any], noted: Application | None) -> None:
    """For any object of the API server, observing the kept part gives the same as observing the whole."""
    pods = [each for each in pods if isinstance(each, dict)]
    whole = copy.deepcopy((application, pods))
    kept, kept_pods = prune_application(application), [prune_pod(each) for each in pods]
    assert observe(kept, kept_pods, ASSIGNMENT, noted) == observe(application, pods, ASSIGNMENT, noted)
    assert observe(kept, None, ASSIGNMENT, noted) == observe(application, None, ASSIGNMENT, noted)
    assert submission_over(kept, ASSIGNMENT) == submission_over(application, ASSIGNMENT)
    assert (application, pods) == whole  # pruning must not change its input, which belongs to the watch


@pytest.mark.parametrize("change", [{}, MARK])
def test_every_known_case_is_seen_as_before(change: dict[str, Any]) -> None:
    """The same holds for all rows of the tables of states and pods, with and without our mark, and with long messages."""
    rows = [(state, message) for state, message, *_ in STATUS] + [("FAILED", message) for message in LONG]
    for state, message in rows:
        application = stored(state, message, **change)
        for pods in (None, [], *([each] for each, *_ in PODS)):
            kept = None if pods is None else [prune_pod(each) for each in pods]
            seen = observe(prune_application(application), kept, ASSIGNMENT, NOTED)
            assert seen == observe(application, pods, ASSIGNMENT, NOTED), (state, message)


def test_little_is_kept() -> None:
    """The template, managed fields and the manifest that kubectl keeps in an annotation are dropped; long messages are cut."""
    application = stored("FAILED", "x" * 100_000)
    application["spec"]["sparkConf"] = {f"spark.conf.{number}": "v" * 50 for number in range(100)}
    driver = pod("Failed", code=1, status={"message": "m" * 10_000})
    driver["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = "t" * 100_000
    for each in (application, driver):
        each["metadata"]["managedFields"] = [{"fieldsV1": {"f": "x" * 2000}}]
        each["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/last-applied-configuration"] = "x" * 9000
    for kept in (prune_application(application), prune_pod(driver)):
        text = json.dumps(kept)
        assert len(text) < 7000
        assert "managedFields" not in text
        assert "last-applied" not in text
        assert kept["metadata"]["annotations"]["sparkonce.dev/nonce"] == ASSIGNMENT.nonce
