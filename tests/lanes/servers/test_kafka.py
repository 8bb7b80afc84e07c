"""Lanes on Kafka: three brokers, which are killed, frozen and cut off, and processes that write to a topic beside and after each other."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparkonce
from harness import effort, kafka
from harness.eventually import assert_eventually
from harness.kafka import START, Cluster
from harness.proxy import Flow
from lanes.tap import FENCED
from lanes.test_kills import COUNT, ended, start, troubled, until_stopped, woken
from lanes.test_table_log import append
from sparkonce.cli.app import main
from sparkonce.cli.exits import ExitCode
from sparkonce.errors import BufferFull, InvalidInput, LaneError, OutputCorrupt, OutputUnavailable, WriterFenced
from sparkonce.lanes import kafka_topic
from sparkonce.lanes.kafka_log import KafkaLog, own_partition
from sparkonce.lanes.kafka_topic import group_of
from sparkonce.lanes.protocol import AppendKind, RowBatch

PATIENCE = 120.0
"""Seconds for what takes one when nothing else runs: elections of brokers, and the end of transactions."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with kafka.cluster(tmp_path_factory.mktemp("kafka"), brokers=3) as cluster:
        yield cluster


@pytest.fixture
def topic(brokers: Cluster) -> Iterator[str]:
    """Name of a topic with two partitions. Afterwards all brokers are there again."""
    yield brokers.topic(partitions=2)
    for each in brokers.brokers:
        each.proxy.heal()
        each.child.thaw()
        if not each.child.running:
            each.child.start()
    brokers.until_whole()


@pytest.fixture
def url(brokers: Cluster, topic: str) -> str:
    return brokers.url(topic)


def numbers(brokers: Cluster, topic: str) -> list[int]:
    """The column `n` of what readers of committed messages see, in order."""
    return [json.loads(value)["n"] for value in brokers.values(topic)]


def batch(*values: int) -> RowBatch:
    texts = [json.dumps({"n": each}).encode() for each in values]
    return RowBatch(b"\n".join(texts), len(texts), '{"type":"struct","fields":[]}')


def test_a_writer_goes_on_where_another_stopped(brokers: Cluster, topic: str, url: str) -> None:
    """Rows and position are there, with the columns; a writer that was superseded is fenced by the brokers alone."""
    first = sparkonce.writer(url, name="tap", linger=0.0)
    place = first.append([{"n": 1, "s": "a"}, {"n": 2, "s": "b"}], position={"line": 2}).result(PATIENCE)
    assert (place.first, place.last, place.rows, place.position, place.epoch) == (1, 1, 2, {"line": 2}, 1)
    with sparkonce.writer(url, name="tap", linger=0.0) as second:
        assert (second.position, second.last, second.epoch) == ({"line": 2}, 1, 2)
        with pytest.raises(InvalidInput, match="column n cannot be written, and the lane has it as int64"):
            second.append({"n": "text"})
        second.append({"n": 3}, position={"line": 3})
    late = first.append({"n": 3}, position={"line": 3})
    with pytest.raises(WriterFenced, match="another writer has acquired the lane"):
        first.close()
    assert isinstance(late.exception(), WriterFenced)
    assert numbers(brokers, topic) == [1, 2, 3]
    with sparkonce.writer(url, name="tap") as third:
        assert third.position == {"line": 3}


def test_a_position_alone_moves(brokers: Cluster, topic: str, url: str) -> None:
    """Without rows, and through two successors that write nothing."""
    with sparkonce.writer(url, name="tap", linger=0.0) as writer:
        writer.append({"n": 1}, position=1)
        writer.append([], position=2)
    for _ in range(2):
        with sparkonce.writer(url, name="tap") as writer:
            assert writer.position == 2
    assert numbers(brokers, topic) == [1]


