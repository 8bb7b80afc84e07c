"""A settle run: `python -m sparkonce.driver.settle`. Decides for good whether an attempt took effect, where the owner cannot.

It runs as an application of its own, next to the outputs. It has no token and stages nothing; it may close slots and roll forward the
sealed intent that it was handed *after* `settling` was written. Its report is the evidence: a positive one counts from any driver, a
negative one only from here. Exit code 0: reported; 75: unknown, another settle run is needed.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping

from sparkonce.blocking import run
from sparkonce.driver.attempt import assignment_of, sinks_of
from sparkonce.driver.channel import Channel, channel_of
from sparkonce.errors import AttemptEnded, SparkonceError
from sparkonce.model.assignment import ENVIRONMENT, Assignment
from sparkonce.model.record import Why
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.protocol import Sink
from sparkonce.sink.transaction import Settlement, settle

UNKNOWN = 75
"""EX_TEMPFAIL of sysexits.h."""


def settle_run(assignment: Assignment, sinks: Mapping[str, Sink], channel: Channel) -> Settlement:
    """Settles and reports. Raises what sinks and channel raise, AttemptEnded when there is no record; then nothing was reported."""
    end = assignment.why in (Why.CANCELLED, Why.SUPERSEDED)
    settlement = run(
        settle(
            tuple(sinks.values()),
            key_hash=assignment.key_hash,
            generation=assignment.generation,
            attempt=assignment.attempt,
            fingerprint=assignment.fingerprint,
            intent=assignment.settle,
            by="settle run",
            end=end,
        )
    )
    slots = {name: slot.dump() if slot else None for name, slot in settlement.slots.items()}
    body = {"verdict": settlement.verdict, "note": settlement.note, "slots": slots, "run": assignment.run, "end": end}
    if not channel.report(f"settle-{uuid.uuid4().hex[:12]}", "verdict", body):
        raise AttemptEnded(f"the ledger has no record that the verdict {settlement.verdict} could stand beside")
    return settlement


def main() -> int:
    text = os.environ.get(ENVIRONMENT)
    if text is None:
        print(
            "sparkonce: a settle run is started by sparkonce itself; to settle a key use `sparkonce keys resolve KEY`",
            file=sys.stderr,
        )
        return 2
    try:
        assignment = assignment_of(text)
    except SparkonceError as problem:
        print(f"sparkonce: {problem}", file=sys.stderr)
        return 2
    try:
        sinks = sinks_of(IdempotentJob.of(assignment.spec.job), assignment.spec.base)
        channel = channel_of(assignment, os.environ)
        settlement = settle_run(assignment, sinks, channel)
    except SparkonceError as problem:
        print(
            f"sparkonce: attempt {assignment.attempt} of {assignment.key} could not be settled: {problem}",
            file=sys.stderr,
        )
        return UNKNOWN
    print(
        f"sparkonce: attempt {assignment.attempt} of {assignment.key}: {settlement.verdict} {settlement.note}".rstrip()
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
