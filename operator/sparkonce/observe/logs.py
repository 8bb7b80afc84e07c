"""Logs of a long-lived process on standard error: a line for people, or a JSON object per line for what collects them.

The standard library's logging only: kopf and aiohttp use it, and a second way of logging would have to be bridged to it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from sparkonce.errors import InvalidInput


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


def configure(form: str, *, level: int = logging.INFO) -> None:
    """`form`: text or json. InvalidInput."""
    if form not in {"text", "json"}:
        raise InvalidInput(f"--log-format is {form!r}; give text or json")
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("kopf.activities", "kopf._core", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # signals are ours on purpose