def test_the_log_answers_as_a_table_does(brokers: Cluster, topic: str, url: str) -> None:
    """Numbers follow each other; the last place again is a duplicate, or a conflict with other rows; entries tell the places apart."""
    log = KafkaLog(url, "tap")
    log.acquire()
    assert append(log, 1, batch(1), batch(2, 3), position=3).kind is AppendKind.APPENDED
    assert append(log, 3, batch(4)).kind is AppendKind.APPENDED
    assert append(log, 3, batch(4)).kind is AppendKind.DUPLICATE
    assert append(log, 3, batch(5)).kind is AppendKind.CONFLICT
    assert append(log, 5, batch(5)).kind is AppendKind.GAP
    assert [(each.first, each.last, each.rows, each.position) for each in KafkaLog(url, "tap").entries()] == [
        (1, 2, 3, 3),
        (3, 3, 1, 3),
    ]
    assert KafkaLog(url, "tap").acquire().last == 3
    assert append(log, 4, batch(5)).kind is AppendKind.FENCED
    assert numbers(brokers, topic) == [1, 2, 3, 4]


POINTS = ["lanes.commit.before", "lanes.claim.before", "lanes.kafka.rows", "lanes.claim.after", "lanes.commit.after"]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What the command `sparkonce lanes` prints as JSON."""
    assert main(["lanes", *words, "--json"]) == ExitCode.SUCCEEDED
    return json.loads(capsys.readouterr().out)


def test_commands_show_the_lanes_of_a_topic(
    brokers: Cluster, topic: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How far each is, also one that has moved its position alone, and the places with rows. They change
    nothing: the writer goes on."""
    assert main(["lanes", "list", url]) == ExitCode.SUCCEEDED
    assert f"{url} has no lane; `sparkonce.writer({url!r}, name=NAME)` makes one" in capsys.readouterr().out
    settings = tmp_path / "client.properties"
    settings.write_text("# of librdkafka\n\nclient.id = a tool\n")
    with sparkonce.writer(url, name="tap", linger=0.0) as writer, sparkonce.writer(url, name="b.tap") as other:
        writer.append([{"n": 1}, {"n": 2}], position={"line": 2}).result(PATIENCE)
        writer.append([{"n": 3}], position={"line": 3}).result(PATIENCE)
        other.append([], position=7).result(PATIENCE)
        found = told(capsys, "list", url, "--command-config", str(settings))
        assert found["table"] == url
        assert [(each["name"], each["last"], each["position"], each["epoch"]) for each in found["lanes"]] == [
            ("b.tap", 1, 7, 1),
            ("tap", 2, {"line": 3}, 1),
        ]
        places = told(capsys, "show", url, "tap", "--command-config", str(settings))["places"]
        assert [(each["first"], each["last"], each["rows"], each["position"]) for each in places] == [
            (1, 1, 2, {"line": 2}),
            (2, 2, 1, {"line": 3}),
        ]
        writer.append([{"n": 4}]).result(PATIENCE)
    assert main(["lanes", "list", url]) == ExitCode.SUCCEEDED
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["LANE", "b.tap", "tap"]
    assert main(["lanes", "show", url, "none"]) == ExitCode.INVALID
    assert f"has no lane none; `sparkonce lanes list {url}` shows those that it has" in capsys.readouterr().err


def fault(point: str, action: str) -> str:
    """At its first hit, for points that a process hits once, else at the third one, so that some rows are there."""
    return f"{point}=1*{action}->off" if point.startswith("lanes.claim") else f"{point}=2*off->1*{action}->off"


@pytest.mark.parametrize("point", effort.sampled(POINTS))
def test_a_writer_that_is_killed_is_followed(brokers: Cluster, topic: str, url: str, point: str) -> None:
    """Whatever it had acknowledged is there; the next process goes on at the position, and every row is there once, in order."""
    ended(start(url, count=5))
    code, acknowledged, said = ended(start(url, failpoints=fault(point, "kill")))
    assert code == -signal.SIGKILL, said
    assert set(acknowledged) <= set(numbers(brokers, topic))
    code, _, said = ended(start(url))
    assert code == 0, said
    assert numbers(brokers, topic) == list(range(1, COUNT + 1))


