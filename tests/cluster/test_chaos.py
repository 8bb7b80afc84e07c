"""The runner of `make chaos` on a real cluster: one fault against a plain application, and the same against a job of ours.

test_faults.py covers the faults themselves in CI; this test covers changes of the runner.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos_runs import Arm, Task
from chaos_session import Session
from harness.eventually import assert_eventually
from harness.node.cluster import RealCluster
from harness.node.release import Release
from harness.node.scene import LONG, remove
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.parametrize("arm", [Arm.SPARKONCE, pytest.param(Arm.NEVER, marks=pytest.mark.soak)])
def test_a_label_during_the_submission(
    cluster: RealCluster, release: Release, arm: Arm, say: Callable[[str], None]
) -> None:
    """A label is patched while spark-submit works. The rows exist once in either arm. If the patch conflicted with the status write, the
    plain application is FAILED despite its rows; our job succeeds in any case, and its run is judged correct."""
    release.until_ready()
    session = Session(cluster, release, seed=1, commit="tests")
    (run,) = session.run(Task(fault="label 1.5 s after create", arm=arm, number=1))
    say(f"{run}")
    assert (run.least, run.most) == (1, 1), run
    assert run.drivers >= 1
    assert run.seconds is not None, "a final state"
    if arm is Arm.SPARKONCE:
        assert run.verdict == "right", run
    else:
        assert run.verdict == {"FAILED": "wrong state", "COMPLETED": "right"}[run.state], run
    scene = session.scenes[arm]
    assert_eventually(lambda: not cluster.api.list(SPARK_APPLICATIONS, scene.namespace), LONG)
    remove(scene)
