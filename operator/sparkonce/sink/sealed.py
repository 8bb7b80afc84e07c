"""Validates a sealed intent, which is input from a driver, before any process acts on it.

A driver runs code of a tenant and holds a token for its own attempt, so an intent may contain anything. The operator commits sealed slots
with its own credentials: without these checks a tenant could make it close two billion slots, publish files of another table, or raise at
the same key for ever. The gateway refuses such an intent before it is sealed; `sink.transaction.settle` checks again, because an intent may
have been sealed by an earlier release or written to the ledger by other means.

The rows themselves are not checked: a driver that lies about its own files harms only its own job. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

import rfc8785
from pydantic import ValidationError

from sparkonce.errors import InvalidInput
from sparkonce.model.record import Intent, SpecBody
from sparkonce.model.spec import OnRerun, Series, WriteMode
from sparkonce.sink import groups
from sparkonce.sink.protocol import (
    FILES_IN_SLOT,
    GROUPED_SCHEMA,
    LISTED_SCHEMA,
    REPLACING_SCHEMA,
    SLOT_SCHEMA,
    SinkKey,
    Slot,
    SlotState,
)
from sparkonce.sink.series import skips

NUMBER_LIMIT = 2**53 - 1
"""The largest count that every JSON reader keeps exactly (RFC 7493, section 2.2)."""
PATH_LIMIT = 2048
"""Characters of a file's path."""
TEXT_LIMIT = 256
"""Characters of identifiers: a table's, an application's, a partition column's."""
COLUMNS_LIMIT = 64 * 1024
"""Characters of a slot's columns."""
PARTITIONS_LIMIT = 64

FOLDERS = {"slotLog": "_data/", "delta": "so-", "iceberg": "data/so-"}
"""Prefix of a write's folder, relative to the table, by the sink's kind."""

_NONCE = re.compile(r"[0-9a-z]{1,64}")
_HEX = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"[A-Za-z0-9-]{1,64}:[0-9a-f]{32,128}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class OutputRule(NamedTuple):
    """What a sealed slot of an output must be, as its job declares it."""

    kind: str
    """The sink's kind; empty if it is not known here."""
    mode: WriteMode | None = None
    """None: the job's code chooses."""


def outputs_of(spec: SpecBody) -> dict[str, OutputRule]:
    """The declared outputs of a recorded spec, by name."""
    body = spec.job.get("spec")
    declared = body.get("outputs") if isinstance(body, dict) else None
    found = {}
    for each in declared if isinstance(declared, list) else ():
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            kind = next((kind for kind in FOLDERS if kind in each), "")
            found[each["name"]] = OutputRule(kind, next((mode for mode in WriteMode if mode == each.get("mode")), None))
    return found


def sealed_slots(
    intent: Intent, *, key_hash: str, generation: int, fingerprint: str, outputs: Mapping[str, OutputRule]
) -> dict[str, Slot]:
    """The slots of an intent, by output and in order.

    outputs: the declared outputs, by name.

    Raises: InvalidInput: the intent must not be sealed, and cannot be committed if it was; the message names the field."""
    if not 1 <= intent.token <= NUMBER_LIMIT:
        raise _invalid("token", f"{intent.token} is not a token")
    if not intent.slots:
        raise _invalid("slots", "it names no output")
    slots = {}
    for name, body in intent.slots.items():
        if name not in outputs:
            names = ", ".join(sorted(outputs)) or "none"
            raise _invalid("slots", f"{_shown(name)} is not an output of the job, which declares {names}")
        slot = _parsed(name, body)
        key = SinkKey(key_hash=key_hash, output=name, generation=generation)
        where = f"slots.{name}"
        _check_identity(slot, where, key, token=intent.token, fingerprint=fingerprint)
        _check_texts(slot, where)
        declared = outputs[name]
        if declared.kind not in FOLDERS:
            raise _invalid(where, f"an output of kind {declared.kind} takes no sealed slot")
        _check_mode(slot, where, declared)
        _check_place(slot, where)
        _check_skipped(slot, where)
        _check_files(slot, where, f"{FOLDERS[declared.kind]}{key}/{slot.token:010d}-{slot.nonce}")
        slots[name] = slot
    return slots


def _parsed(name: str, body: Mapping[str, object]) -> Slot:
    try:
        slot = Slot.model_validate_json(json.dumps(body), strict=True)
        rfc8785.dumps(slot.dump())  # as it will be written: numbers that canonical JSON lacks fail here
    except ValidationError as invalid:
        first = invalid.errors()[0]
        raise _invalid(".".join(map(str, ("slots", name, *first["loc"]))), first["msg"]) from None
    except (ValueError, TypeError, RecursionError) as error:  # rfc8785's errors are ValueErrors
        raise _invalid(f"slots.{name}", _shown(str(error))) from None
    return slot


def _check_identity(slot: Slot, where: str, key: SinkKey, *, token: int, fingerprint: str) -> None:
    for name, found, expected in (
        ("state", slot.state, SlotState.COMMITTED),
        ("sinkKey", slot.sink_key, str(key)),
        ("token", slot.token, token),
        ("fingerprint", slot.fingerprint, fingerprint),
    ):
        if found != expected:
            raise _invalid(f"{where}.{name}", f"it is {_shown(str(found))} and must be {_shown(str(expected))}")
    schemas = (SLOT_SCHEMA if slot.listing is None else LISTED_SCHEMA, GROUPED_SCHEMA)
    if slot.schema_ not in (schemas if slot.mode is None and slot.place is None else (REPLACING_SCHEMA,)):
        raise _invalid(f"{where}.schema", f"{slot.schema_} is not the schema of such a slot")
    if slot.stream is not None:
        raise _invalid(f"{where}.stream", "a transaction contains no stream")
    if slot.replaces is not None:
        raise _invalid(f"{where}.replaces", "what an overwrite replaces is decided when it is committed")
    if slot.branch is not None:
        raise _invalid(f"{where}.branch", "a transaction contains no native block")
    if not _NONCE.fullmatch(slot.nonce):
        raise _invalid(f"{where}.nonce", "it is not the nonce of a write")


