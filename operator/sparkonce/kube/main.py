"""The life of the operator as a process: logs, signals, the HTTP face, and what remains when it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence

from sparkonce.kube.operator import Operator, OperatorSettings

log = logging.getLogger(__name__)


async def serve(
    settings: OperatorSettings, *, http: str | None, log_format: str, signals: Sequence[signal.Signals]
) -> None:
    """Until a signal; a second one ends the process as signals do."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    del log_format, http
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(number: signal.Signals) -> None:
        log.info("%s: handing over", number.name)
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)

    for number in signals:
        loop.add_signal_handler(number, told, number)
    operator = Operator(settings)
    log.info("operator %s of install %s on %s", operator.owner, settings.install, operator.store.url)
    await operator.run(stop)
    log.info("handed over")
