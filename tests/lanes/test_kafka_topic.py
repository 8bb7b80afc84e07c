"""What a lane on Kafka refuses without asking a broker. With brokers: `servers/test_kafka.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import example, given
from hypothesis import strategies as st

import sparkonce
from sparkonce.errors import InvalidInput, LibraryMissing, WriterFenced
from sparkonce.lanes.kafka_log import POSITION_LIMIT, KafkaLog
from sparkonce.lanes.kafka_topic import KafkaMark, KafkaTopic, MarkFound, TopicFacts, _mark
from sparkonce.lanes.naming import position_text
from sparkonce.lanes.sender import WriterOptions
from sparkonce.lanes.writer import Writer

URL = "kafka://127.0.0.1:1,[::1]:2/orders"


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("kafka://127.0.0.1/orders", "'127.0.0.1' is not HOST:PORT"),
        ("kafka://127.0.0.1:70000/orders", "'127.0.0.1:70000' is not HOST:PORT"),
        ("kafka://user@127.0.0.1:1/orders", "'user@127.0.0.1:1' is not HOST:PORT"),
        ("kafka://127.0.0.1:1,/orders", "'' is not HOST:PORT"),
        ("kafka://127.0.0.1:1/a b", "is not kafka://HOST:PORT,HOST:PORT/TOPIC"),
        ("kafka://127.0.0.1:1/a/b", "is not kafka://HOST:PORT,HOST:PORT/TOPIC"),
        ("kafka://127.0.0.1:1/", "is not kafka://HOST:PORT,HOST:PORT/TOPIC"),
        ("kafka://127.0.0.1:1/__consumer_offsets", "is Kafka's own topic; give another one"),
    ],
)
def test_a_location_that_is_none_is_one_sentence(location: str, said: str) -> None:
    """Brokers without a port, and names that no topic has."""
    with pytest.raises(InvalidInput, match=said):
        sparkonce.writer(location, name="tap")


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ({"acks": 1}, "client sets acks, which the lane sets itself; leave it out"),
        ({"transactional.id": "x"}, "client sets transactional.id, which the lane sets itself; leave it out"),
        ({"no.such": 1}, 'client: No such configuration property: "no.such"'),
        ({"linger.ms": [1]}, r"client has 'linger.ms': \[1\]; a setting of librdkafka is a text or a number"),
        ({"linger.ms": "soon"}, "client: "),
    ],
)
def test_a_setting_that_is_none_is_one_sentence(client: dict[str, Any], said: str) -> None:
    """Those of the lane itself, those that librdkafka does not know, and values that are none."""
    with pytest.raises(InvalidInput, match=said):
        sparkonce.writer(URL, name="tap", client=client)


def test_other_tables_take_no_settings_of_kafka() -> None:
    """A name that is none is refused, too, and retirement of a lane on Kafka."""
    with pytest.raises(
        InvalidInput, match="client, begin and one_copy are for a lane on Kafka, and lake/orders is a table"
    ):
        sparkonce.writer("lake/orders", name="tap", begin=True)
    with pytest.raises(InvalidInput, match="the name of a lane has 1 to 255 visible ASCII characters"):
        sparkonce.writer(URL, name="a b")
    with pytest.raises(InvalidInput, match="cannot be retired, because brokers forget its mark"):
        KafkaLog(URL, "tap").retire(by="me")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, with the command that installs it."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(LibraryMissing, match=r"run `pip install 'sparkonce\[kafka\]'`"):
        KafkaTopic(URL, {})


POSITIONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(POSITIONS)
@example(json.loads("[" * 33 + "]" * 33))
@example(json.loads("[" * 400 + "]" * 400))
@example(-(2**200))
def test_a_mark_keeps_every_position_that_is_taken(position: Any) -> None:
    """What a writer was allowed to give is what the next one is given."""
    with suppress(InvalidInput):  # too long, or no text that UTF-8 has
        position_text(position, POSITION_LIMIT)
        mark = KafkaMark(lane="tap", epoch=1, first=1, last=1, base=0, position=position)
        assert repr(KafkaMark.model_validate_json(mark.text()).position) == repr(position)


def test_a_mark_fits_into_what_brokers_keep() -> None:
    """4,096 bytes by default, with the longest name and position that are taken."""
    mark = KafkaMark(
        lane="x" * 255,
        epoch=2**63,
        first=2**63,
        last=2**63,
        base=2**63,
        position="p" * 3070,
        digest="0" * 64,
        tail=2**63,
    )
    assert len(mark.text().encode()) <= 4096
    assert KafkaMark.model_validate_json(mark.text()) == mark


class LossyBroker:
    """Takes the commits of the newest producer of a transactional id, and loses the answer to one of them."""

    def __init__(self) -> None:
        self.epoch, self.rows = 0, list[bytes]()
        self.mark: KafkaMark | None = None
        self.loses = False
        self.before_it_is_asked_again: Callable[[], object] = lambda: None

    def producer(self) -> Any:
        return LossyProducer(self)

    def found(self) -> MarkFound | None:
        return None if self.mark is None else MarkFound(0, self.mark)


class LossyProducer:
    def __init__(self, broker: LossyBroker) -> None:
        self._broker, self._done = broker, False
        self._rows: list[bytes] = []
        self._mark: Any = None

    def init_transactions(self, _: float) -> None:
        self._broker.epoch += 1
        self._epoch = self._broker.epoch

    def begin_transaction(self) -> None:
        self._rows, self._mark, self._done = [], None, False

    def produce(self, _: str, value: bytes, *, on_delivery: Callable[..., None], **__: Any) -> None:
        self._rows.append(value)
        on_delivery(None, SimpleNamespace(offset=lambda: len(self._broker.rows) + len(self._rows)))

    def poll(self, _: float) -> int:
        return 0

    flush = poll

    def send_offsets_to_transaction(self, offsets: Any, *_: Any) -> None:
        self._mark = _mark("tap", offsets[0].metadata)

    def commit_transaction(self, _: float) -> None:
        broker = self._broker
        if self._epoch != broker.epoch:
            raise KafkaException(KafkaError(KafkaError._FENCED, "a newer producer", True))
        if not self._done:
            broker.rows += self._rows
            broker.mark, self._done = self._mark, True
        if broker.loses:
            broker.loses = False
            broker.before_it_is_asked_again()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", False, True))


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_without_an_answer_is_decided_by_the_mark_when_a_successor_has_come(
    monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """Whoever comes next fences the producer. Rows that had landed before are acknowledged, with their place; others are refused."""
    broker = LossyBroker()
    consumer = SimpleNamespace(consumer_group_metadata=lambda: None)
    for name, answer in {
        "facts": TopicFacts(1, 1_000_000, frozenset({"delete"})),
        "consumer": consumer,
        "stamped_mark": (None, True),
        "columns_at": "",
    }.items():
        monkeypatch.setattr(KafkaTopic, name, lambda *_, answer=answer, **__: answer)
    monkeypatch.setattr(KafkaTopic, "producer", lambda *_: broker.producer())
    monkeypatch.setattr(KafkaTopic, "committed_mark", lambda *_, **__: broker.found())
    writer = Writer(KafkaLog(URL, "tap"), WriterOptions(linger=0.0))
    writer.append({"n": 1}, position=1).result(10)
    broker.loses = landed
    if landed:
        broker.before_it_is_asked_again = lambda: KafkaLog(URL, "tap").acquire()
        assert writer.append({"n": 2}, position=2).result(10).position == 2
    else:
        KafkaLog(URL, "tap").acquire()
        with pytest.raises(WriterFenced):
            writer.append({"n": 2}, position=2).result(10)
    assert len(broker.rows) == 1 + landed
