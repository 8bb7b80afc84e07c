"""One kill of a real Spark driver, so that the quick tier has one; jvm/ has the other steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash.jvm.test_spark import killed_at


@pytest.mark.spark
def test_a_spark_job_that_is_killed_after_its_commit_has_one_effect(tmpfs_path: Path) -> None:
    """Runner and driver die when the commit is made and unreported: sending the job again ends with its rows once."""
    killed_at(tmpfs_path, "one", "driver.commit.after", "kill", both=True)