@pytest.mark.parametrize("point", effort.sampled(POINTS))
def test_a_writer_that_wakes_after_its_successor_changes_nothing(
    brokers: Cluster, topic: str, url: str, point: str
) -> None:
    """It was frozen between two steps while another process took the lane over and wrote the rest: it finds itself fenced."""
    ended(start(url, count=5))
    zombie = start(url, failpoints=fault(point, "stop"))
    until_stopped(zombie)
    code, _, said = ended(start(url))
    assert code == 0, said
    assert numbers(brokers, topic) == list(range(1, COUNT + 1))
    code, acknowledged, said = woken(zombie)
    assert code != 0, "it went on"
    assert "acquired" in said or code == FENCED, said
    assert set(acknowledged) <= set(range(1, COUNT + 1))
    assert numbers(brokers, topic) == list(range(1, COUNT + 1))


def test_two_processes_of_one_name_at_once(brokers: Cluster, topic: str, url: str) -> None:
    """One of them at least ends fenced or both end well, and the rows are there once."""
    taps = [start(url, count=300) for _ in range(2)]
    assert 0 in [ended(tap)[0] for tap in taps]
    assert numbers(brokers, topic) == list(range(1, 301))


def test_replies_that_are_lost_change_nothing(brokers: Cluster, topic: str, url: str) -> None:
    """A reply of each broker is lost and its connection reset during every other append: each row is there once, in order."""
    with sparkonce.writer(url, name="tap", linger=0.0) as writer:
        for n in range(20):
            if n % 2:
                for each in brokers.brokers:
                    each.proxy.lose = 1
            writer.append({"n": n}, position=n)
            writer.flush()
    assert sum(each.proxy.dropped for each in brokers.brokers) > 0
    assert numbers(brokers, topic) == list(range(20))


def leader_and_coordinator(brokers: Cluster, topic: str, lane: str) -> tuple[int, int]:
    """Numbers of the brokers that lead the lane's partition and coordinate its transactions."""
    topics = brokers.admin.list_topics(timeout=START).topics
    coordinators = topics["__transaction_state"].partitions
    partitions = topics[topic].partitions
    number = 0
    for each in group_of(topic, lane):
        number = (31 * number + ord(each)) % 2**32  # Java's hash code of a text
    number = min(number, 2**32 - number)  # without its sign
    return partitions[own_partition(lane, len(partitions))].leader, coordinators[number % len(coordinators)].leader


def test_rows_that_arrived_and_whose_answer_was_lost_are_sent_again_and_seen(
    brokers: Cluster, topic: str, url: str
) -> None:
    """The leader has the rows, its answer is lost, and it cannot be reached until their transaction is aborted. The rows of the next one
    must not get the same sequence numbers: the leader would take them for a repetition, and they would be in the aborted one alone."""
    with sparkonce.writer(url, name="first", linger=0.0) as writer:  # so that there is a coordinator
        writer.append({"n": 0}, position=0).result(PATIENCE)
    places = {name: leader_and_coordinator(brokers, topic, name) for name in (f"tap-{n}" for n in range(50))}
    name = next(name for name, (leader, coordinator) in places.items() if leader != coordinator)
    leader = brokers.brokers[places[name][0] - 1].proxy
    with sparkonce.writer(url, name=name, linger=0.0, client={"transaction.timeout.ms": 8000}) as writer:
        writer.append({"n": 1}, position=1).result(PATIENCE)
        leader.replies = Flow.DROP
        handle = writer.append({"n": 2}, position=2)
        assert_eventually(lambda: leader.dropped > 0, PATIENCE)
        leader.refuse = True
        leader.cut()
        time.sleep(6)  # until the transaction is to be aborted: it has half of 8 s for its rows
        assert not handle.done()
        leader.heal()
        assert handle.result(PATIENCE).position == 2
        writer.append({"n": 3}, position=3).result(PATIENCE)
    assert sorted(numbers(brokers, topic)) == [0, 1, 2, 3]


def test_a_silence_that_ends_loses_nothing(brokers: Cluster, topic: str, url: str) -> None:
    """Nothing answers for longer than a request may take; the appends of that time are written afterwards, once."""
    with sparkonce.writer(url, name="tap", linger=0.0) as writer:
        writer.append({"n": 0}, position=0).result(PATIENCE)
        for each in brokers.brokers:
            each.proxy.black_hole()
        handles = [writer.append({"n": n}, position=n) for n in range(1, 6)]
        time.sleep(kafka_topic.REQUEST + 2)  # the silence itself: longer than one request may take
        for each in brokers.brokers:
            each.proxy.heal()
        assert [each.result(PATIENCE).position for each in handles][-1] == 5
    assert numbers(brokers, topic) == list(range(6))


