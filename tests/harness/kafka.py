"""Kafka for tests: brokers on loopback, which are controllers, too, each behind a proxy of the tests.

A client that starts at `address` is sent to the brokers' proxies, so that a test can drop replies of one of them; between each other
brokers talk directly. They start in some seconds, and hold their data in the test's folder.
"""

from __future__ import annotations

import base64
import functools
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from harness.child import Child, free_port
from harness.eventually import assert_eventually
from harness.proxy import Proxy, in_front_of
from harness.spark import needed_java
from harness.spark_archive import SHORT_LIVED
from harness.store_parts import kafka_jars

START = 60.0
"""Seconds until a cluster serves."""
MEMORY = "-Xmx256m"


@dataclass(frozen=True)
class Broker:
    child: Child
    proxy: Proxy


@dataclass
class Cluster:
    brokers: list[Broker]

    @property
    def address(self) -> str:
        """As `bootstrap.servers`."""
        return ",".join(broker.proxy.address for broker in self.brokers)

    def url(self, topic: str) -> str:
        return f"kafka://{self.address}/{topic}"

    @property
    def copies(self) -> int:
        return len(self.brokers)

    @functools.cached_property
    def admin(self) -> Any:
        """A client, which has to live as long as what it was asked for."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address})

    def topic(self, *, partitions: int = 1, **config: str) -> str:
        """A new topic, with as many replicas as there are brokers, of which two are in sync unless there is one alone. Returns its name."""
        from confluent_kafka.admin import NewTopic

        name = f"topic-{secrets.token_hex(4)}"
        config = {
            "min.insync.replicas": str(min(2, self.copies)),
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        made = NewTopic(name, partitions, self.copies, config=config)
        self.admin.create_topics([made], operation_timeout=START)[name].result(START)
        return name

    def configure(self, topic: str, **config: str) -> None:
        """Changes settings of a topic."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(START)

    def until_whole(self) -> None:
        """Returns once all replicas of all partitions are in sync."""
        assert_eventually(self._whole, START)

    def _whole(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            found = self.admin.list_topics(timeout=2)
        except KafkaException:
            return False
        partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
        return len(found.brokers) == self.copies and all(len(each.isrs) == self.copies for each in partitions)

    def values(self, topic: str) -> list[bytes]:
        """Values of all committed messages of a topic, partition by partition."""
        return [message.value() for message in self.messages(topic)]

    def messages(self, topic: str) -> list[Any]:
        """All committed messages of a topic, partition by partition."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {"bootstrap.servers": self.address, "group.id": "test", "isolation.level": "read_committed"}
        reader = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
        found: list[Any] = []
        for number in reader.list_topics(topic, timeout=START).topics[topic].partitions:
            reader.assign([TopicPartition(topic, number, 0)])
            while (message := reader.poll(START)) is not None and message.error() is None:
                found.append(message)
        reader.close()
        return found


@contextmanager
def cluster(folder: Path, *, brokers: int) -> Iterator[Cluster]:
    """Skips the test without Java, or if Kafka cannot be had."""
    java = needed_java()
    scala = sorted(Path(pyspark.__file__).parent.glob("jars/scala-library-2.13*.jar"))
    classes = ":".join(map(str, [*kafka_jars(), *scala]))
    command = [java, MEMORY, *SHORT_LIVED.split(), "-cp", classes]
    identity = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    ports = [(free_port(), free_port(), free_port()) for _ in range(brokers)]
    voters = ",".join(f"{number}@127.0.0.1:{each[2]}" for number, each in enumerate(ports, 1))
    with ExitStack() as stack:
        made = []
        for number, (client, internal, controller) in enumerate(ports, 1):
            proxy = stack.enter_context(in_front_of(f"127.0.0.1:{client}"))
            settings = {
                "process.roles": "broker,controller",
                "node.id": number,
                "controller.quorum.voters": voters,
                "listeners": f"CLIENT://127.0.0.1:{client},INTERNAL://127.0.0.1:{internal},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": f"CLIENT://{proxy.address},INTERNAL://127.0.0.1:{internal}",
                "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "INTERNAL",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": folder / f"broker-{number}",
                "auto.create.topics.enable": "false",
                "group.initial.rebalance.delay.ms": 0,
                "offsets.topic.num.partitions": 3,
                "offsets.topic.replication.factor": brokers,
                "transaction.state.log.num.partitions": 3,
                "transaction.state.log.replication.factor": brokers,
                "transaction.state.log.min.isr": min(2, brokers),
                "broker.session.timeout.ms": 6000,
                "log.cleaner.backoff.ms": 200,
            }
            file = folder / f"broker-{number}.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            formatted = [*command, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(file)]
            subprocess.run(formatted, check=True, capture_output=True, timeout=START)
            child = Child(f"kafka-{number}", [*command, "kafka.Kafka", str(file)], folder / f"broker-{number}.log")
            stack.callback(child.kill)
            child.start()
            made.append(Broker(child, proxy))
        found = Cluster(made)
        for broker in made:
            broker.child.until(lambda broker=broker: _serves(broker, brokers), START)  # type: ignore[misc]
        yield found


def _serves(broker: Broker, count: int) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        admin = AdminClient({"bootstrap.servers": broker.proxy.address, "log_level": 0})
        return len(admin.list_topics(timeout=1).brokers) == count
    except KafkaException:
        return False
