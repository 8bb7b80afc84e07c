"""The log of a lane in a topic of Kafka: rows are messages of one partition, and each place is a transaction.

    transaction: the rows of a place, and under the lane's consumer group its mark (`KafkaMark`): epoch, last sequence number, position

Kafka's brokers fence. A lane's transactional id is its name. When a writer initialises it, the transaction coordinator aborts the open
transaction of the writer before, and refuses its commits for ever. So only the owner commits, and rows and position together. The mark is
the metadata of a committed offset, whose number is the sequence number of the next batch (`send_offsets_to_transaction`).

**Acquiring writes a mark without rows**, with the epoch above the last one, so that marks tell owners apart: a client is not told the
producer's epoch.

**A commit without an answer** is decided by reading the mark as the broker serves it to readers of committed offsets only: it does not
answer while a transaction with it is pending. The transaction ends within `transaction.timeout.ms`, by its commit or by the coordinator,
and a commit that is still under way then is refused. The transactional id is not initialised again for that: it would take the lane from a
successor.

**Brokers forget committed offsets** after a week without a commit (`offsets.retention.minutes`). So messages carry the lane, epoch and
sequence number in a header, too, and the last message of each place carries the mark and the columns; the newest of them in the topic then
decides. Where none is left, only the writer's owner knows whether the lane is new: it says `begin=True`, or is refused.

**Rows with keys** (`lanes.keyed`) are for a compacted topic, and for no other: its brokers remove what a later message with the same key
has replaced, and no message for its age. The message's key has the lane's name beside the values of the key columns. So nothing but the
lane itself replaces its messages, and its newest one, which has the mark, is always left.

Source: KIP-98 (transactions), KIP-447 (stable offsets), KIP-360 (epochs of producers).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from hashlib import sha256
from threading import Thread
from typing import TYPE_CHECKING, Any

from sparkonce.errors import InvalidInput, OutputUnavailable
from sparkonce.failpoints import hit
from sparkonce.lanes import rows as arrow
from sparkonce.lanes.json_rows import json_texts
from sparkonce.lanes.kafka_topic import (
    BATCH_HEADER,
    COLUMNS_HEADER,
    LANE_HEADER,
    MARK_HEADER,
    PAUSE,
    REQUEST,
    KafkaMark,
    KafkaTopic,
    MarkFound,
    TopicFacts,
    TransactionAborted,
    TransactionLost,
    TransactionRefused,
    group_of,
    mark_on,
)
from sparkonce.lanes.keyed import key_names, refuse_other_keys
from sparkonce.lanes.naming import lane_name
from sparkonce.lanes.protocol import AppendKind, AppendOutcome, LaneEntry, LaneOwner, LanePlace, RowBatch

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, Message, Producer

LINGER = 0.1
POSITION_LIMIT = 3072
"""Bytes of a position's JSON: brokers keep 4,096 of a mark by default (`offset.metadata.max.bytes`)."""
KEY_NAMES_LIMIT = 400
"""Bytes of the names of the key columns in a mark, whose other fields take 600 beside the position."""
LANE = "_lane"
"""In a message's key: the lane's name."""
KEY_ENDS = b"\t"
"""Between a message's key and its value, while they wait: no JSON text has one."""
LOOK = 1.0
"""Seconds for a mark before the lane is acquired, so that a writer with other keys leaves it to the one that has it."""
BATCHES = 64
"""Batches of one transaction."""
SCANS = 2.0
"""Seconds until the client has noticed that the time of a row is over: it looks once a second."""
SPARE = 81_920
"""Bytes of a message for its headers, the columns among them; a quarter of it at most."""
FENCED = "another writer has acquired the lane, or Kafka has ended a transaction that took too long"


