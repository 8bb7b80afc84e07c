"""A topic of Kafka as a lane sees it: its clients, its settings, the marks that lanes have left, and their rows.

Source: Kafka's broker and librdkafka, whose outcomes of each call are in `KafkaTopic.asking`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from sparkonce.errors import InvalidInput, LibraryMissing, OutputCorrupt, OutputUnavailable
from sparkonce.listening.address import host_and_port

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer, TopicPartition

SCHEME = "kafka://"
LANE_HEADER = "sparkonce-lane"
"""Of each message: the lane's name."""
BATCH_HEADER = "sparkonce-batch"
"""Of each message: `<epoch>.<sequence number>`."""
MARK_HEADER = "sparkonce-mark"
"""Of the last message of a place: its `KafkaMark`."""
COLUMNS_HEADER = "sparkonce-columns"
"""Of the last message of a place: Spark's JSON schema of the lane's rows."""
REQUEST = 10.0
"""Seconds for a request before its answer is unknown."""
TRANSACTION_MS = 60_000
"""Milliseconds after which the coordinator aborts a transaction without a commit, unless `transaction.timeout.ms` is set."""
SLACK = 30.0
"""Seconds in which brokers have ended it for readers, too."""
PAUSE = 0.2
KNOWN = 3.0
"""Seconds until all brokers know a topic that was created just now."""
SCAN = 1_000_000
"""Messages that are searched for the lane's newest one, if its mark is forgotten."""
CHUNK = 10_000

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OURS = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "delivery.timeout.ms",
        "enable.auto.commit",
        "enable.idempotence",
        "group.id",
        "isolation.level",
        "message.timeout.ms",
        "transactional.id",
    }
)
_INTERNAL = ("__consumer_offsets", "__transaction_state")
_log = logging.getLogger(__name__)


class TransactionRefused(Exception):
    """Another producer has the lane's transactional id. The open transaction is not committed, unless a commit that was sent before is."""


class TransactionLost(OutputUnavailable):
    """The client can do nothing more, and whether the open transaction was committed is to be read."""


class TransactionAborted(OutputUnavailable):
    """The transaction must be aborted, and its rows sent again."""


class KafkaMark(BaseModel):
    """What is committed with the rows of a place."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    lane: str
    epoch: int = Field(ge=1)
    first: int = Field(ge=1)
    last: int = Field(ge=0)
    base: int = Field(ge=0)
    """Last sequence number when the owner of this epoch acquired the lane."""
    position: JsonValue = None
    digest: str = ""
    """SHA-256 (hex) over the digests of the place's batches."""
    tail: int = -1
    """Offset of the lane's last message in its partition; -1 if it has none, and in the message itself."""
    keys: tuple[str, ...] = ()
    """As `LaneOwner.keys`."""

    def text(self) -> str:
        return self.model_dump_json(exclude_defaults=True)


class MarkFound(NamedTuple):
    partition: int
    mark: KafkaMark


class TopicFacts(NamedTuple):
    partitions: int = 1
    message_limit: int = 0
    """Bytes of a message."""
    cleanup: frozenset[str] = frozenset()
    """Its `cleanup.policy`: "delete", "compact" or both."""


