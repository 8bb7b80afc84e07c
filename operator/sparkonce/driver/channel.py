"""The control channel: how a driver tells the ledger that it lives, what it seals, and what it has to say.

Plain calls, because job code is plain PySpark. `DirectChannel` goes straight to the store (local mode); on Kubernetes `HttpChannel`
takes its place, and the store stays private to the operator. A channel never decides: what ends an attempt is an answer of the
ledger or of an output, never silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from sparkonce.blocking import run
from sparkonce.errors import InvalidInput
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Beat, Intent, Report
from sparkonce.store.open import open_blocking
from sparkonce.store.protocol import IdempotencyStore, Refused, Sealed


class Channel(Protocol):
    """StoreUnavailable from each: unknown, ask again."""

    def renew(self, progress: Mapping[str, Any]) -> bool:
        """Keeps the attempt lease; False is an answer: this attempt is over."""
        ...

    def seal(self, intent: Intent) -> Sealed | Refused: ...

    def report(self, reporter: str, kind: str, body: Mapping[str, Any], *, patience: float | None = None) -> bool:
        """Create-once per reporter; False when something else stands there. `patience`: seconds that this report is worth; None: the
        channel's own."""
        ...


class DirectChannel:
    """Straight to a store whose calls block for milliseconds. Used by the job's thread and the heartbeat's."""

    def __init__(self, store: IdempotencyStore, assignment: Assignment) -> None:
        self.store, self.assignment = store, assignment

    def renew(self, progress: Mapping[str, Any]) -> bool:
        told = self.assignment
        beat = Beat(attempt=told.attempt, nonce=told.nonce, by="driver", progress=dict(progress))
        return run(self.store.renew(told.address, told.generation, beat))

    def seal(self, intent: Intent) -> Sealed | Refused:
        told = self.assignment
        return run(
            self.store.seal(
                told.address, generation=told.generation, token=told.attempt, nonce=told.nonce, intent=intent
            )
        )

    def report(
        self,
        reporter: str,
        kind: str,
        body: Mapping[str, Any],
        *,
        patience: float | None = None,  # noqa: ARG002 - a call is answered in milliseconds, or fails
    ) -> bool:
        told = self.assignment
        entry = Report(attempt=told.attempt, reporter=reporter, kind=kind, body=dict(body))
        return run(self.store.report(told.address, told.generation, entry))


def channel_of(assignment: Assignment, environment: Mapping[str, str]) -> Channel:
    """As the assignment says. InvalidInput: it names no way to the ledger."""
    if assignment.gateway:
        from sparkonce.driver.http_channel import TOKEN_ENVIRONMENT, TOKEN_FILE, HttpChannel  # httpx: not on a laptop

        return HttpChannel(assignment, token_file=Path(environment.get(TOKEN_ENVIRONMENT) or TOKEN_FILE))
    if not assignment.store:
        raise InvalidInput(
            f"attempt {assignment.attempt} of {assignment.key} was told no way to the ledger; "
            "run `sparkonce gateway` and start the operator with --gateway-url"
        )
    return DirectChannel(open_blocking(assignment.store, install=assignment.install), assignment)