def _check_place(slot: Slot, where: str) -> None:
    if slot.place is None:
        return
    try:
        Series(name=slot.place.series, position=slot.place.position)
    except ValidationError as invalid:
        raise _invalid(f"{where}.place", invalid.errors()[0]["msg"]) from None


def _check_skipped(slot: Slot, where: str) -> None:
    if slot.skipped is None:
        return
    try:
        Series(name="series", position=slot.skipped)
    except ValidationError as invalid:
        raise _invalid(f"{where}.skipped", invalid.errors()[0]["msg"]) from None
    if skips(slot.place, slot.skipped) is None:
        raise _invalid(f"{where}.skipped", "the slot is not one that is skipped after that position")
    if slot.files or slot.listing is not None or slot.mode is not None or slot.on_rerun is not OnRerun.APPEND:
        raise _invalid(f"{where}.skipped", "a skipped slot adds and replaces nothing")


def _check_mode(slot: Slot, where: str, declared: OutputRule) -> None:
    if slot.mode is WriteMode.APPEND:
        raise _invalid(f"{where}.mode", "a slot that appends has none")
    if slot.skipped is not None and slot.mode is None:
        return  # it has no rows in any mode
    mode = slot.mode or WriteMode.APPEND
    allowed = WriteMode.APPEND if declared.kind == "slotLog" else declared.mode
    if allowed is not None and mode is not allowed:
        raise _invalid(f"{where}.mode", f"it is {mode}, and the output takes {allowed} only")


def _check_texts(slot: Slot, where: str) -> None:
    for name, text in (("table", slot.table or ""), ("application", slot.application), ("closedBy", slot.closed_by)):
        if len(text) > TEXT_LIMIT or _CONTROL.search(text):
            raise _invalid(f"{where}.{name}", f"it has more than {TEXT_LIMIT} characters, or control characters")
    for name in slot.partition_by or ():
        if len(name) > TEXT_LIMIT or _CONTROL.search(name):
            raise _invalid(f"{where}.partitionBy", f"{_shown(name)} is not the name of a column")
    if len(slot.partition_by or ()) > PARTITIONS_LIMIT:
        raise _invalid(f"{where}.partitionBy", f"it names more than {PARTITIONS_LIMIT} columns")
    if len(slot.data_schema) > COLUMNS_LIMIT:
        raise _invalid(f"{where}.dataSchema", f"it has more than {COLUMNS_LIMIT} characters")
    try:
        columns = json.loads(slot.data_schema)
    except (ValueError, RecursionError):
        columns = None
    if not (isinstance(columns, dict) and columns.get("type") == "struct" and isinstance(columns.get("fields"), list)):
        raise _invalid(f"{where}.dataSchema", "it is not the JSON of a Spark schema")


def _check_files(slot: Slot, where: str, folder: str) -> None:
    if len(slot.files) > FILES_IN_SLOT:
        raise _invalid(f"{where}.files", f"a slot names at most {FILES_IN_SLOT} files; more are listed beside it")
    _check_number(f"{where}.rows", slot.rows)
    for number, file in enumerate(slot.files):
        at = f"{where}.files.{number}"
        _check_path(f"{at}.path", file.path, folder)
        if (name := groups.nameless(groups.named(file.path).values(), hashes=True)) is not None:
            raise _invalid(f"{at}.path", f"{_shown(name)} does not name a partition's value")
        _check_number(f"{at}.rows", file.rows)
        _check_number(f"{at}.bytes", file.bytes)
        if not _DIGEST.fullmatch(file.digest):
            raise _invalid(f"{at}.digest", "it is not a digest")
    if len({file.path for file in slot.files}) < len(slot.files):
        raise _invalid(f"{where}.files", "a file is named twice")
    if slot.listing is not None:
        if slot.files:
            raise _invalid(f"{where}.listing", "a slot names its files or their list, not both")
        _check_path(f"{where}.listing.path", slot.listing.path, folder)
        _check_number(f"{where}.listing.files", slot.listing.files)
        _check_number(f"{where}.listing.bytes", slot.listing.bytes)
        if not _HEX.fullmatch(slot.listing.digest):
            raise _invalid(f"{where}.listing.digest", "it is not a SHA-256")
    elif sum(file.rows for file in slot.files) != slot.rows:
        raise _invalid(f"{where}.rows", f"the files have {sum(file.rows for file in slot.files)} rows, not {slot.rows}")


def _check_path(where: str, path: str, folder: str) -> None:
    below = path.removeprefix(f"{folder}/")
    if below == path or any(part in ("", ".", "..") for part in below.split("/")):
        raise _invalid(where, f"{_shown(path)} is not in {folder}, the folder of this write")
    if len(path) > PATH_LIMIT or _CONTROL.search(path):
        raise _invalid(where, f"it has more than {PATH_LIMIT} characters, or control characters")


def _check_number(where: str, number: int) -> None:
    if not 0 <= number <= NUMBER_LIMIT:
        raise _invalid(where, f"{_shown(str(number))} is not between 0 and {NUMBER_LIMIT}")


def _shown(text: str) -> str:
    """For a message: bounded, and without control characters."""
    return _CONTROL.sub("?", text if len(text) <= 100 else f"{text[:100]}...")


def _invalid(where: str, why: str) -> InvalidInput:
    return InvalidInput(f"the transaction's {_shown(where)}: {why}")
