"""Spark's stages in the driver's heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from driver.test_heartbeat import PATIENCE
from harness.eventually import assert_eventually
from harness.spark import spark
from sparkonce.driver.heartbeat import SparkProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]


@pytest.mark.spark
def test_a_spark_job_that_has_ended_is_asked_about_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages of an ended job count in every heartbeat, those of jobs that ended before the attempt in none; a heartbeat's cost does not
    grow with the session's jobs."""
    from pyspark.core.status import StatusTracker

    asked: list[int] = []
    info = StatusTracker.getJobInfo

    def heard(tracker: StatusTracker, number: int) -> object:
        asked.append(number)
        return info(tracker, number)

    def job() -> None:
        spark.range(10).write.format("noop").mode("overwrite").save()

    monkeypatch.setattr(StatusTracker, "getJobInfo", heard)
    whole, later = SparkProgress(), SparkProgress()
    job()
    assert_eventually(lambda: whole().get("stagesDone") == 1, PATIENCE)
    later.begin()
    asked.clear()
    for _ in range(3):
        job()
    assert_eventually(lambda: later().get("stagesDone") == 3, PATIENCE)
    assert len(set(asked)) == 3
    assert_eventually(lambda: whole().get("stagesDone") == 4, PATIENCE)
    asked.clear()
    assert (whole(), later()) == ({"stagesDone": 4, "stages": 4}, {"stagesDone": 3, "stages": 3})
    assert asked == []
