"""Whether this process can read and write the very outputs that drivers write. Looks at the file system, and writes nothing.

A local path is the trap: in an operator's pod it means another disk than in a driver's, unless both mount the same volume. To settle
there would find nothing, close slots on the wrong disk, and call a committed job failed. So a local folder is reached only if the table
itself stands in it; where it does not, a settle run looks, from a pod that has the job's volumes. A folder that merely exists was not
taken for enough: `/tmp` and `/data` exist in many images. An administrator who mounts every volume says so (`--settle operator`).

What is on a store or in a catalog is the same place for everybody; whether it answers here is known when it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkonce.errors import InvalidInput
from sparkonce.sink.absent import Absent
from sparkonce.sink.protocol import Sink

_TABLES = ("_idem", "_delta_log")
"""A folder with one of these is a table that somebody has written to."""


class Settles(StrEnum):
    """Who settles attempts that declare outputs."""

    AUTO = "auto"
    """The operator where it reaches all outputs, else settle runs."""
    OPERATOR = "operator"
    """It reaches every output of every job: its administrator says so."""
    RUN = "run"
    """Settle runs alone: the operator touches no output."""


def settles_as(text: str) -> Settles:
    """InvalidInput: it is none of them."""
    if text not in set(Settles):
        raise InvalidInput(f"SPARKONCE_SETTLE (--settle) is {text!r}; give one of {', '.join(Settles)}")
    return Settles(text)


def within_reach(sink: Sink, settles: Settles) -> bool:
    return not _beyond(sink, settles)


def out_of_reach(sinks: Sequence[Sink], settles: Settles) -> str:
    """Why this process cannot settle; empty: as far as can be known without asking, it can."""
    return next((why for sink in sinks if (why := _beyond(sink, settles))), "")


def _beyond(sink: Sink, settles: Settles) -> str:
    if isinstance(sink, Absent):
        return sink.why
    if settles is Settles.RUN:
        return "outputs are settled by settle runs alone (--settle run)"
    if settles is Settles.OPERATOR or not sink.uri.startswith("file:"):
        return ""
    folder = Path(unquote(urlsplit(sink.uri).path))
    if any((folder / name).is_dir() for name in _TABLES):
        return ""
    return f"output {sink.name} is the local folder {folder}, and no table stands there in this process's file system"
