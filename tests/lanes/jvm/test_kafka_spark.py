"""Spark's connector for Kafka reads the rows of a lane's committed transactions, and no others."""

from __future__ import annotations

import datetime as dt
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparkonce
from harness import kafka
from harness.binaries import or_skip
from harness.spark import facts_of
from harness.store_parts import jars
from lanes.test_kills import ended, start

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1"
NEEDED = ("org.apache.spark_", "org.apache.kafka_", "org.apache.commons_")
"""Of its jars; Spark has the others."""


@pytest.mark.spark
def test_spark_reads_what_was_committed(tmp_path: Path) -> None:
    """A writer was killed with rows in an open transaction; another one aborted it and wrote. A batch query and a stream see each row once,
    with its values, although the topic has more messages. Of a topic whose rows have keys, a query finds the last row of each."""
    found = or_skip(jars, CONNECTOR.replace(":", "-"), [CONNECTOR])
    connector = [str(jar) for jar in found if jar.name.startswith(NEEDED)]
    with kafka.cluster(tmp_path, brokers=1) as brokers:
        topic = brokers.topic(partitions=2)
        url = brokers.url(topic)
        killed = start(url, "one copy", failpoints="lanes.commit.before=kill")
        code, _, said = ended(killed)
        assert code == -signal.SIGKILL, said
        at = dt.datetime(2024, 5, 1, 12, 30, 0, 5, tzinfo=dt.UTC)
        fields: list[pa.Field[Any]] = [pa.field("n", pa.int64()), pa.field("d", pa.decimal128(9, 2))]
        with sparkonce.writer(url, name="tap", linger=0.0, one_copy=True, schema=pa.schema(fields)) as writer:
            assert writer.position is None
            for n in range(1, 51):
                writer.append({"n": n, "d": Decimal(n) / 4, "at": at, "s": "a" if n % 2 else None}, position=n)
        keyed = brokers.topic(partitions=2, cleanup_policy="compact")
        with sparkonce.writer(brokers.url(keyed), name="tap", linger=0.0, one_copy=True, keys=["n"]) as writer:
            for n in range(1, 6):
                writer.append([{"n": each, "s": f"{each} at {n}"} for each in range(1, n + 1)])
            writer.delete([{"n": 2}, {"n": 3}])
            writer.append({"n": 3, "s": "again"})
        columns = "n long, d decimal(9,2), at timestamp, s string"
        facts = facts_of("harness.kafka_spark", tmp_path, ",".join(connector), brokers.address, topic, columns, keyed)
    expected = [
        [str(n), f"{Decimal(n) / 4:.2f}", "2024-05-01 12:30:00.000005", "a" if n % 2 else "None"] for n in range(1, 51)
    ]
    assert facts["batch"] == facts["stream"] == expected
    assert facts["messages"] > 50, "nothing was aborted"
    assert facts["latest"] == [[1, "1 at 5"], [3, "again"], [4, "4 at 5"], [5, "5 at 5"]]