def test_a_silence_that_does_not_end_is_unknown_and_decided_later(brokers: Cluster, topic: str, url: str) -> None:
    """The writer ends and says that it does not know; whoever acquires the lane does, and each row is there once."""
    writer = sparkonce.writer(
        url, name="tap", linger=0.0, delivery_timeout=2.0, client={"transaction.timeout.ms": 2000}
    )
    writer.append({"n": 0}, position=0).result(PATIENCE)
    for each in brokers.brokers:
        each.proxy.black_hole()
    handle = writer.append({"n": 1}, position=1)
    for each in brokers.brokers:
        each.proxy.cut()
        each.proxy.refuse = True
    error = handle.exception(PATIENCE)
    assert isinstance(error, LaneError)
    assert error.certainty in ("unknown", "refused")
    for each in brokers.brokers:
        each.proxy.heal()
    with sparkonce.writer(url, name="tap", linger=0.0) as after:
        assert after.position in ((0, 1) if error.certainty == "unknown" else (0,))
        for n in range(after.position + 1, 4):
            after.append({"n": n}, position=n)
    assert numbers(brokers, topic) == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["killed", pytest.param("frozen", marks=pytest.mark.soak)])
def test_brokers_fail_in_turn(brokers: Cluster, topic: str, url: str, how: str) -> None:
    """Each of the three, the transaction's coordinator and the partition's leader among them, fails while a process writes. Kafka may end a
    transaction that takes longer than 5 s; then the writer is fenced, and another one goes on."""
    tap = start(url, count=600)
    assert_eventually(lambda: numbers(brokers, topic), PATIENCE)
    for each in brokers.brokers:
        time.sleep(1.5)  # rows are written before the next failure; how many is not asserted
        if how == "killed":
            each.child.kill()
            time.sleep(3)  # the process meets its absence; what it has noticed by then is not asserted
            each.child.start()
        else:
            each.child.freeze()
            time.sleep(10)  # longer than a broker's session of 6 s, so that others take its partitions over
            each.child.thaw()
        brokers.until_whole()
    code, acknowledged, said = ended(tap, PATIENCE)
    one_writer = code != FENCED
    while code == FENCED:
        code, more, said = ended(start(url, count=600), PATIENCE)
        acknowledged += more
    assert code == 0, said
    everything = list(range(1, 601))
    assert sorted(set(acknowledged)) == acknowledged, "a number was acknowledged twice"
    assert acknowledged == everything or not one_writer
    assert numbers(brokers, topic) == everything


class EndsInCommit:
    """A producer that comes to its end in its next commit, which takes effect or not: brokers say INVALID_TXN_STATE of one that they have
    aborted."""

    def __init__(self, producer: Any, *, commits: bool) -> None:
        self._producer, self._commits = producer, commits
        self._ended = False

    def commit_transaction(self, timeout: float) -> None:
        from confluent_kafka import KafkaError, KafkaException

        assert not self._ended, "it was asked again"
        self._ended = True
        if self._commits:
            self._producer.commit_transaction(timeout)
        else:
            self._producer.abort_transaction(timeout)
        raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE, "planted", fatal=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


