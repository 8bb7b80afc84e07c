"""Unmodified Spark before a catalog that loses replies, with the proxy between them, which is killed, too: every statement succeeds, and
its rows are there once."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from harness import effort
from harness.catalog_faults import CatalogFault, FaultyCatalog, faulty, proxy
from harness.child import Child
from harness.iceberg_rest import KEYED_RUNTIME, spark_runtime
from harness.proxy import in_front_of
from harness.reply_proxy import STARTS, serves
from harness.spark import facts_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

APPLICATIONS = 2
ROUNDS = effort.size("statements on a catalog")
KILLED = effort.size("statements while a proxy is killed")
SOON = 0.3
"""Seconds in which a commit is answered, recorded and passed on: a kill in between meets any of these steps."""


def every(nth: int, struck: list[float]) -> Callable[[str, str], CatalogFault | None]:
    """A plan that strikes every nth commit or create, with each fault in turn."""

    def plan(_: str, path: str) -> CatalogFault | None:
        if "/tables" not in path:
            return None
        struck.append(time.monotonic())
        return list(CatalogFault)[len(struck) // nth % 3] if len(struck) % nth == 0 else None

    return plan


def test_two_applications_write_every_row_once(
    tmp_path: Path, upstream: FaultyCatalog, server: str, say: Callable[[str], None]
) -> None:
    """Appends to one table by both, a table and overwrites of their own; every third request meets a lost reply, a false 503 or a broken
    connection. No statement fails, no row is missing or doubled, and every file of the tables is there."""
    jar = str(spark_runtime(KEYED_RUNTIME))
    direct = RestCatalog("direct", uri=server)
    direct.create_namespace("sales")
    direct.create_table("sales.shared", pa.schema([("n", pa.int64())]), properties={"commit.retry.num-retries": "20"})
    struck: list[float] = []
    upstream.plan = every(3, struck)
    for number in range(APPLICATIONS):
        (tmp_path / str(number)).mkdir()
    with proxy(tmp_path, upstream.url) as (url, _), ThreadPoolExecutor(APPLICATIONS) as pool:
        told = list(
            pool.map(
                lambda number: facts_of(
                    "harness.keyed_spark", tmp_path / str(number), jar, url, str(number), str(ROUNDS)
                ),
                range(APPLICATIONS),
            )
        )
    assert [each["failed"] for each in told] == [{}] * APPLICATIONS
    shared = sorted(direct.load_table("sales.shared").scan().to_arrow()["n"].to_pylist())
    assert shared == [number * 1000 + each for number in range(APPLICATIONS) for each in range(ROUNDS)]
    for number in range(APPLICATIONS):
        own = direct.load_table(f"sales.own{number}").scan().to_arrow()["n"].to_pylist()
        assert own == [ROUNDS - 1, ROUNDS - 1]
    say(f"{APPLICATIONS * ROUNDS * 2} statements, {len(struck)} requests, {len(struck) // 3} faults")


@pytest.mark.soak  # what it shows of the proxy itself is in ../test_hops.py
def test_answers_that_break_off_cost_no_statement(tmp_path: Path, server: str, say: Callable[[str], None]) -> None:
    """The connection between proxy and catalog breaks in the middle of answers, again and again. Iceberg's client fails a statement whose
    answer broke off; behind the proxy none does."""
    direct = RestCatalog("direct", uri=server)
    direct.create_namespace_if_not_exists("sales")
    large = {f"property-{n}": secrets.token_hex(250) for n in range(600)}  # an answer has 300 KB, also compressed
    direct.create_table("sales.cut", pa.schema([("n", pa.int64())]), properties=large)
    jar = str(spark_runtime(KEYED_RUNTIME))
    ended = threading.Event()
    with in_front_of(server.removeprefix("http://")) as behind, proxy(tmp_path, f"http://{behind.address}") as (url, _):

        def cut_again_and_again() -> int:
            cuts = 0
            while not ended.wait(0.4):
                if behind.cut_after is None:
                    behind.cut_after, cuts = 200_000, cuts + 1
            return cuts

        with ThreadPoolExecutor(1) as hand:
            cuts = hand.submit(cut_again_and_again)
            try:
                told = facts_of("harness.keyed_spark", tmp_path, jar, url, str(APPLICATIONS + 1), "12", "cut")
            finally:
                ended.set()
    assert told["failed"] == {}
    rows = sorted(direct.load_table("sales.cut").scan().to_arrow()["n"].to_pylist())
    assert rows == [(APPLICATIONS + 1) * 1000 + each for each in range(12)]
    assert cuts.result() > 3
    say(f"{cuts.result()} answers broke off")


class Killer:
    """Kills the proxy that serves with SIGKILL, and starts it again on its port: before the catalog has an append, while the catalog
    carries it out, and within `SOON` seconds of that. Between two kills are `apart` appends, and the killed one serves again.

    Appends, because a second one is seen: overwriting the same rows twice leaves them there once.

    `hand`: an executor of one thread that outlives the requests, because a child dies with the thread that started it."""

    def __init__(self, hand: ThreadPoolExecutor, *, apart: int) -> None:
        self._hand, self._apart = hand, apart
        self._draw = random.Random(effort.seed("statements while a proxy is killed"))
        self._since = 0
        self._all_serve = True
        self.requests = self.kills = 0

    def plan_of(self, proxy: Child, url: str) -> Callable[[str, str], CatalogFault | None]:
        """The plan of a catalog before which this proxy alone is."""

        def plan(_: str, path: str) -> CatalogFault | None:
            if not path.endswith("/tables/killed"):
                return None
            self.requests += 1
            self._since += 1
            if self._since <= self._apart or not self._all_serve:
                return None
            self._since, self._all_serve = 0, False
            kind = self.kills % 3
            killed = self._hand.submit(self._kill, proxy, after=self._draw.uniform(0.0, SOON) if kind == 2 else 0.0)
            self._hand.submit(self._until_serves, proxy, url)
            if kind == 2:
                return None
            killed.result()
            return CatalogFault.BROKEN if kind == 0 else None

        return plan

    def _kill(self, proxy: Child, *, after: float) -> None:
        time.sleep(after)  # while the request goes on
        proxy.kill()
        proxy.start()
        self.kills += 1

    def _until_serves(self, proxy: Child, url: str) -> None:
        proxy.until(lambda: serves(f"{url}/v1/config"), STARTS)
        self._all_serve = True


def test_proxies_that_are_killed_under_spark_cost_no_row(
    tmp_path: Path, upstream: FaultyCatalog, server: str, say: Callable[[str], None]
) -> None:
    """Two proxies share a ledger behind a balancer. Again and again the one that serves is killed with SIGKILL and started on its port,
    while Spark appends, and overwrites another table: no statement fails, and every row is there once."""
    direct = RestCatalog("direct", uri=server)
    direct.create_namespace_if_not_exists("sales")
    direct.create_table("sales.killed", pa.schema([("n", pa.int64())]))
    jar = str(spark_runtime(KEYED_RUNTIME))
    with (
        faulty(server) as second,
        proxy(tmp_path, upstream.url) as (url, one),
        proxy(tmp_path, second.url) as (other_url, other),
        in_front_of(url.removeprefix("http://"), other_url.removeprefix("http://")) as balancer,
        ThreadPoolExecutor(1) as hand,
    ):
        killer = Killer(hand, apart=1)
        upstream.plan, second.plan = killer.plan_of(one, url), killer.plan_of(other, other_url)
        given = (jar, f"http://{balancer.address}", str(APPLICATIONS), str(KILLED), "killed")
        told = facts_of("harness.keyed_spark", tmp_path, *given)
    rows = sorted(direct.load_table("sales.killed").scan().to_arrow()["n"].to_pylist())
    assert rows == [APPLICATIONS * 1000 + each for each in range(KILLED)], told["failed"]
    assert told["failed"] == {}
    carried_out = [status for path, status in upstream.changes() + second.changes() if path.endswith("/tables/killed")]
    assert carried_out == [200] * KILLED  # no append reached the catalog twice
    own = direct.load_table(f"sales.own{APPLICATIONS}").scan().to_arrow()["n"].to_pylist()
    assert own == [KILLED - 1, KILLED - 1]
    assert killer.kills >= 3  # one of each kind
    say(f"{KILLED} appends in {killer.requests} requests, {killer.kills} kills")
