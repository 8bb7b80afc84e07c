"""Many clients send the same manifest at once, 3 clients x 5 names x 2, to three operators."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.kubeflow import Script
from harness.stage import Stage, held, staged


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), operators=3) as one:
        yield one


@pytest.mark.operator
def test_fifteen_objects_of_one_job_have_one_application_and_one_result(stage: Stage) -> None:
    """There is one SparkApplication, one driver and one Leader; the 14 others show the same result, marked as replayed."""
    stage.flood("flood")
    said = stage.until_all("flood", "Succeeded")
    assert len(said) == 15
    assert stage.attempts("flood") == ["g1-a1"]
    assert len(stage.runs("flood")) == 1
    assert all(each["result"] == said[0]["result"] for each in said)
    assert {(each["generation"], each["attempt"], each["keyHash"]) for each in said} == {(1, 1, said[0]["keyHash"])}
    roles = Counter(each["role"] for each in said)
    assert roles["Leader"] == 1
    assert roles["Follower"] + roles["Replay"] == 14
    assert all(each["replayed"] is (each["role"] != "Leader") for each in said)


def test_all_fifteen_follow_one_running_driver(stage: Stage) -> None:
    """While the driver runs each object follows it, one as the leader; when it ends all have its result."""
    done = threading.Event()
    stage.play("slow", Script(code=held(done)))
    stage.flood("slow")
    roles = Counter(each["role"] for each in stage.until_all("slow", "Running"))
    assert roles == {"Leader": 1, "Follower": 14}
    done.set()
    said = stage.until_all("slow", "Succeeded")
    assert all(each["result"] == said[0]["result"] for each in said)
    assert len(stage.runs("slow")) == 1


def test_keys_that_are_flooded_at_once_do_not_mix(stage: Stage) -> None:
    """45 objects of 3 keys have 3 applications, and each object has its own key's result."""
    keys = ["mix-1", "mix-2", "mix-3"]
    with ThreadPoolExecutor(len(keys)) as pool:
        list(pool.map(stage.flood, keys))
    for key in keys:
        assert {each["key"] for each in stage.until_all(key, "Succeeded")} == {key}
        assert stage.attempts(key) == ["g1-a1"]
        assert len(stage.runs(key)) == 1
