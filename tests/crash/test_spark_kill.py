"""One kill of a real Spark driver, for the quick tier; the other steps are in jvm/."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash.jvm.test_spark import killed_at


@pytest.mark.spark
def test_a_spark_job_that_is_killed_after_its_commit_has_one_effect(tmpfs_path: Path) -> None:
    """Runner and driver die after the commit and before its report: once the job is sent again, its rows are there once."""
    killed_at(tmpfs_path, "one", "driver.commit.after", "kill", both=True)
