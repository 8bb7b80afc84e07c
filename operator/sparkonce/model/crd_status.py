"""The schema of `.status`: a projection of the record, which only the operator writes.

Written by hand, because `.status` is made by a pure function of record and object and is never parsed into a model of its own.
What a job or a sink may extend (`result`, `progress`) keeps unknown fields.
"""

from __future__ import annotations

from typing import Any

PHASES = ("Pending", "Running", "Recovering", "Held", "Succeeded", "Failed", "Cancelled", "Mismatch", "Expired")
ROLES = ("Leader", "Follower", "Replay")

Schema = dict[str, Any]


def status_schema() -> Schema:
    """Structural, as apiextensions.k8s.io/v1 demands."""
    return {
        "type": "object",
        "properties": {
            "phase": _text("Where the job stands.", enum=list(PHASES)),
            "role": _text("What this object is to the job.", enum=list(ROLES)),
            "observedGeneration": _integer("Of this object's metadata, when this was written."),
            "epoch": _integer("Of the ledger; raised when a person accepts a restored one."),
            "ledgerRevision": _integer("Of the ledger, when this was read from it."),
            "fingerprint": _text("The fingerprint that this object was answered for."),
            "requestNumber": _integer("Of what this object asked last; one more whenever its fingerprint changes."),
            "key": _text("As a person knows it."),
            "keyHash": _text("SHA-256 of the key, in hex."),
            "generation": _integer("A deliberate run of the key: one more for each rerun or supersede."),
            "attempt": _integer("A try within the generation; its number is the fencing token."),
            "owner": _text("The operator process that drives the job."),
            "application": _text("Name of the attempt's Spark application."),
            "progress": _open("How far the attempt is: stages, rows."),
            "replayed": {
                "type": "boolean",
                "description": "The result is a recorded one: nothing was run for this object.",
            },
            "message": _text("One sentence: what is wrong, or what is waited for, and what to do."),
            "mismatch": _list(_text("Path of a field."), "Fields in which this object differs from the recorded job."),
            "conditions": _conditions(),
            "result": _result(),
        },
    }


def _conditions() -> Schema:
    condition = {
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            "type": _text("Complete, Failed, Reserved, Held, Mismatch or ResultGone."),
            "status": _text("", enum=["True", "False", "Unknown"]),
            "reason": _text("One word for programs."),
            "message": _text("One sentence for people."),
            "observedGeneration": _integer("Of this object's metadata."),
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    }
    return _list(condition, "") | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


def _result() -> Schema:
    output = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "required": ["name"],
        "properties": {
            "name": _text("As the job declares it."),
            "kind": _text("slotLog, delta or iceberg."),
            "uri": _text("Where the table is."),
            "commit": _text("What the commit is found again by."),
            "rows": _integer("Committed rows."),
            "bytes": _integer("Committed bytes."),
            "files": _integer("Committed files."),
            "digest": _text("SHA-256 of the commit."),
        },
    }
    failure = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "class": _text("What kind of failure."),
            "message": _text("One sentence."),
            "logTail": _text("The end of the driver's log, at most 1 KiB."),
        },
    }
    result = _open("Recorded once; every duplicate gets the same.")
    result["properties"] = {
        "outputs": _list(output, "What was committed."),
        "values": _open("Small values that the job recorded."),
        "attempts": _integer("Tries that it took."),
        "evidence": _text("What the outcome rests on."),
        "failure": failure,
    }
    return result


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", **({"description": description} if description else {}), **more}


def _integer(description: str) -> Schema:
    return {"type": "integer", "format": "int64", "description": description}


def _list(items: Schema, description: str) -> Schema:
    return {"type": "array", **({"description": description} if description else {}), "items": items}


def _open(description: str) -> Schema:
    return {"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": True}