class KafkaTopic:
    """location: `kafka://HOST:PORT[,HOST:PORT...]/TOPIC`. client: further settings of librdkafka, as for security.

    Raises:
        InvalidInput: not a location or a setting.
        LibraryMissing: confluent-kafka is not installed.
    """

    def __init__(self, location: str, client: Mapping[str, Any]) -> None:
        self.uri = location
        self._brokers, self.name = _parsed(location)
        try:
            import confluent_kafka  # noqa: F401 - each method imports what it needs of it
        except ImportError:
            raise LibraryMissing(
                "a lane on Kafka needs confluent-kafka, which is not installed; run `pip install 'sparkonce[kafka]'`"
            ) from None
        self._settings = _settings(self._brokers, client)
        self.transaction = int(self._settings["transaction.timeout.ms"]) / 1000
        """Seconds after which the coordinator aborts a transaction without a commit."""
        self.delivery = self.transaction / 2
        """Seconds after which the client gives a row up that no broker has acknowledged."""
        self.ended = self.transaction + SLACK
        """Seconds after which none of now is open any more."""

    def facts(self, *, one_copy: bool) -> TopicFacts:
        """one_copy: partitions with one replica or one in-sync replica are taken.

        Raises:
            InvalidInput: there is no such topic, or there are too few copies of it or of Kafka's own topics.
            OutputUnavailable: no broker answered.
        """
        from confluent_kafka.admin import AdminClient

        with self.asking("no broker answered"):
            topics, config = self._described(_made(AdminClient, self._settings))
        if not one_copy:
            least = int(config["min.insync.replicas"].value)
            if least < 2:
                raise InvalidInput(
                    f"the topic {self.name} acknowledges rows that one broker alone has (min.insync.replicas={least}), so that the loss of "
                    "one loses rows; raise it to 2, or pass one_copy=True"
                )
            for name in (self.name, *(each for each in _INTERNAL if each in topics)):
                if min((len(each.replicas) for each in topics[name].partitions.values()), default=0) < 2:
                    raise InvalidInput(
                        f"the topic {name} has partitions with one replica, so that the loss of one broker loses rows or positions; give "
                        "it more, or pass one_copy=True"
                    )
        limit = min(int(config["max.message.bytes"].value), int(self._settings.get("message.max.bytes", 1_000_000)))
        cleanup = frozenset(each.strip() for each in config["cleanup.policy"].value.split(","))
        return TopicFacts(len(topics[self.name].partitions), limit, cleanup)

    def _described(self, admin: Any) -> tuple[Any, Any]:
        """All topics, and the settings of this one, once the brokers that are asked know it. Raises: InvalidInput: there is none."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import ConfigResource

        deadline = time.monotonic() + KNOWN
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.name)
        while True:
            topics = admin.list_topics(timeout=REQUEST).topics
            late = time.monotonic() >= deadline
            if self.name in topics:
                try:
                    return topics, admin.describe_configs([resource], request_timeout=REQUEST)[resource].result(REQUEST)
                except KafkaException as error:
                    if late or error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
            elif late:
                raise InvalidInput(f"there is no topic {self.name} at {self._brokers}; create it, or correct its name")
            time.sleep(PAUSE)  # until the broker that was asked knows it

    def at(self, partition: int, **more: Any) -> TopicPartition:
        from confluent_kafka import TopicPartition

        return TopicPartition(self.name, partition, **more)

    def producer(self, transactional_id: str) -> Producer:
        """Raises: InvalidInput: librdkafka does not take a setting."""
        from confluent_kafka import Producer

        delivery = int(self.delivery * 1000)
        made: Producer = _made(
            Producer, {**self._settings, "transactional.id": transactional_id, "message.timeout.ms": delivery}
        )
        return made

    def consumer(self, group: str, *, committed: bool = True) -> Consumer:
        """committed: it reads nothing of transactions that are open or were aborted. Errors as `producer`."""
        from confluent_kafka import Consumer

        made: Consumer = _made(
            Consumer,
            {
                **self._settings,
                "group.id": group,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            },
        )
        return made

    # Marks.

    def committed_mark(
        self, lane: str, group: Consumer, partitions: int, *, within: float = REQUEST
    ) -> MarkFound | None:
        """The mark that is committed under the lane's group, once no transaction with one is pending; None if there is none.
        within: seconds.

        Raises:
            OutputUnavailable: one is pending, or no broker answered.
            OutputCorrupt: another program committed offsets of the group.
        """
        with self.asking("its position is not known yet"):
            answers = group.committed([self.at(number) for number in range(partitions)], timeout=within)
        found: MarkFound | None = None
        for each in answers:
            if each.error is not None:
                raise OutputUnavailable(f"the position of the lane {lane} of {self.uri} is not known: {each.error}")
            if each.offset < 0:
                continue
            mark = _mark(lane, each.metadata or "")
            if mark is None or mark.last + 1 != each.offset:
                raise OutputCorrupt(
                    f"another program committed an offset of the group {group_of(self.name, lane)}, where the lane {lane} of {self.uri} "
                    "has its position; delete the group (kafka-consumer-groups.sh --delete), and the lane's newest row says how far it is"
                )
            found = _newer(found, MarkFound(each.partition, mark))
        return found

    def stamped_mark(self, lane: str, facts: TopicFacts) -> tuple[MarkFound | None, bool]:
        """The mark on the newest message of the lane. Without one, whether it is certain that the lane has never written: the topic has
        all messages that it ever had, and none is of the lane.

        Raises:
            OutputUnavailable: no broker answered, or a transaction of another writer does not end.
        """
        found, sure, searched = None, True, 0
        with self._reader(lane, committed=False) as ends, self._reader(lane, committed=True) as reader:
            for number in range(facts.partitions):
                low, high = self._bounds(ends, number)  # beyond open transactions, whose end is waited for
                sure = sure and low == 0
                while high > low and searched < SCAN:
                    start = max(low, high - CHUNK)
                    newest = None
                    for message in self._between(reader, number, start, high):
                        if (mark := mark_on(lane, message)) is not None:
                            newest = MarkFound(number, mark.model_copy(update={"tail": message.offset()}))
                    searched, high = searched + high - start, start
                    if newest is not None:
                        found = _newer(found, newest)
                        break
                sure = sure and high <= low
        return found, sure

    def lanes(self) -> list[str]:
        """Names of the lanes whose groups the brokers have; those of other topics may be among them.

        Raises:
            OutputUnavailable: a broker did not answer.
        """
        from confluent_kafka.admin import AdminClient

        admin, prefix = _made(AdminClient, self._settings), group_of(self.name, "")
        with self.asking("its lanes are not known"):
            groups = admin.list_consumer_groups(request_timeout=REQUEST).result(REQUEST)
        for error in groups.errors:
            raise OutputUnavailable(f"{self.uri}: its lanes are not known: {error}")
        return sorted(each.group_id.removeprefix(prefix) for each in groups.valid if each.group_id.startswith(prefix))

    # Rows.

    def columns_at(self, lane: str, found: MarkFound) -> str:
        """Spark's JSON schema of the lane's rows; empty if its last message is not there any more. Errors as `rows`."""
        at, columns = found.mark.tail, ""
        if at >= 0:
            with self._reader(lane, committed=False) as reader:
                for message in self._between(reader, found.partition, at, at + 1, waits=False):
                    if message.offset() == at and header(message, LANE_HEADER) == lane:
                        columns = header(message, COLUMNS_HEADER)
        return columns

    def rows(self, lane: str, partition: int) -> Iterator[Message]:
        """The lane's messages that are committed now, in order.

        Raises:
            OutputUnavailable: no broker answered.
        """
        with self._reader(lane, committed=True) as reader:
            for message in self._between(reader, partition, *self._bounds(reader, partition)):
                if header(message, LANE_HEADER) == lane:
                    yield message

    @contextmanager
    def _reader(self, lane: str, *, committed: bool) -> Iterator[Consumer]:
        reader = self.consumer(group_of(self.name, lane), committed=committed)
        try:
            yield reader
        finally:
            reader.close()

    def _bounds(self, reader: Consumer, partition: int) -> tuple[int, int]:
        """Offsets of the first message, and after the last one that the reader may see."""
        with self.asking("its rows are not known yet"):
            low, high = reader.get_watermark_offsets(self.at(partition), REQUEST)
        return low, high

    def _between(
        self, reader: Consumer, partition: int, low: int, high: int, *, waits: bool = True
    ) -> Iterator[Message]:
        """Messages with these offsets, in order. waits: for transactions that are open, beyond which the reader does not see.

        Raises:
            OutputUnavailable: the reader does not get as far.
        """
        from confluent_kafka import KafkaError

        if high <= low:
            return
        reader.assign([self.at(partition, offset=low)])
        deadline = time.monotonic() + self.ended
        while time.monotonic() < deadline:
            message = reader.poll(1.0)
            if message is None:
                continue
            error = message.error()
            ended = error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - the library's public name
            if error is not None and not ended:
                raise OutputUnavailable(f"the rows of {self.uri} cannot be read now: {error.str()}")
            offset = message.offset() or 0
            if not ended and offset < high:
                yield message
                deadline = time.monotonic() + self.ended
            if offset >= (high if ended else high - 1) or (ended and not waits):
                return
        raise OutputUnavailable(f"the rows of {self.uri} cannot be read: a transaction of another writer does not end")

    # Outcomes.

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Turns the client's errors into outcomes. what: which is the case then.

        Raises:
            TransactionRefused: another producer has the transactional id.
            TransactionLost: the client has come to its end; brokers may have aborted a transaction that took too long (INVALID_TXN_STATE).
            TransactionAborted: the client says that the transaction must be aborted.
            OutputUnavailable: anything else; unknown.
        """
        from confluent_kafka import KafkaError, KafkaException

        fenced = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)  # noqa: SLF001 - public
        try:
            yield
        except (KafkaException, SystemError) as raised:
            # A fatal error that the library raises while it calls `on_delivery` makes a SystemError of Python.
            cause = raised if isinstance(raised, KafkaException) else raised.__cause__
            if not isinstance(cause, KafkaException):
                raise
            error = cause.args[0]
            if error.code() in fenced:
                raise TransactionRefused from None
            kind: type[OutputUnavailable] = OutputUnavailable
            if error.fatal():
                kind = TransactionLost
            elif error.txn_requires_abort():
                kind = TransactionAborted
            raise kind(f"{self.uri}: {what}: {error.str()}") from None


