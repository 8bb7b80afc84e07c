"""What a writer tells its meter, and what Prometheus shows of it."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from harness.eventually import assert_eventually
from harness.lane_log import Broker, FakeLog
from sparkonce.errors import LaneError, WriterFenced
from sparkonce.lanes.sender import WriterOptions
from sparkonce.lanes.writer import Writer
from sparkonce.observe.lane_metrics import LaneMetrics


def test_appends_are_counted_by_outcome() -> None:
    """Applied ones with their rows; what waits, while it waits; and how the others ended."""
    registry, broker, held = CollectorRegistry(), Broker(), {"commit"}
    metrics = LaneMetrics(registry)

    def made(**options: float) -> Writer:
        settings = WriterOptions(linger=0.0, meter=metrics, **options)  # type: ignore[arg-type]
        return Writer(FakeLog(broker, lambda verb: "lost" if verb in held else "ok"), settings)

    def shown(line: str) -> bool:
        return f"sparkonce_lane_{line}\n" in generate_latest(registry).decode()

    first = made(delivery_timeout=30.0)
    assert shown('appends_total{lane="tap",outcome="unknown"} 0.0')
    assert shown('waiting_bytes{lane="tap"} 0.0')
    handle = first.append([{"n": 1}, {"n": 2}])
    assert not shown('waiting_bytes{lane="tap"} 0.0')
    assert_eventually(lambda: not shown('waiting_seconds{lane="tap"} 0.0'), 20)
    held.clear()
    handle.result(40)
    assert shown('appends_total{lane="tap",outcome="applied"} 1.0')
    assert shown('rows_total{lane="tap"} 2.0')
    assert shown('append_seconds_count{lane="tap"} 1.0')
    assert shown('waiting_seconds{lane="tap"} 0.0')
    second = made(delivery_timeout=0.2)
    with pytest.raises(WriterFenced):
        first.append({"n": 3}).result(40)
    assert shown('appends_total{lane="tap",outcome="fenced"} 1.0')
    held |= {"commit", "abandon"}
    with pytest.raises(LaneError):
        second.append({"n": 3}).result(40)
    assert shown('appends_total{lane="tap",outcome="unknown"} 1.0')
    assert shown('rows_total{lane="tap"} 2.0')
