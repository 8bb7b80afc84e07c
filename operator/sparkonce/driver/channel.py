"""The control channel from a driver to the ledger: heartbeats, seals and reports; and what a write returns.

Calls are synchronous, because job code is plain PySpark. `DirectChannel` calls the store itself (local mode); on Kubernetes `HttpChannel`
calls the gateway, and only operator and gateway reach the store. A channel never decides: an attempt is ended by an answer of the ledger
or of an output, never by silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sparkonce.blocking import run
from sparkonce.errors import InvalidInput
from sparkonce.model.record import LEDGER_ENVIRONMENT, TOKEN_ENVIRONMENT, Assignment, Beat, Intent, Report
from sparkonce.store.open import is_postgres, open_blocking
from sparkonce.store.protocol import IdempotencyStore, Refused, Sealed


class Channel(Protocol):
    """The control channel of one attempt.

    Raises, from every method:
        StoreUnavailable: unknown whether the call took effect; repeat it.
        StoreUnusable: the ledger refuses this caller.
    """

    def renew(self, progress: Mapping[str, Any]) -> bool:
        """Renews the attempt lease. False means that this attempt is over."""
        ...

    def seal(self, intent: Intent) -> Sealed | Refused:
        """Seals a transaction: its slots are final from then on."""
        ...

    def report(self, reporter: str, kind: str, body: Mapping[str, Any], *, patience: float | None = None) -> bool:
        """Creates a report, once per `reporter`; False if another report has that name, or the record is gone. Raises also ReportTooLarge:
        it is not stored, and will not be.

        patience: seconds for which it may be retried; None for the channel's default.
        """
        ...


class DirectChannel:
    """Calls a store that blocks for milliseconds. Used by the job's thread and the heartbeat's."""

    def __init__(self, store: IdempotencyStore, assignment: Assignment) -> None:
        self.store, self.assignment = store, assignment

    def renew(self, progress: Mapping[str, Any]) -> bool:
        assigned = self.assignment
        beat = Beat(attempt=assigned.attempt, nonce=assigned.nonce, by="driver", progress=dict(progress))
        return run(self.store.renew(assigned.address, assigned.generation, beat))

    def seal(self, intent: Intent) -> Sealed | Refused:
        assigned = self.assignment
        return run(
            self.store.seal(
                assigned.address,
                generation=assigned.generation,
                token=assigned.attempt,
                nonce=assigned.nonce,
                intent=intent,
            )
        )

    def report(
        self,
        reporter: str,
        kind: str,
        body: Mapping[str, Any],
        *,
        patience: float | None = None,  # noqa: ARG002 - a call returns or fails within milliseconds
    ) -> bool:
        assigned = self.assignment
        entry = Report(attempt=assigned.attempt, reporter=reporter, kind=kind, body=dict(body))
        return run(self.store.report(assigned.address, assigned.generation, entry))


def channel_of(assignment: Assignment, environment: Mapping[str, str]) -> Channel:
    """The channel that the assignment names.

    Raises:
        InvalidInput: it names neither a gateway nor a store.
    """
    if assignment.gateway:
        from sparkonce.driver.http_channel import TOKEN_FILE, HttpChannel  # httpx: not on a laptop

        return HttpChannel(assignment, token_file=Path(environment.get(TOKEN_ENVIRONMENT) or TOKEN_FILE))
    if not assignment.store:
        raise InvalidInput(
            f"the assignment of attempt {assignment.attempt} of {assignment.key} names neither a gateway nor a store; "
            "run `sparkonce gateway` and start the operator with --gateway-url"
        )
    url = environment.get(LEDGER_ENVIRONMENT) or assignment.store
    later = {"at_first_use": True} if is_postgres(url) else {}  # an outage while a driver starts is silence, too
    return DirectChannel(open_blocking(url, install=assignment.install, **later), assignment)


@dataclass(frozen=True)
class Written:
    """The committed content of an output after a write."""

    output: str
    uri: str
    rows: int
    bytes: int
    fresh: bool
    """False: an earlier attempt or run of this key committed it; the DataFrame was not run, or its rows were discarded."""
    skipped: str = ""
    """Position of its series that had been committed (`onLate: Skip`): the output got no rows from this job. Empty: it was not skipped."""