@pytest.mark.parametrize("commits", [True, False])
def test_a_producer_that_ends_in_its_commit_is_decided_by_the_mark(
    brokers: Cluster, topic: str, url: str, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    """At once, and by what the brokers have, also if they do not answer at first; nothing else of this writer is written."""
    log = KafkaLog(url, "tap")
    log.acquire()
    assert append(log, 1, batch(1)).kind is AppendKind.APPENDED
    log._producer = EndsInCommit(log._producer, commits=commits)
    asked = iter([True])
    read = log._ended

    def silent_at_first() -> Any:
        if next(asked, False):
            raise OutputUnavailable("no answer")
        return read()

    monkeypatch.setattr(log, "_ended", silent_at_first)
    place = log.next_place([batch(2)], first=2, position=None)
    with pytest.raises(OutputUnavailable, match="no answer"):
        log.commit(place)
    outcome = log.commit(place)
    if commits:
        assert outcome.kind is AppendKind.APPENDED
    else:
        assert (outcome.kind, "Kafka has ended a transaction" in outcome.why) == (AppendKind.FENCED, True)
    assert log.commit(log.next_place([batch(3)], first=3, position=None)).kind in (AppendKind.FENCED, AppendKind.GAP)
    assert numbers(brokers, topic) == ([1, 2] if commits else [1])


# What the brokers have forgotten.


def forget(brokers: Cluster, topic: str) -> None:
    """Deletes the lane's committed position, as brokers do after a week of silence."""
    group = group_of(topic, "tap")
    brokers.admin.delete_consumer_groups([group])[group].result(PATIENCE)


def test_the_newest_row_says_what_the_brokers_have_forgotten(brokers: Cluster, topic: str, url: str) -> None:
    """Rows of other lanes and rows that were aborted lie after it, and a transaction of another lane is open for a while."""
    with sparkonce.writer(url, name="tap", linger=0.0) as writer:
        for n in range(5):
            writer.append({"n": n}, position=n)
            writer.flush()
    killed = start(url, failpoints="lanes.commit.before=kill", count=10)  # rows in the topic, and no commit
    assert ended(killed)[0] == -signal.SIGKILL
    with sparkonce.writer(url, name="other", linger=0.0) as other:
        other.append([{"n": 100 + n} for n in range(50)])
    frozen = start(url, name="third", count=10, failpoints="lanes.commit.before=stop")
    try:
        until_stopped(frozen)
        forget(brokers, topic)
        with sparkonce.writer(url, name="tap", linger=0.0) as after:
            assert (after.position, after.last) == (4, 5)
            assert after.epoch > 1_000_000, "that of a later claim, which is forgotten, may have been as high"
            after.append({"n": 5}, position=5)
    finally:
        frozen.kill()
        ended(frozen)
    assert [n for n in numbers(brokers, topic) if n < 100] == list(range(6))


def test_a_lane_of_which_nothing_is_left_begins_only_if_its_owner_says_so(
    brokers: Cluster, topic: str, url: str
) -> None:
    """Its position is forgotten and its rows are deleted. With begin=True it begins anew."""
    from confluent_kafka import TopicPartition

    with sparkonce.writer(url, name="tap", linger=0.0) as writer:
        writer.append({"n": 1}, position=1)
    forget(brokers, topic)
    for partition in range(2):
        at = TopicPartition(topic, partition, -1)
        brokers.admin.delete_records([at])[at].result(PATIENCE)
    with pytest.raises(InvalidInput, match=r"does not tell whether the lane tap has written to it: .* pass begin=True"):
        sparkonce.writer(url, name="tap")
    with sparkonce.writer(url, name="tap", linger=0.0, begin=True) as anew:
        assert anew.position is None
        assert anew.epoch > 1_000_000, "an earlier epoch may have been as high"
        anew.append({"n": 7}, position=7)
    with sparkonce.writer(url, name="tap", begin=True) as again:
        assert again.position == 7, "begin=True is for what is not known"


def test_an_offset_of_another_program_is_no_position(brokers: Cluster, topic: str, url: str) -> None:
    """It is refused, and what the sentence tells to do mends it."""
    from confluent_kafka import Consumer, TopicPartition

    with sparkonce.writer(url, name="tap", linger=0.0) as writer:
        writer.append({"n": 1}, position=1)
    group = group_of(topic, "tap")
    other = Consumer({"bootstrap.servers": brokers.address, "group.id": group})
    other.commit(offsets=[TopicPartition(topic, 1, 17), TopicPartition(topic, 0, 17)], asynchronous=False)
    other.close()
    with pytest.raises(OutputCorrupt, match=r"delete the group \(kafka-consumer-groups.sh --delete\)") as refused:
        sparkonce.writer(url, name="tap")
    assert group in str(refused.value)
    forget(brokers, topic)
    with sparkonce.writer(url, name="tap") as after:
        assert after.position == 1


# What comes in.


def test_a_topic_that_could_lose_rows_is_refused(brokers: Cluster) -> None:
    """One in-sync replica is enough, or there is one replica: unless the writer says that it may be."""
    thin = brokers.topic(min_insync_replicas="1")
    with pytest.raises(InvalidInput, match=r"min.insync.replicas=1.*raise it to 2, or pass one_copy=True"):
        sparkonce.writer(brokers.url(thin), name="tap")
    sparkonce.writer(brokers.url(thin), name="tap", one_copy=True).close()
    brokers.configure(thin, min_insync_replicas="2")
    sparkonce.writer(brokers.url(thin), name="tap").close()
    compacted = brokers.topic(cleanup_policy="compact")
    with pytest.raises(
        InvalidInput, match=r"is compacted, and the rows of the lane have no keys; pass keys=\[...\] if"
    ):
        sparkonce.writer(brokers.url(compacted), name="tap")
    brokers.configure(compacted, cleanup_policy="delete")
    sparkonce.writer(brokers.url(compacted), name="tap").close()


# Rows with keys.

COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_ms": "100"}
"""Of a topic that brokers compact within a second, as far as its newest segment."""


def states(brokers: Cluster, topic: str) -> list[tuple[Any, Any]]:
    """Keys and values of what readers of committed messages see, in order."""
    return [(json.loads(each.key()), json.loads(each.value())) for each in brokers.messages(topic)]


def test_the_last_row_of_each_key_is_left(brokers: Cluster) -> None:
    """Rows and deletions are messages with the key's values and the lane's name, and brokers compact them. Another writer, and one that
    comes after the brokers have forgotten the lane's position, go on where the last one stopped, with the lane's keys."""
    topic = brokers.topic(partitions=2, **COMPACTED)
    url = brokers.url(topic)
    with sparkonce.writer(url, name="tap", linger=0.0, keys=["id", "at"]) as writer:
        writer.append([{"id": 1, "at": "a\tb", "v": "x"}, {"id": 2, "at": "c", "v": "y"}], position=2)
        writer.append([], position=3)
    first = ({"_lane": "tap", "at": "a\tb", "id": 1}, {"id": 1, "at": "a\tb", "v": "x"})
    assert states(brokers, topic) == [first, ({"_lane": "tap", "at": "c", "id": 2}, {"id": 2, "at": "c", "v": "y"})]
    with sparkonce.writer(url, name="tap", linger=0.0) as writer:
        assert (writer.position, writer.keys) == (3, ("at", "id"))
        with pytest.raises(InvalidInput, match="the rows have no column at, which is one of the lane's keys"):
            writer.append({"id": 3})
        for n in range(20):
            writer.append({"id": 2, "at": "c", "v": str(n)}, position=4 + n)
            writer.flush()
            time.sleep(0.15)  # Kafka begins a new segment after 100 ms, and compacts all but the newest
        writer.delete({"id": 2, "at": "c"}, position=30)
    with sparkonce.writer(url, name="other", linger=0.0, keys=["id", "at"]) as other:
        other.append({"id": 2, "at": "c", "v": "of another lane"})
    assert_eventually(lambda: len(brokers.messages(topic)) < 10, PATIENCE)
    forget(brokers, topic)
    with sparkonce.writer(url, name="tap", linger=0.0) as writer:
        assert (writer.position, writer.keys) == (30, ("at", "id"))
        writer.append({"id": 3, "at": "d", "v": "z"}, position=31)
    left = [value for key, value in states(brokers, topic) if key["_lane"] == "tap"]
    assert left[0] == first[1]
    assert left[-2:] == [{"id": 2, "at": "c", "_deleted": True}, {"id": 3, "at": "d", "v": "z"}]


def test_keys_and_topic_must_fit(brokers: Cluster, url: str) -> None:
    """Keys on a topic that forgets, and other keys than the lane's, are refused, and the writer that has the lane goes on."""
    with pytest.raises(InvalidInput, match=r"removes rows for their age or size \(cleanup.policy=delete\).*=compact"):
        sparkonce.writer(url, name="tap", keys=["id"])
    topic = brokers.topic(cleanup_policy="compact,delete")
    with pytest.raises(InvalidInput, match=r"removes rows for their age or size \(cleanup.policy=compact,delete\)"):
        sparkonce.writer(brokers.url(topic), name="tap", keys=["id"])
    brokers.configure(topic, cleanup_policy="compact")

    def opened() -> Any:
        try:
            return sparkonce.writer(brokers.url(topic), name="tap", linger=0.0, keys=["id"])
        except InvalidInput as error:  # of a broker that has not heard of the change yet
            assert "removes rows" not in str(error)  # noqa: PT017 - not yet
            raise

    with assert_eventually(opened, START) as writer:
        writer.append({"id": 1}).result(PATIENCE)
        with pytest.raises(InvalidInput, match=r"has the keys id, and its writer gives keys=\['sku'\]; keys cannot be"):
            sparkonce.writer(brokers.url(topic), name="tap", keys=["sku"])
        with pytest.raises(
            InvalidInput, match=r"the columns of the lane tap take \d+ bytes as a schema, and with keys"
        ):
            writer.append({"id": 2, **{f"column-{n}": "" for n in range(1000)}})
        writer.append({"id": 3}).result(PATIENCE)
    assert [key["id"] for key, _ in states(brokers, topic)] == [1, 3]


def test_a_topic_that_is_missing_is_one_sentence(brokers: Cluster, url: str) -> None:
    """And a broker that is none."""
    with pytest.raises(InvalidInput, match=r"there is no topic topic-\S+-none at \S+; create it, or correct its name"):
        sparkonce.writer(url + "-none", name="tap")
    with pytest.raises(OutputUnavailable, match="no broker answered"):
        sparkonce.writer("kafka://127.0.0.1:1/orders", name="tap")


def test_what_does_not_fit_is_refused_and_nothing_is_written(brokers: Cluster, topic: str, url: str) -> None:
    """A row above a message's size, a position above its limit, a type without a form in JSON; a row just below the limit is written."""
    with sparkonce.writer(url, name="tap", linger=0.0) as writer:
        with pytest.raises(InvalidInput, match=r"a row has 1000009 bytes as JSON, .* raise max.message.bytes"):
            writer.append({"s": "x" * 1_000_001})
        with pytest.raises(InvalidInput, match="the position has 4002 bytes of JSON, and may have 3072"):
            writer.append({"n": 1}, position="x" * 4000)
        with pytest.raises(InvalidInput, match="column n is a map whose keys are int64, and JSON has texts"):
            writer.append(maps())
        writer.append({"s": "x" * 918_000}, position="y" * 3000)
    assert [len(value) for value in brokers.values(topic)] == [918_008]


def maps() -> Any:
    import pyarrow as pa

    return pa.table({"n": pa.array([[(1, "a")]], pa.map_(pa.int64(), pa.string()))})


def test_a_stuck_topic_holds_no_more_than_the_buffer(brokers: Cluster, url: str) -> None:
    """Nothing answers: appends are taken until the buffer is full, and then refused, with the rows not taken."""
    options: dict[str, Any] = {
        "linger": 0.0,
        "buffer_memory": 4000,
        "batch_size": 1000,
        "max_block": 0.2,
        "delivery_timeout": 5.0,
    }
    writer = sparkonce.writer(url, name="tap", **options)
    for each in brokers.brokers:
        each.proxy.black_hole()
    taken = 0
    with pytest.raises(BufferFull):  # noqa: PT012 - at one of them
        while taken < 1000:
            writer.append({"n": taken, "s": "x" * 100})
            taken += 1
    assert 10 < taken < 100
    assert writer.waiting_bytes <= 4000
    for each in brokers.brokers:
        each.proxy.heal()


@pytest.mark.soak  # each point and each broker by itself is in TIER=all
def test_kills_and_freezes_at_random(brokers: Cluster, topic: str, url: str) -> None:
    """A minute of processes that are started beside each other, killed and frozen at random moments: rows in are rows out."""
    print(f"SEED={effort.base()}")
    acknowledged = troubled(url, random.Random(effort.seed("lane kills")))
    written = numbers(brokers, topic)
    print(f"{len(written)} rows")  # none, if a busy machine lets no process come so far
    code, _, said = ended(start(url, count=len(written) + COUNT), PATIENCE)
    assert code == 0, said
    everything = numbers(brokers, topic)
    assert everything == list(range(1, len(written) + COUNT + 1))
    assert set(acknowledged) <= set(everything)
