"""A settle run: `python -m sparkonce.driver.settle`. Makes the final decision whether an attempt took effect when the operator cannot
reach the output.

Runs as an application of its own, with the job's volumes and credentials. It has no token and stages nothing; it may close slots and roll
forward the sealed intent that it got *after* `settling` was written. Its report is the evidence: a positive verdict counts from any driver,
a negative one only from a settle run. Exit code 0: reported; 75: unknown, another settle run is needed.

Outputs and gateways that do not answer are retried for a while (SPARKONCE_PATIENCE): starting another pod costs more, and after three
failed settle runs the key is Held.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar

from sparkonce import settings
from sparkonce.blocking import run
from sparkonce.driver.channel import Channel, channel_of
from sparkonce.driver.current import assignment_of
from sparkonce.errors import AttemptEnded, OutputUnavailable, SparkonceError, StoreUnavailable
from sparkonce.model.record import ENVIRONMENT, Assignment, Why
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.open import sinks_of
from sparkonce.sink.protocol import Sink
from sparkonce.sink.transaction import Settlement, settle

UNKNOWN = 75
"""EX_TEMPFAIL of sysexits.h."""
PATIENCE = 60.0
"""Seconds of retries unless SPARKONCE_PATIENCE overrides it: covers a restart of a store or of all gateways; three settle runs with the
pauses between them cover an outage of minutes."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between retries, doubled each time: many settle runs may wait for one store."""

T = TypeVar("T")


def settle_run(assignment: Assignment, sinks: Mapping[str, Sink], channel: Channel) -> Settlement:
    """Settles the attempt and reports the verdict.

    Raises:
        AttemptEnded: the record is gone; nothing was reported.
        SparkonceError: what sinks and channel raise; nothing was reported.
    """
    end = assignment.why in (Why.CANCELLED, Why.SUPERSEDED)
    settlement = _patiently(
        lambda: run(
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
    )
    reporter = f"settle-{uuid.uuid4().hex[:12]}"
    slots = {name: slot.dump() if slot else None for name, slot in settlement.slots.items()}
    body = {"verdict": settlement.verdict, "note": settlement.note, "slots": slots, "run": assignment.run, "end": end}
    if not _patiently(lambda: channel.report(reporter, "verdict", body)):
        raise AttemptEnded(f"the ledger has no record for the verdict {settlement.verdict}")
    return settlement


def _patiently(call: Callable[[], T]) -> T:
    """Retries a call. Both calls here are idempotent: settling finds its earlier effects, and a report is written once under its name."""
    deadline, pause = time.monotonic() + settings.patience(PATIENCE), FIRST_PAUSE
    while True:
        try:
            return call()
        except (OutputUnavailable, StoreUnavailable):
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


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
