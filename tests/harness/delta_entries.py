"""Entries of a Delta log that other engines write and delta-rs does not, written by hand."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

from deltalake import DeltaTable


def add_entry(table: Path, *actions: dict[str, Any]) -> None:
    """Writes the next version of the log."""
    version = DeltaTable(str(table)).version() + 1
    path = table / "_delta_log" / f"{version:020d}.json"
    path.write_text("".join(json.dumps(each) + "\n" for each in actions))


def forget_entries(table: Path) -> None:
    """Removes the entries of everything that was done so far, as log retention does: they are in a checkpoint, behind one more version."""
    add_entry(table, {"commitInfo": {"operation": "SET TBLPROPERTIES"}})
    DeltaTable(str(table)).create_checkpoint()
    for entry in sorted(table.glob("_delta_log/*.json"))[:-1]:
        entry.unlink()


def added(table: Path, version: int) -> list[dict[str, Any]]:
    lines = (table / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


def hide_first_row(table: Path, path: str) -> None:
    """Deletes a file's first row as an engine with deletion vectors does: the file is removed, and added with a vector."""
    entries = range(DeltaTable(str(table)).version() + 1)
    [add] = [each for version in entries for each in added(table, version) if each["path"] == path]
    removed = {"path": path, "dataChange": True, "deletionTimestamp": 1, "size": add["size"], "partitionValues": {}}
    masked = {**add, "dataChange": True, "deletionVector": vector_of_first_row()}
    add_entry(table, {"commitInfo": {"operation": "DELETE"}}, {"remove": removed}, {"add": masked})


def vector_of_first_row() -> dict[str, Any]:
    """An inline deletion vector: a 64-bit roaring bitmap that holds 0, after Delta's magic number, in Z85."""
    data = struct.pack("<IQIIIHHIH", 1681511377, 1, 0, 12346, 1, 0, 0, 16, 0)
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    theirs = letters + ".-:+=^!/*?&<>()[]{}@%$#"
    ours = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    padded = data + bytes(-len(data) % 4)
    text = base64.b85encode(padded).decode().translate(str.maketrans(ours, theirs))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": 1}
