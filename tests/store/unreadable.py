"""Texts that this version cannot read as a record, each made from a valid record."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sparkonce.model.record import READER, Record
from store.samples import address_of

Text = Callable[[Record], str]


def dumped(record: Record, **change: Any) -> str:
    return json.dumps(record.dump() | change)


BROKEN: dict[str, Text] = {
    "no JSON": lambda record: dumped(record)[:-1],
    "empty": lambda record: "",
    "no record": lambda record: "[]",
    "field missing": lambda record: json.dumps({k: v for k, v in record.dump().items() if k != "nonce"}),
    "field of another type": lambda record: dumped(record, generation="first"),
    "unknown state": lambda record: dumped(record, state="Elsewhere"),
    "another key's": lambda record: dumped(record, keyHash=address_of("another").key_hash),
}
NEWER: dict[str, Text] = {
    "reads alike": lambda record: dumped(record, minReader=READER + 1, schema=7),
    "reads otherwise": lambda record: dumped(record, minReader=READER + 1, state="Elsewhere", attempt={"major": 1}),
}
