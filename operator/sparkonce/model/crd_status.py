"""The schema of `.status`: a projection of the record, which only the operator writes.

Written by hand, because `.status` is made by a pure function of record and object and never parsed into a model. Parts that a job or a sink
may extend (`result`, `progress`) keep unknown fields.
"""

from __future__ import annotations

from typing import Any

PHASES = ("Pending", "Running", "Recovering", "Held", "Succeeded", "Failed", "Cancelled", "Mismatch", "Expired")
ROLES = ("Leader", "Follower", "Replay")
UNWRITTEN: dict[str, Any] = {"observedGeneration": -1}
"""The status of an object before an operator has written one. Without it kstatus would call a new object Current: it would find neither
a generation that is behind nor a condition. Flux's kinds have the same default."""

Schema = dict[str, Any]


def status_schema() -> Schema:
    """The structural schema that apiextensions.k8s.io/v1 requires."""
    return {
        "type": "object",
        "default": UNWRITTEN,
        "properties": {
            "phase": _text("Phase of the job.", enum=list(PHASES)),
            "role": _text("Role of this object among those that ask for the job.", enum=list(ROLES)),
            "observedGeneration": _integer(
                "metadata.generation for which this status was written; -1: none was written yet."
            ),
            "epoch": _integer("Epoch of the ledger; raised when a person accepts a restored one.", most=2**31 - 1),
            "ledgerRevision": _integer("Revision of the ledger when this status was read from it.", most=2**48),
            "fingerprint": _text("The fingerprint that this object was answered for."),
            "requestNumber": _integer(
                "Number of this object's latest request; one more whenever its fingerprint changes."
            ),
            "key": _text("Text of the key."),
            "keyHash": _text("SHA-256 of the key, in hex."),
            "generation": _integer("Number of the current run of the key: one more for each rerun or supersede."),
            "attempt": _integer("Number of the attempt within the generation; also the fencing token."),
            "owner": _text("The operator process that drives the job."),
            "application": _text("Name of the attempt's Spark application."),
            "progress": _open("How far the attempt is: stages, rows."),
            "replayed": {
                "type": "boolean",
                "description": "The result is a recorded one: nothing was run for this object.",
            },
            "message": _text("One sentence: the outcome, the problem, or what the job waits for, and what to do."),
            "rerun": _text("Text of the annotation sparkonce.dev/rerun that got a generation last."),
            "onMismatch": _text("The policy under which another job's key was refused; an edit of it asks again."),
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
            "type": _text(
                "Complete, Failed, Reserved, Held, Mismatch, ResultGone, ResultChanged, Ready, Reconciling or Stalled."
            ),
            "status": _text("", enum=["True", "False", "Unknown"]),
            "reason": _text("One word for programs."),
            "message": _text("One sentence for people."),
            "observedGeneration": _integer("metadata.generation for which it was set."),
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
            "name": _text("Name under spec.outputs."),
            "kind": _text("slotLog, delta or iceberg."),
            "uri": _text("Location of the table."),
            "commit": _text("Identifies the commit in the table."),
            "rows": _integer("Committed rows."),
            "bytes": _integer("Committed bytes."),
            "files": _integer("Committed files."),
            "digest": _text("SHA-256 of the commit."),
            "skipped": _text("Position of its series that had been committed (onLate: Skip): nothing was written."),
        },
    }
    failure = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "class": _text("Class of the failure."),
            "message": _text("One sentence."),
            "logTail": _text("The exception in the driver's log, or its last lines; at most 1 KiB."),
        },
    }
    result = _open("Recorded once; every duplicate gets the same.")
    result["properties"] = {
        "outputs": _list(output, "What was committed."),
        "values": _open("Small values that the job recorded."),
        "attempts": _integer("Number of attempts."),
        "evidence": _text("What the outcome rests on."),
        "failure": failure,
    }
    return result


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", **({"description": description} if description else {}), **more}


def _integer(description: str, *, most: int | None = None) -> Schema:
    bounds = {} if most is None else {"minimum": 0, "maximum": most}
    return {"type": "integer", "format": "int64", **bounds, "description": description}


def _list(items: Schema, description: str) -> Schema:
    return {"type": "array", **({"description": description} if description else {}), "items": items}


def _open(description: str) -> Schema:
    return {"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": True}
