"""Logs: one line per record, for people or as JSON, whatever the message."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime

import pytest

from sparkonce.errors import InvalidInput
from sparkonce.observe.log_format import configure

SCRIPT = """
import logging, sys
from sparkonce.observe.log_format import configure
configure(sys.argv[1])
configure(sys.argv[1])  # again: no line comes twice
log = logging.getLogger("sparkonce.attempt")
log.debug("not shown")
log.info("key %s of\\n%s", "a", {"realm": "team-é"})
log.warning("half \\ud800")
logging.getLogger("kopf._core.engines").info("not shown")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
"""


def said(form: str) -> list[str]:
    """Runs in a separate process, since logging is configured per process. Logs go to standard error; standard output is for answers."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, form], capture_output=True, check=True)
    assert done.stdout == b""
    return done.stderr.decode().splitlines()


def test_json_is_one_object_per_line() -> None:
    """Each record is one line that parses, with time in UTC, level, logger and message; an exception is inside its object."""
    first, second, third = [json.loads(line) for line in said("json")]
    assert (first["level"], first["logger"]) == ("INFO", "sparkonce.attempt")
    assert first["message"] == "key a of\n{'realm': 'team-é'}"
    assert datetime.fromisoformat(first["time"]).utcoffset() is not None
    assert second["message"] == "half \ud800"
    assert third["message"] == "it failed"
    assert third["exception"].splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_text_is_for_people() -> None:
    """Time, level, logger and message in one line; an exception follows as Python prints it."""
    lines = said("text")
    assert lines[0].endswith(" INFO sparkonce.attempt: key a of")
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert not any("not shown" in line for line in lines)
    assert sum("key a of" in line for line in lines) == 1


def test_another_form_is_refused() -> None:
    """One sentence lists the forms there are."""
    with pytest.raises(InvalidInput, match="--log-format is 'xml'; give text or json"):
        configure("xml")
