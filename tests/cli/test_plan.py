"""`sparkonce plan` says beforehand what `sparkonce run` would do, and does nothing itself."""

from __future__ import annotations

import shutil

import pytest

from harness.desk import FAILS, WRITES, Desk
from sparkonce.blocking import run
from sparkonce.cli.exits import ExitCode
from sparkonce.model.record import HeldReason, Settling, State, Why


def test_plan_before_and_after_a_run(desk: Desk) -> None:
    """For a new, a replayed, a mismatched and a missing result the plan says so, with the exit code that the run would have."""
    desk.job()
    new = desk.here("plan", "job.yaml")
    assert (new.code, new.first) == (0, "would run: write/numbers@1: no job has used this key")
    assert desk.here("plan", "job.yaml", "--json").told["plan"] == "New"
    assert desk.attempts() == 0
    assert desk.here("keys", "list", "--json").told["keys"] == []

    assert desk.here("run", "job.yaml").code == 0
    replay = desk.here("plan", "job.yaml")
    assert replay.code == 0
    assert replay.first.startswith("would replay: generation 1 succeeded 2")
    assert replay.first.endswith(", 1 234 rows in numbers")
    told = desk.here("plan", "job.yaml", "--json").told
    assert (told["plan"], told["phase"], told["replayed"]) == ("Replay", "Succeeded", False)

    desk.job(WRITES + "\nprint('another script')")
    mismatch = desk.here("plan", "job.yaml")
    assert mismatch.code == ExitCode.MISMATCH
    assert mismatch.first.startswith("would be refused: mismatch: write/numbers@1 is for another job")
    assert "  differs: application file job.py" in mismatch.out
    assert desk.here("plan", "job.yaml", "--json").told["paths"] == ["application file job.py"]

    desk.job()
    shutil.rmtree(desk.folder / "lake")
    gone = desk.here("plan", "job.yaml")
    assert gone.code == ExitCode.RESULT_GONE
    assert gone.first.startswith("would be refused: result gone: ")
    assert desk.attempts() == 1


def test_plan_while_it_runs_elsewhere(desk: Desk) -> None:
    """A running job is followed or refused, as its policy says; one without an owner is continued; a held one is refused."""
    desk.job()
    with desk.owned_elsewhere("pid 7 on elsewhere"):
        followed = desk.here("plan", "job.yaml")
        assert followed.code == 0
        assert followed.first.startswith(
            "would wait for it: write/numbers@1: generation 1, attempt 1 is owned by pid 7"
        )
        desk.job(onDuplicate="Reject")
        rejected = desk.here("plan", "job.yaml")
        assert rejected.code == ExitCode.IN_PROGRESS
        assert rejected.first.startswith("would be refused: in progress: ")
    stale = desk.here("plan", "job.yaml")
    assert stale.code == 0
    assert stale.first.startswith("would continue it: write/numbers@1: generation 1, attempt 1 has no owner")


def test_plan_of_a_held_key(desk: Desk) -> None:
    """The plan exits with 5, as the run would."""
    desk.job()
    with desk.owned_elsewhere() as (store, record, claim):
        settling = Settling(attempt=1, why=Why.EXITED)
        run(store.update(record, claim, record.changed(state=State.HELD, held=HeldReason.PARTIAL, settling=settling)))
    held = desk.here("plan", "job.yaml")
    assert (held.code, held.first.partition(": write")[0]) == (ExitCode.HELD, "would be refused: held")


def test_plan_of_a_job_that_failed(desk: Desk) -> None:
    """A failure is a result: it would be replayed, unless the job asks to run failed ones again."""
    desk.job(FAILS)
    assert desk.here("run", "job.yaml").code == ExitCode.FAILED
    assert desk.here("plan", "job.yaml").first.startswith("would replay: generation 1 failed 2")
    desk.job(FAILS, onFinalized="RerunIfFailed")
    assert desk.here("plan", "job.yaml").first.startswith(
        "would run the next generation: write/numbers@1: generation 1: Failed"
    )


def test_render_fills_in_what_was_asked(desk: Desk) -> None:
    """The rendered manifest has parameters and places filled in, and is itself a job file for the same key."""
    desk.job(resource="numbers/${params.day}")
    rendered = desk.here("render", "job.yaml", "--param", "day=7", "--output", "numbers=mine")
    assert rendered.code == 0
    assert "resource: numbers/7" in rendered.out
    assert f"path: {desk.folder}/mine" in rendered.out
    (desk.folder / "rendered.yaml").write_text(rendered.out)
    told = [
        desk.here("plan", *arguments, "--json").told
        for arguments in (["rendered.yaml"], ["job.yaml", "--param", "day=7", "--output", "numbers=mine"])
    ]
    assert told[0]["keyHash"] == told[1]["keyHash"]


APPLICATION = """\
apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
metadata: {name: nightly}
spec:
  type: Python
  mode: cluster
  image: loader:1
  mainApplicationFile: FILE
"""


@pytest.mark.parametrize(
    ("file", "where"), [("local:///app/job.py", "inside an image"), ("s3a://code/job.py", "not a file of this machine")]
)
def test_plan_of_a_job_for_a_cluster(desk: Desk, file: str, where: str) -> None:
    """A converted file is not refused: the plan names the key, and that and why it is not checked; with a copy of the script it is
    checked."""
    (desk.folder / "app.yaml").write_text(APPLICATION.replace("FILE", file))
    (desk.folder / "job.yaml").write_text(desk.here("convert", "app.yaml").out)
    said = desk.here("plan", "job.yaml")
    assert said.code == 0, said.err
    assert said.first.startswith(
        f"not checked: run/nightly@1: spec.template.spec.mainApplicationFile is {file}, which is {where}, so "
    )
    assert "what to do: apply the job with `kubectl apply -f FILE`" in said.out
    told = desk.here("plan", "job.yaml", "--json").told
    assert (told["plan"], told["key"], told["phase"], told["exitCode"]) == ("NotChecked", "run/nightly@1", None, 0)
    assert where in told["reason"]
    (desk.folder / "job.py").write_text("pass")
    checked = desk.here("plan", "job.yaml", "--application", "job.py")
    assert (checked.code, checked.first) == (0, "would run: run/nightly@1: no job has used this key")
    assert desk.here("run", "job.yaml").code == ExitCode.INVALID


def test_plan_of_a_key_that_is_made_from_the_script(desk: Desk) -> None:
    """If the script is inside an image such a key cannot be computed here, and the plan says so; an invalid file is still refused."""
    desk.job(template={"mainApplicationFile": "local:///app/job.py"}, keyFrom=["ApplicationFile"])
    said = desk.here("plan", "job.yaml")
    assert (said.code, said.first.startswith("not checked: the key is made from its content: ")) == (0, True), said.err
    assert desk.here("plan", "job.yaml", "--json").told["key"] is None
    desk.job(template={"mainApplicationFile": "local:///app/job.py"}, retries=3)
    assert desk.here("plan", "job.yaml").code == ExitCode.INVALID
