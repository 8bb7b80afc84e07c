"""Configures logging to standard error for long-lived processes: plain text, or one JSON object per line for log collectors.

Uses only the standard library's logging, as kopf and aiohttp do; another logging library would have to be bridged to it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from sparkonce.errors import InvalidInput


class JsonLines(logging.Formatter):
    """Formats each record as one JSON object: time (UTC), level, logger, message, exception."""

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
    """Replaces the root logger's handlers. `form`: text or json.

    Raises:
        InvalidInput: another form.
    """
    if form not in {"text", "json"}:
        raise InvalidInput(f"--log-format is {form!r}; give text or json")
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("kopf.activities", "kopf._core", "aiohttp.access", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(
        logging.ERROR
    )  # it warns that it does not handle signals; this process does