def group_of(topic: str, lane: str) -> str:
    """The consumer group under which a lane's marks are committed, and its transactional id."""
    return f"sparkonce-lane.{topic}.{lane}"


def header(message: Message, name: str) -> str:
    """Empty if the message has none of this name."""
    found: dict[str, Any] = dict(message.headers() or ())
    value = found.get(name)
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def mark_on(lane: str, message: Message) -> KafkaMark | None:
    """The mark of the place that ends with this message; None if it does not end there, or another program wrote it."""
    return _mark(lane, header(message, MARK_HEADER)) if header(message, LANE_HEADER) == lane else None


def _mark(lane: str, text: str) -> KafkaMark | None:
    """None if no writer of the lane wrote it."""
    try:
        mark = KafkaMark.model_validate_json(text)
    except ValidationError:
        return None
    return mark if mark.lane == lane else None


def _newer(one: MarkFound | None, other: MarkFound) -> MarkFound:
    if one is not None and (one.mark.epoch, one.mark.last) >= (other.mark.epoch, other.mark.last):
        return one
    return other


def _parsed(location: str) -> tuple[str, str]:
    """Brokers and topic. Raises: InvalidInput."""
    brokers, _, topic = location.removeprefix(SCHEME).partition("/")
    if not location.startswith(SCHEME) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidInput(f"{location} is not kafka://HOST:PORT,HOST:PORT/TOPIC")
    for each in brokers.split(","):
        at = host_and_port(each)
        if at is None or at[1] == 0 or re.search(r"[\s@?#]", each):
            raise InvalidInput(f"{location}: {each!r} is not HOST:PORT")
    if topic in _INTERNAL:
        raise InvalidInput(f"{location}: {topic} is Kafka's own topic; give another one")
    return brokers, topic


def _settings(brokers: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Of each of the lane's clients. Raises: InvalidInput."""
    for name, value in given.items():
        if not isinstance(value, (str, int, float)):
            raise InvalidInput(f"client has {name!r}: {value!r}; a setting of librdkafka is a text or a number")
        if name in _OURS:
            raise InvalidInput(f"client sets {name}, which the lane sets itself; leave it out")
        if name == "transaction.timeout.ms" and not str(value).isdecimal():
            raise InvalidInput(f"client has {name}: {value!r}, and it is a number of milliseconds")
    ours = {"bootstrap.servers": brokers, "logger": _log}
    return {"reconnect.backoff.max.ms": 1000, "transaction.timeout.ms": TRANSACTION_MS, **given, **ours}


def _made(kind: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any]) -> Any:
    """Raises: InvalidInput: librdkafka does not take a setting."""
    from confluent_kafka import KafkaException

    try:
        return kind(dict(settings))
    except (KafkaException, TypeError, ValueError) as error:
        said = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise InvalidInput(f"client: {said}") from None
