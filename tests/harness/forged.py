"""Intents as a driver may send them: a valid one, and many invalid ones."""

from __future__ import annotations

from typing import Any

from sparkonce.model.record import Intent, Record

COLUMNS = '{"type":"struct","fields":[]}'
HEX = "0" * 64
TOO_LARGE = 2**31 - 1


def intent_for(record: Record, *, output: str = "orders") -> Intent:
    """The intent of a sealed transaction of this record's attempt over one slot log, which writes no rows."""
    sink_key = f"{record.key_hash}-{output}-g{record.generation}"
    slot = empty_slot(sink_key, token=record.attempt, fingerprint=record.fingerprint)
    return Intent(token=record.attempt, slots={output: slot})


def empty_slot(sink_key: str, *, token: int | str, fingerprint: str) -> dict[str, Any]:
    """A committed slot without files, as it is sealed."""
    return {
        "schema": 1,
        "state": "committed",
        "sinkKey": sink_key,
        "token": token,
        "nonce": "n1",
        "fingerprint": fingerprint,
        "files": [],
        "rows": 0,
        "onRerun": "Replace",
        "dataSchema": COLUMNS,
        "application": "app",
        "committedAt": 0.0,
        "closedBy": "",
    }


def file_of(folder: str, **change: Any) -> dict[str, Any]:
    """A data file in this folder of the write."""
    return {
        "path": f"{folder}/part-0.parquet",
        "rows": 1,
        "bytes": 1,
        "digest": f"parquet-footer-sha256:{HEX}",
    } | change


def forgeries(sound: dict[str, Any], folder: str) -> dict[str, dict[str, Any]]:
    """Slots that a driver must not seal, by name, each wrong in one place. `folder` is that of the valid slot's write."""
    other = folder.replace(sound["nonce"], "another")
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    changes: dict[str, dict[str, Any]] = {
        "a token that closes two billion slots": {"token": TOO_LARGE},
        "a token of an earlier attempt": {"token": 0},
        "a token that is no number": {"token": "1"},
        "another job's key": {"sinkKey": f"{HEX}-orders-g1"},
        "another generation": {"sinkKey": sound["sinkKey"].replace("-g1", "-g2")},
        "another job's fingerprint": {"fingerprint": "x"},
        "a closed slot": {"state": "closed"},
        "a state nobody knows": {"state": "done"},
        "no nonce": {"nonce": ""},
        "a nonce that is a path": {"nonce": "../../x"},
        "a file above the table": {"files": [file_of(folder, path="../../../../etc/hostname")], "rows": 1},
        "a file above the folder": {"files": [file_of(folder, path=f"{folder}/../x.parquet")], "rows": 1},
        "an absolute path": {"files": [file_of(folder, path="/etc/hostname")], "rows": 1},
        "a URL": {"files": [file_of(folder, path="s3://other/x.parquet")], "rows": 1},
        "a file of another write": {"files": [file_of(other)], "rows": 1},
        "a path with a NUL": {"files": [file_of(folder, path=f"{folder}/a\x00b")], "rows": 1},
        "a path with an escape": {"files": [file_of(folder, path=f"{folder}/\x1b[2J")], "rows": 1},
        "a path without end": {"files": [file_of(folder, path=f"{folder}/{'x' * 5000}")], "rows": 1},
        "a file named twice": {"files": [file_of(folder), file_of(folder)], "rows": 2},
        "more files than a slot names": {
            "files": [file_of(folder, path=f"{folder}/{n}.parquet") for n in range(33)],
            "rows": 33,
        },
        "rows that no file has": {"rows": 10**9},
        "rows below zero": {"files": [file_of(folder, rows=-1)], "rows": -1},
        "rows beyond a double": {"files": [file_of(folder, rows=2**60)], "rows": 2**60},
        "bytes below zero": {"files": [file_of(folder, bytes=-5)], "rows": 1},
        "a digest that is none": {"files": [file_of(folder, digest="x")], "rows": 1},
        "a list of files elsewhere": {
            "schema": 2,
            "listing": {"path": "_idem/x.json", "digest": HEX, "files": 1, "bytes": 1},
        },
        "a list and files": {
            "schema": 2,
            "files": [file_of(folder)],
            "rows": 1,
            "listing": {"path": f"{folder}/_files.json", "digest": HEX, "files": 1, "bytes": 1},
        },
        "a list in a slot without lists": {
            "listing": {"path": f"{folder}/_files.json", "digest": HEX, "files": 1, "bytes": 1}
        },
        "a schema of the future": {"schema": 99},
        "a stream's mark": {"stream": {"part": "end", "queryId": "q", "firstBatch": 0}},
        "a block's branch": {"branch": {"name": "idem-wap.x", "start": "1", "head": "2", "statements": 1}},
        "columns that are no JSON": {"dataSchema": "{"},
        "columns that are no schema": {"dataSchema": "[1]"},
        "columns without end": {"dataSchema": COLUMNS.replace("[]", f'["{"x" * 70000}"]')},
        "columns nested without end": {"dataSchema": "[" * 100_000},
        "partition columns without end": {"partitionBy": ["x"] * 65},
        "a table's name with an escape": {"table": "a\x1b[31m"},
        "an application's name without end": {"application": "x" * 300},
        "a time that is no number": {"committedAt": "now"},
        "an unknown field beyond JSON's numbers": {"extra": 2**70},
        "an unknown field nested without end": {"extra": deep},
    }
    return {name: {**sound, **change} for name, change in changes.items()}
