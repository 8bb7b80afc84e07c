"""Where things stand inside a table of the slot log, and what a slot's bytes are. Pure.

    <table>/_idem/<sink key>/<token>.json             one slot
    <table>/_idem/_snapshot/<n>.json                  lists of decided slots: a cache for readers
    <table>/_data/<sink key>/<token>-<nonce>/*.parquet   what one write staged
    <table>/_streams/<sink key>/                      Spark's own checkpoint of a stream, unless the job says another place

Tokens and snapshot numbers are written with ten digits, so that names sort as numbers do. All folders begin with an underscore, which
Spark's own listing skips: `spark.read.parquet(<table>)` finds nothing, rather than rows that nobody committed.

A slot's bytes are RFC 8785 JSON, so that whoever rolls a sealed slot forward writes the very bytes its driver would have. A slot that
does not parse exists all the same: it is an error, never an empty slot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import rfc8785
from pydantic import ValidationError

from sparkonce.errors import OutputCorrupt
from sparkonce.sink.protocol import STREAM_SCHEMA, SinkKey, Slot

SLOTS = "_idem"
DATA = "_data"
SNAPSHOTS = f"{SLOTS}/_snapshot"
STAGING_DEPTH = 3
"""Parts of a staging folder's path: what is below is Spark's."""
CHECKPOINTS = "_streams"

_TOKEN = re.compile(r"(\d{10})\.json$")
_FOLDER = re.compile(r"(\d{10})-([0-9a-z]+)$")
_SINK_KEY = re.compile(r"(.+)-g(\d+)(?:-b(\d+))?$")


def slots_folder(key: SinkKey | str) -> str:
    """Of all slots of a key."""
    return f"{SLOTS}/{key}"


def slot_path(key: SinkKey | str, token: int) -> str:
    """Of one attempt's decision."""
    return f"{SLOTS}/{key}/{token:010d}.json"


def staging_folder(key: SinkKey | str, token: int, nonce: str) -> str:
    """Of one write call."""
    return f"{DATA}/{key}/{token:010d}-{nonce}"


def snapshot_path(number: int) -> str:
    """Numbers begin with 1."""
    return f"{SNAPSHOTS}/{number:010d}.json"


def numbered(path: str) -> int | None:
    """The token, or the snapshot's number, that a path ends in."""
    match = _TOKEN.match(path.rpartition("/")[2])
    return int(match[1]) if match else None


def snapshots(paths: Iterable[str]) -> list[int]:
    """Numbers of the snapshots among paths, in order."""
    return sorted(n for path in paths if path.startswith(f"{SNAPSHOTS}/") and (n := numbered(path)) is not None)


def is_slot(path: str) -> bool:
    """Whether a path below `SLOTS` is a slot's."""
    return path.count("/") == 2 and numbered(path) is not None and not path.split("/")[1].startswith("_")


def staged(folder: str) -> tuple[int, str] | None:
    """Token and nonce of a staging folder."""
    match = _FOLDER.match(folder.rpartition("/")[2])
    return (int(match[1]), match[2]) if match else None


def lineage_of(sink_key: str) -> tuple[str, int] | None:
    """What a rerun replaces, and the generation, whatever the batch: see `SinkKey`."""
    match = _SINK_KEY.match(sink_key)
    return (match[1], int(match[2])) if match else None


def batch_of(sink_key: str) -> int | None:
    """The batch whose slots these are; None for a key of its own, and for a stream's opening."""
    match = _SINK_KEY.match(sink_key)
    return int(match[3]) if match and match[3] else None


def encode(slot: Slot) -> bytes:
    """Canonical: equal slots have equal bytes."""
    return rfc8785.dumps(slot.dump())


def decode(data: bytes, *, where: str, sink_key: str, token: int) -> Slot:
    """OutputCorrupt: not a slot, another slot's content, or a later version's."""
    try:
        body = json.loads(data)
        schema = body["schema"] if isinstance(body, dict) else None
    except (ValueError, KeyError):
        schema = None
    if not isinstance(schema, int):
        raise _corrupt(where, "it is not the JSON of a slot")
    if schema > STREAM_SCHEMA:
        raise OutputCorrupt(
            f"the slot {where} has schema {schema} and this version reads up to {STREAM_SCHEMA}; upgrade sparkonce"
        )
    try:
        slot = Slot.model_validate_json(data)
    except ValidationError as invalid:
        first = invalid.errors()[0]
        raise _corrupt(where, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if (slot.sink_key, slot.token) != (sink_key, token):
        raise _corrupt(where, f"it is the slot of {slot.sink_key}, token {slot.token}")
    return slot


def _corrupt(where: str, why: str) -> OutputCorrupt:
    return OutputCorrupt(
        f"the slot {where} cannot be read ({why}); restore that file from a backup, nothing is written to its key until then"
    )
