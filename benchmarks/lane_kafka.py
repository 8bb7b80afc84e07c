"""Compares a lane's writer on Kafka with a plain producer, on one broker of the same machine.

*rows*: ROWS rows of about 200 bytes, handed over as mappings, 1,000 at a time, from the first append to the end of `close`; raw: an
idempotent producer sends each as `json.dumps` writes it, and flushes. *commit*: an append of one row that waits for its place; raw: a
transaction with a message of as many bytes and an offset. The broker's own CPU is not counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from lane_costs import COMMITS, OURS, RAW, in_pairs, in_turn, rows_and_commits
from measure import Cost, Goal, Row, WrongEffect

import sparkonce
from harness.kafka import Cluster, cluster

APPEND = 1_000
"""Rows of one append."""
WAIT = 60.0


@dataclass
class LaneKafka:
    """The part `lanes-kafka`; `say` gets a line per pair. rows: of a pair."""

    scratch: Path
    pairs: int
    say: Callable[[str], None]
    rows: int = 200_000

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a row is missing in the end."""
        rows = [
            {
                "id": n,
                "text": "x" * 120,
                "amount": n / 7,
                "at": f"2024-05-01T00:{n % 60:02}:00",
                "name": f"name-{n % 100}",
            }
            for n in range(self.rows)
        ]
        self.say(f"lanes-kafka: {self.pairs} pairs and one to warm up, {self.rows} rows")
        with cluster(self.scratch, brokers=1) as kafka:
            costs = in_pairs(
                "lanes-kafka",
                self.pairs,
                self.say,
                lambda pair: {
                    "rows": {
                        name: self._written(kafka, rows, name) for name in ((OURS, RAW) if pair % 2 else (RAW, OURS))
                    },
                    "commit": self._committed(kafka),
                },
            )
        return rows_and_commits("lanes-kafka", costs, goal=Goal(1.43, "<= 1.43x"))

    def _written(self, kafka: Cluster, rows: list[dict[str, Any]], name: str) -> Cost:
        """For 1,000 rows."""
        topic = kafka.topic()
        wall, cpu = perf_counter(), process_time()
        if name == OURS:
            with sparkonce.writer(kafka.url(topic), name="bench", one_copy=True) as writer:
                for first in range(0, len(rows), APPEND):
                    writer.append(rows[first : first + APPEND], position=first)
        else:
            producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True, "linger.ms": 100})
            for row in rows:
                text = json.dumps(row).encode()
                while True:
                    try:
                        producer.produce(topic, text)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.flush()
        cost = Cost(1e6 * (perf_counter() - wall) / len(rows), 1e6 * (process_time() - cpu) / len(rows))
        if (there := len(kafka.values(topic))) != len(rows):
            raise WrongEffect(f"of {len(rows)} rows {there} are there")
        return cost

    def _committed(self, kafka: Cluster) -> dict[str, Cost]:
        """The median of COMMITS."""
        topic = kafka.topic()
        writer = sparkonce.writer(kafka.url(topic), name="bench", linger=0.0, one_copy=True)
        group = Consumer({"bootstrap.servers": kafka.address, "group.id": topic}).consumer_group_metadata()
        producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": topic})
        producer.init_transactions(WAIT)
        body = json.dumps({"n": 0}).encode()

        def committed(number: int) -> None:
            producer.begin_transaction()
            producer.produce(topic, body, partition=0)
            producer.flush(WAIT)
            producer.send_offsets_to_transaction([TopicPartition(topic, 0, number + 1)], group, WAIT)
            producer.commit_transaction(WAIT)

        def appended(number: int) -> None:
            writer.append({"n": number}, position=number).result(WAIT)

        spent = in_turn({OURS: appended, RAW: committed}, warm_up=True)
        writer.close()
        return spent

    def dump(self) -> dict[str, Any]:
        return {"rows": self.rows, "rowsPerAppend": APPEND, "commitsPerPair": COMMITS}
