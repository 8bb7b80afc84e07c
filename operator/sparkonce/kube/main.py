"""The life of the operator as a process: logs, signals, the HTTP face, and what remains when it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

from sparkonce.kube.operator import Operator, OperatorSettings
from sparkonce.observe.health import serve as serve_health
from sparkonce.observe.logs import configure
from sparkonce.observe.metrics import Metrics

log = logging.getLogger(__name__)

STUCK = 300.0
"""Seconds for which one look at one key may take before this process is called unhealthy: every call in it has a deadline of its own."""


async def serve(
    settings: OperatorSettings, *, http: str | None, log_format: str, signals: Sequence[signal.Signals]
) -> None:
    """Until a signal; a second one ends the process as signals do. InvalidInput, and whatever ends an operator for good."""
    configure(log_format)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(number: signal.Signals) -> None:
        log.info("%s: handing over", number.name)
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)

    for number in signals:
        loop.add_signal_handler(number, told, number)
    metrics = Metrics()
    operator = Operator(settings, meter=metrics)
    metrics.watch(operator.gauges, operator.jobs.phases)

    def healthy() -> str | None:
        hangs = operator.replica.queue.oldest_work
        return f"a look at a key has taken {hangs:.0f} s" if hangs > STUCK else None

    async with AsyncExitStack() as stack:
        if http is not None:
            await stack.enter_async_context(
                serve_health(http, ready=operator.ready, healthy=healthy, metrics=metrics.text)
            )
        log.info("operator %s of install %s on %s", operator.owner, settings.install, operator.store.url)
        gc.collect()
        gc.freeze()  # modules and schemas, which never go: the collector need not walk them again and again
        await operator.run(stop)
    log.info("handed over")
