"""Which streams read the same source, judged by their readers' options, without a JVM (tests/driver/jvm tests the plans)."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from sparkonce.driver.source import BROKERS, file_source, other_sources, without_password
from sparkonce.sink.protocol import StreamSource, same_source


def kafka(brokers: str, **options: str) -> list[StreamSource]:
    return other_sources("kafka", {BROKERS: brokers, **options})


def share(a: list[StreamSource], b: list[StreamSource]) -> bool:
    return any(same_source(one, other) for one, other in product(a, b))


def test_a_folder_is_the_same_source_however_it_is_filtered_in_part() -> None:
    """A reader of all files includes what a filtered reader reads; two different filters count as two parts."""
    whole, some, others = (
        [file_source("file:/landing", options)]
        for options in ({}, {"pathglobfilter": "*.json"}, {"pathglobfilter": "*.csv"})
    )
    assert share(whole, some)
    assert not share(some, others)
    assert not share(whole, [file_source("file:/landing/eu", {})])


def test_a_topic_is_the_same_source_on_the_same_cluster() -> None:
    """One common broker identifies a cluster, in any order and case; a topic of the same name on another cluster is another source."""
    orders = kafka("B1:9092, b2:9092", subscribe="orders,returns")
    assert share(orders, kafka("b2:9092,b3:9092", subscribe="orders"))
    assert share(orders, kafka("b1:9092", subscribe="returns", startingoffsets="latest"))
    assert not share(orders, kafka("c1:9092", subscribe="orders"))
    assert not share(orders, kafka("b1:9092", subscribe="refunds"))


def test_partitions_of_a_topic_are_parts_of_it() -> None:
    """With `assign`, different partitions are different parts; a reader of the whole topic shares each of them."""
    some, others = (kafka("b:9092", assign=text) for text in ('{"orders": [0, 1]}', '{"orders": [2]}'))
    assert not share(some, others)
    assert share(some, kafka("b:9092", assign='{"orders": [1, 2]}'))
    assert share(some, kafka("b:9092", subscribe="orders"))
    assert share(kafka("b:9092", subscribepattern="o.*"), kafka("b:9092", subscribepattern="o.*"))


def test_a_table_is_known_by_its_name_and_a_path_by_itself() -> None:
    """Other options of the reader do not matter. A table read by name and one read by path are not known to be the same."""
    named = other_sources("iceberg", {"stream-from-timestamp": "1"}, table="lake.sales.orders")
    assert share(named, other_sources("iceberg", {"path": "lake.sales.orders"}))
    assert share(
        other_sources("delta", {"path": "s3a://lake/a"}),
        other_sources("delta", {"path": "s3a://lake/a", "startingversion": "0"}),
    )
    assert not share(named, other_sources("iceberg", {"path": "s3a://lake/orders"}))


@given(
    st.dictionaries(
        st.sampled_from(["maxOffsetsPerTrigger", "startingOffsets", "failOnDataLoss", "password", "sasl.jaas.config"]),
        st.text(max_size=5),
    )
)
def test_other_sources_are_known_by_the_options_that_say_what_is_read(extra: dict[str, str]) -> None:
    """Rates, starting points and credentials do not count, and are not recorded in any form."""
    plain = other_sources("queue", {"name": "orders"})
    assert other_sources("queue", {"name": "orders", **extra}) == plain
    assert not share(plain, other_sources("queue", {"name": "returns"}))
    assert not share(plain, other_sources("log", {"name": "orders"}))
    assert "orders" not in str(plain[0])


def test_a_password_in_a_url_is_not_recorded() -> None:
    """It is left out of the location of a folder and of a table; a container before an @ is a part of the name and stays."""
    assert file_source("s3a://reader:secret@lake/landing", {}).at == "s3a://reader@lake/landing"
    assert other_sources("delta", {"path": "s3a://reader:secret@lake/a"})[0].at == "s3a://reader@lake/a"
    for kept in ("abfss://raw@lake.dfs.core.windows.net/a", "hdfs://name:8020/a@b", "file:/a:b@c", "/a"):
        assert without_password(kept) == kept