class KafkaLog:
    """A `LaneLog` in a topic. location: `kafka://HOST:PORT[,HOST:PORT...]/TOPIC`.

    keys: as `LaneOwner.keys`; None takes those that the lane has. client: further settings of librdkafka, as for security. begin: the lane
    may begin anew where the topic no longer tells whether it existed. one_copy: a topic, or Kafka's own topics, with one replica or one
    in-sync replica are taken.

    Raises:
        InvalidInput: not a location, a name, keys or a setting.
        LibraryMissing: confluent-kafka is not installed.
    """

    batches_limit = BATCHES
    position_limit = POSITION_LIMIT
    linger = LINGER

    def __init__(
        self,
        location: str,
        name: str,
        *,
        keys: Sequence[str] | None = None,
        client: Mapping[str, Any] | None = None,
        begin: bool = False,
        one_copy: bool = False,
    ) -> None:
        self.name, self.uri = lane_name(name), location
        self._given_keys = None if keys is None else _message_keys(keys)
        self._topic = KafkaTopic(location, client or {})
        self._begin, self._one_copy = begin, one_copy
        self._id = group_of(self._topic.name, self.name)
        self._producer: Producer | None = None
        self._group: Consumer | None = None
        self._facts = TopicFacts()
        self._partition, self._first_epoch = 0, 1
        self._mark = KafkaMark(lane=self.name, epoch=1, first=1, last=0, base=0)
        """The last one that is known to be committed."""
        self._entry: LaneEntry | None = None
        self._fenced = ""
        """Why nothing of this epoch is committed any more."""
        self._open: LanePlace | None = None
        """Whose commit was sent and has no answer."""
        self._broken = False
        """A transaction is to be aborted before the next one begins."""
        self._doubted = False
        """One was aborted, and the mark was not read since."""
        self._lost = False
        """The producer has come to its end, and the mark says what became of its transaction."""
        self._tail = -1
        """Offset of the newest message that was taken by the brokers."""
        self._asked: Future[None] | None = None
        """The mark of the open transaction, sent and without an answer."""

    # What a writer calls.

    def packed(self, table: pa.Table) -> pa.Table:
        import pyarrow as pa

        texts = json_texts(table)
        if texts and (names := self._mark.keys):
            lane = json.dumps({LANE: self.name}).encode()[:-1]
            texts = [
                lane + b"," + key[1:] + KEY_ENDS + text
                for key, text in zip(json_texts(table.select(names)), texts, strict=True)
            ]
        limit = self._facts.message_limit - self._spare
        if texts and (longest := max(map(len, texts))) > limit:
            raise InvalidInput(
                f"a row has {longest} bytes as JSON, and a message of the topic {self._topic.name} has room for {limit}; make it smaller, "
                "or raise max.message.bytes of the topic and message.max.bytes of the client"
            )
        return pa.table({"value": pa.array(texts, pa.binary())})

    def encoded(self, tables: Sequence[pa.Table], known: pa.Schema) -> RowBatch:
        values: list[Any] = [table.column("value").to_pylist() for table in tables if table.num_rows]
        texts: list[bytes] = [text for each in values for text in each]
        return RowBatch(b"\n".join(texts), len(texts), arrow.spark_schema(known) if texts else "")

    def acquire(self) -> LaneOwner:
        self._facts = self._topic.facts(one_copy=self._one_copy)
        if self._given_keys is not None:
            # An open transaction hides the mark, which is seen once the lane is acquired.
            with suppress(OutputUnavailable):
                self._keys_with(self._committed(within=LOOK))
        deadline = time.monotonic() + self._topic.ended
        while True:
            try:
                return self._claimed()
            except TransactionRefused:
                raise OutputUnavailable(
                    f"the lane {self.name} of {self.uri} was acquired by another writer meanwhile; give each writer its own name"
                ) from None
            except OutputUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE)  # a coordinator may just have been lost

    def _claimed(self) -> LaneOwner:
        """Raises: TransactionRefused: by another writer that acquires the lane. Else as `acquire`."""
        self._fenced, self._open, self._entry, self._asked = "", None, None, None
        self._broken = self._doubted = self._lost = False
        producer = self._producer = self._topic.producer(self._id)
        with self._topic.asking("the lane cannot be acquired now"):
            producer.init_transactions(self._topic.ended)
        known = self._ended()
        found = known or self._stamped()
        self._partition = found.partition if found else own_partition(self.name, self._facts.partitions)
        columns = self._topic.columns_at(self.name, found) if found else ""
        before = found.mark if found else None
        keys = self._keys_with(found)
        epoch, last = (before.epoch + 1, before.last) if before else (self._first_epoch, 0)
        if before and not known:
            # Claims without rows, whose marks are forgotten, had higher epochs.
            epoch = max(epoch, int(time.time()))
        claim = KafkaMark(
            lane=self.name,
            epoch=epoch,
            first=last + 1,
            last=last,
            base=last,
            position=before.position if before else None,
            tail=before.tail if before else -1,
            keys=keys,
        )
        with self._topic.asking("the lane cannot be acquired now"):
            producer.begin_transaction()
            self._send_mark(claim)
            hit("lanes.claim.before")
            producer.commit_transaction(REQUEST)
        hit("lanes.claim.after")
        self._mark = claim
        return LaneOwner(epoch=epoch, last=last, position=claim.position, data_schema=columns, keys=keys)

    def _keys_with(self, found: MarkFound | None) -> tuple[str, ...]:
        """The lane's keys, if its mark is this one. Raises: InvalidInput: its writer gives others, or the topic is not one for them."""
        given, topic = self._given_keys, self._topic.name
        keys = found.mark.keys if found else given or ()
        refuse_other_keys(given, keys, lane=f"the lane {self.name} of {self.uri}", other="topic")
        policy = ",".join(sorted(self._facts.cleanup))
        if keys and policy != "compact":
            raise InvalidInput(
                f"the topic {topic} removes rows for their age or size (cleanup.policy={policy}), the newest of a key among them; give "
                "rows with keys a topic with cleanup.policy=compact"
            )
        if not keys and "compact" in policy:
            raise InvalidInput(
                f"the topic {topic} is compacted, and the rows of the lane have no keys; pass keys=[...] if the lane is new, or give a "
                "topic with cleanup.policy=delete"
            )
        return keys

    def refuse_columns(self, data_schema: str) -> None:
        """Readers give the columns that they want of a message. With keys, the next writer needs the columns of this one, so that a key has
        the same bytes."""
        if self._mark.keys and len(data_schema.encode()) > self._spare // 2:
            raise InvalidInput(
                f"the columns of the lane {self.name} take {len(data_schema.encode())} bytes as a schema, and with keys they may take "
                f"{self._spare // 2}; write fewer columns"
            )

    def tidy(self) -> None:
        """A topic needs none."""

    def next_place(self, batches: Sequence[RowBatch], *, first: int, position: Any) -> LanePlace:
        return LanePlace(f"e{self._mark.epoch}-{first}", first, tuple(batches), position)

    def upload(self, place: LanePlace, number: int) -> None:
        """Rows are sent in the transaction, of which a producer has one at a time."""

    def commit(self, place: LanePlace) -> AppendOutcome:
        from confluent_kafka import KafkaException

        if place.first <= self._mark.last:
            return self._already(place)
        if self._lost:
            return self.abandon(place)
        if self._fenced:
            return AppendOutcome(AppendKind.FENCED, why=self._fenced)
        if place.first > self._mark.last + 1:
            return AppendOutcome(AppendKind.GAP)
        try:
            with self._topic.asking("the rows were not taken"):
                if self._broken:
                    with suppress(KafkaException):  # of a mark whose transaction is aborted
                        self._answered()
                    self._until_delivered()
                    self._owned.abort_transaction(REQUEST)
                    self._broken, self._doubted = False, True
                if self._doubted:
                    found = self._committed()  # the commit may have failed after it took effect
                    self._doubted = False
                    if found and found.mark.epoch == self._mark.epoch and found.mark.last >= place.last:
                        return self._in_log(place, found.mark)
                mark = self._marked(place, tail=self._tail) if self._open is place else self._sent(place)
                self._open = place
                hit("lanes.commit.before")
                self._owned.commit_transaction(REQUEST)
        except TransactionRefused:
            self._fenced = FENCED
            if self._open is place:  # a commit before may have taken effect, and its answer was lost
                return self._decided(place, self._committed())
            return AppendOutcome(AppendKind.FENCED, why=self._fenced)
        except TransactionLost:
            self._lost = True
            return self.abandon(place)
        except TransactionAborted:
            self._open, self._broken = None, True
            raise
        hit("lanes.commit.after")
        self._open = None
        return self._in_log(place, mark)

    def abandon(self, place: LanePlace) -> AppendOutcome:
        self._fenced = FENCED if self._lost else "a commit had no answer in time"
        return self._decided(place, self._ended())

    def _decided(self, place: LanePlace, found: MarkFound | None) -> AppendOutcome:
        """Whether a place whose commit was sent is in the log, by the lane's mark once nothing of this writer is open."""
        mark = found.mark if found is not None else None
        if mark is not None and mark.epoch == self._mark.epoch and mark.last >= place.last:
            return self._in_log(place, mark)
        if mark is not None and mark.epoch == self._mark.epoch + 1 and mark.base >= place.last:
            return self._in_log(place, self._marked(place, tail=-1))
        if mark is not None and mark.epoch > self._mark.epoch + 1:
            raise OutputUnavailable(
                f"the lane {self.name} of {self.uri} was acquired twice since, and no longer says what this writer had written"
            )
        return AppendOutcome(AppendKind.FENCED, why=self._fenced)

    def entries(self) -> Iterator[LaneEntry]:
        self._facts = self._topic.facts(one_copy=True)
        found = self._committed()
        if found is None:
            return
        rows, size = 0, 0
        for message in self._topic.rows(self.name, found.partition):
            rows, size = rows + 1, size + len(message.value() or b"")
            if (mark := mark_on(self.name, message)) is not None:
                yield _entry(mark, rows=rows, size=size, at=message.timestamp()[1] / 1000)
                rows, size = 0, 0

    def newest(self) -> LaneEntry | None:
        """The last place that is committed now, as its mark describes it: without rows, size and time. None if brokers have no mark."""
        self._facts = self._topic.facts(one_copy=True)
        found = self._committed()
        return None if found is None else _last(found)

    def retire(self, *, by: str) -> LaneEntry:  # noqa: ARG002 - of the protocol
        raise InvalidInput(
            f"the lane {self.name} of {self.uri} cannot be retired, because brokers forget its mark; take the permission to write to "
            f"{self._topic.name} from its writers"
        )

    # Transactions.

    @property
    def _owned(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("the lane was not acquired")
        return self._producer

    def _sent(self, place: LanePlace) -> KafkaMark:
        """Puts rows and mark into a transaction. Returns the mark."""
        self._owned.begin_transaction()
        self._broken = True  # until its commit is sent
        self._tail = self._mark.tail
        mark = self._marked(place, tail=-1)
        self._produce(place, mark)
        hit("lanes.kafka.rows")
        mark = mark.model_copy(update={"tail": self._tail})
        self._send_mark(mark)
        self._broken = False
        return mark

    def _produce(self, place: LanePlace, mark: KafkaMark) -> None:
        producer, failed = self._owned, []

        def delivered(error: Any, message: Message) -> None:
            if error is not None:
                failed.append(error)
            else:
                self._tail = max(self._tail, message.offset() or 0)

        last = next((n for n in reversed(range(len(place.batches))) if place.batches[n].rows), None)
        for number, batch in enumerate(place.batches):
            if not batch.rows:
                continue
            headers = [
                (LANE_HEADER, self.name.encode()),
                (BATCH_HEADER, f"{self._mark.epoch}.{place.first + number}".encode()),
            ]
            texts = batch.data.split(b"\n")
            for index, text in enumerate(texts):
                if number == last and index == len(texts) - 1:
                    columns = batch.data_schema.encode()
                    headers = [*headers, (MARK_HEADER, mark.text().encode())]
                    headers += [(COLUMNS_HEADER, columns)] if len(columns) <= self._spare // 2 else []
                key, _, value = text.rpartition(KEY_ENDS)
                more = {"key": key} if key else {}
                while True:
                    try:
                        producer.produce(
                            self._topic.name,
                            value,
                            partition=self._partition,
                            headers=headers,
                            on_delivery=delivered,
                            **more,
                        )
                        break
                    except BufferError:  # the client's queue is full
                        producer.poll(0.1)
            producer.poll(0)
        self._until_delivered()
        if failed:
            raise TransactionAborted(
                f"the rows of the lane {self.name} of {self.uri} were not taken within {self._topic.delivery:g} s: {failed[0].str()}"
            )

    def _until_delivered(self) -> None:
        """Returns when the client has an answer about every row that was sent, if only that its time is over.

        A transaction may not be aborted before. librdkafka forgets the rows that it was to send once more, gives their sequence numbers to
        the rows of the next transaction, and takes a broker's word that it has these already; they would be in the aborted transaction
        alone (2.8.0, `rd_kafka_toppar_purge_queues`). After a row that was given up, it asks for a new epoch of the producer, in which no
        number was used.

        Raises: OutputUnavailable: there are rows without an answer."""
        if self._owned.flush(self._topic.delivery + SCANS):
            raise OutputUnavailable(f"the rows of the lane {self.name} of {self.uri} are not answered yet")

    def _send_mark(self, mark: KafkaMark) -> None:
        at = self._topic.at(self._partition, offset=mark.last + 1, metadata=mark.text())
        producer, group = self._owned, self._consumer.consumer_group_metadata()
        self._asked = _asked(lambda: producer.send_offsets_to_transaction([at], group, REQUEST))
        self._answered()

    def _answered(self) -> None:
        """Waits for the answer to the mark. The library may ignore its own limit (librdkafka 5456), and takes no other call meanwhile."""
        if self._asked is None:
            return
        try:
            self._asked.result(REQUEST)
        except TimeoutError:
            raise OutputUnavailable(f"{self.uri}: the coordinator of the group {self._id} does not answer") from None
        finally:
            if self._asked.done():
                self._asked = None

    def _marked(self, place: LanePlace, *, tail: int) -> KafkaMark:
        digests = "".join(batch.digest for batch in place.batches)
        return self._mark.model_copy(
            update={
                "first": place.first,
                "last": place.last,
                "position": self._mark.position if place.position is None else place.position,
                "digest": sha256(digests.encode()).hexdigest(),
                "tail": tail,
            }
        )

    def _in_log(self, place: LanePlace, mark: KafkaMark) -> AppendOutcome:
        self._mark = mark
        rows = sum(batch.rows for batch in place.batches)
        size = sum(len(batch.data) for batch in place.batches)
        self._entry = _entry(
            mark, rows=rows, size=size, at=time.time(), digests=tuple(batch.digest for batch in place.batches)
        )
        return AppendOutcome(AppendKind.APPENDED, self._entry)

    def _already(self, place: LanePlace) -> AppendOutcome:
        """The outcome of a place whose first number is in the log."""
        same = self._entry is not None and self._mark.digest == self._marked(place, tail=-1).digest
        return AppendOutcome(AppendKind.DUPLICATE if same else AppendKind.CONFLICT, self._entry)

    # What the topic says.

    @property
    def _consumer(self) -> Consumer:
        """Of the lane's group; it never subscribes."""
        if self._group is None:
            self._group = self._topic.consumer(self._id)
        return self._group

    @property
    def _spare(self) -> int:
        return min(SPARE, self._facts.message_limit // 4)

    def _committed(self, *, within: float = REQUEST) -> MarkFound | None:
        return self._topic.committed_mark(self.name, self._consumer, self._facts.partitions, within=within)

    def _ended(self) -> MarkFound | None:
        """The committed mark, once no transaction of the lane is open any more. Raises: as `_committed`."""
        deadline = time.monotonic() + self._topic.ended
        while True:
            try:
                return self._committed()
            except OutputUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE)  # a broker that is no coordinator any more says so at once

    def _stamped(self) -> MarkFound | None:
        """Raises: InvalidInput: nothing tells whether the lane is new. Else as `KafkaTopic.stamped_mark`."""
        found, sure = self._topic.stamped_mark(self.name, self._facts)
        if found is None and not sure and not self._begin:
            raise InvalidInput(
                f"{self.uri} does not tell whether the lane {self.name} has written to it: it has no committed position, which brokers "
                "forget (offsets.retention.minutes), and no row that is left is its own; if the lane is new, or may begin anew, pass "
                "begin=True"
            )
        self._first_epoch = 1 if sure else int(time.time())  # an earlier writer of this name had a lower one
        return found


def own_partition(lane: str, partitions: int) -> int:
    """The partition of a lane that has not written yet."""
    return int(sha256(lane.encode()).hexdigest(), 16) % partitions


def kafka_lanes(location: str, client: Mapping[str, Any] | None = None) -> list[tuple[str, LaneEntry]]:
    """The lanes of a topic of which brokers have a mark, by name, each with its last place (`KafkaLog.newest`). Arguments as of `KafkaLog`.

    Raises:
        InvalidInput: not a location or a setting, or there is no such topic.
        OutputUnavailable: a broker did not answer.
        OutputCorrupt: another program committed an offset of a lane's group.
    """
    topic = KafkaTopic(location, client or {})
    partitions = topic.facts(one_copy=True).partitions
    marks = [
        (name, topic.committed_mark(name, topic.consumer(group_of(topic.name, name)), partitions))
        for name in topic.lanes()
    ]
    return [(name, _last(found)) for name, found in marks if found is not None]


def _message_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Raises: InvalidInput: not keys, or not such as a message and its mark have room for."""
    names = key_names(keys)
    if LANE in names:
        raise InvalidInput(f"the column {LANE} cannot be one of the keys: a message's key has the lane's name under it")
    if (size := len(json.dumps(names))) > KEY_NAMES_LIMIT:
        raise InvalidInput(
            f"the names of the keys take {size} bytes of JSON, and on Kafka they may take {KEY_NAMES_LIMIT}"
        )
    return names


def _asked(call: Callable[[], None]) -> Future[None]:
    """The outcome of a call that may never return. Its thread does not keep the process."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            call()
            outcome.set_result(None)
        except BaseException as error:  # noqa: BLE001 - told to who waits
            outcome.set_exception(error)

    Thread(target=run, name="lane-kafka-mark", daemon=True).start()
    return outcome


def _last(found: MarkFound) -> LaneEntry:
    return _entry(found.mark, rows=0, size=0, at=0.0)


def _entry(mark: KafkaMark, *, rows: int, size: int, at: float, digests: tuple[str, ...] = ()) -> LaneEntry:
    return LaneEntry(
        place=f"e{mark.epoch}-{mark.first}",
        epoch=mark.epoch,
        first=mark.first,
        last=mark.last,
        rows=rows,
        bytes=size,
        position=mark.position,
        digests=digests,
        committed_at=at,
        keys=mark.keys,
    )
