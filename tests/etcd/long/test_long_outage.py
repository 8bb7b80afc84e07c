"""An outage longer than gRPC's own pauses between attempts to connect."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from etcd.test_outcomes import SLACK
from harness.etcd import Etcd
from harness.etcd_traffic import Traffic, assert_honest, eventually, start
from harness.patience import stretched
from sparkonce.etcd.client import Client


@pytest.mark.slow
def test_an_outage_of_40_seconds_is_over_when_etcd_is_back(own: Etcd, prefix: bytes) -> None:
    """However long etcd was unreachable, the client reconnects within seconds (gRPC's default would wait up to two minutes)."""

    async def body() -> None:
        client = Client.open(own.endpoints)
        traffic = Traffic(client, prefix, writers=2)
        await traffic.goes_well()
        own.one.kill()
        away_since = monotonic()
        await eventually(lambda: monotonic() - away_since > 40, 60)
        await start(own.one)
        back = monotonic()
        await traffic.goes_well(timeout=5)
        assert monotonic() - back < 2.5 + stretched(SLACK)  # our option for gRPC's longest pause
        await traffic.stop()
        await client.close()
        assert_honest(traffic.told, own.versions(prefix))

    asyncio.run(body())
