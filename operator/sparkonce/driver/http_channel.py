"""The control channel over HTTP, for drivers in pods: calls the gateway with a service-account token issued for the gateway only.

The token is read anew for each request, because the kubelet rotates it; it is sent to the gateway only (no proxy, no redirect). Everything
that is not an answer of the ledger (no connection, a timeout, 5xx, an unknown token) is unknown: StoreUnavailable. After one the connection
is closed, so that the next request may reach another gateway.

A seal or a report is retried until it is answered, for `PATIENCE` seconds: the ledger recognises a retry. A seal that is *refused* after a
lost reply may have been sealed and rolled forward already, and a caller that trusted the refusal would delete the staged files. So that
refusal is raised once as StoreUnavailable; the caller retries and knows that a reply was lost before.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx

from sparkonce.errors import InvalidInput, ReportTooLarge, StoreUnavailable, StoreUnusable
from sparkonce.model.record import Assignment, Intent, Record
from sparkonce.store.protocol import Refused, Sealed

T = TypeVar("T")

TOKEN_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""The pod's own token, for the API server: used where the launcher projected none for the gateway (`TOKEN_ENVIRONMENT`)."""
BEAT_TIMEOUT = 5.0
"""Seconds: a slower beat is late already, and the next one follows."""
TIMEOUT = 15.0
"""Seconds for one seal or report: the gateway calls the API server and the ledger, each with its own deadline."""
LEAST_TIMEOUT = 1.0
"""Minimum timeout in seconds of any call, however little of the patience is left."""
PATIENCE = 60.0
"""Seconds for which an unanswered seal or report is retried: longer than the replacement of a gateway takes."""
PAUSE, LONGEST_PAUSE = 0.2, 3.0
"""First and longest pause between retries in seconds; doubled each time."""


class HttpChannel:
    """A `Channel` through the gateway. Used by the job's thread and the heartbeat's."""

    def __init__(
        self,
        assignment: Assignment,
        *,
        token_file: Path = TOKEN_FILE,
        patience: float = PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens no connection yet.

        Raises:
            InvalidInput: the CA in the assignment is not a certificate.
        """
        self.assignment = assignment
        self._token_file, self._patience, self._sleep, self._monotonic = token_file, patience, sleep, monotonic
        self._trust = _trust(assignment.gateway_ca)
        self._per_thread = threading.local()
        """One client per thread: a thread with a broken connection closes only its own."""
        self._path = (
            f"{assignment.gateway.rstrip('/')}/v1/attempts/{assignment.namespace}/{assignment.key_hash}"
            f"/{assignment.generation}/{assignment.attempt}"
        )

    def renew(self, progress: Mapping[str, Any]) -> bool:
        answer = self._ask("renew", {"progress": dict(progress)}, timeout=BEAT_TIMEOUT)
        return _field(answer, "current", bool)

    def seal(self, intent: Intent) -> Sealed | Refused:
        answer, lost = self._insist("seal", {"intent": intent.dump()}, answers=(200, 409))
        if answer.get("refused") is not True:
            return Sealed(_record(answer.get("record")))
        if lost:
            raise StoreUnavailable(
                "the gateway refused a seal of which an earlier answer was lost; whether it was sealed is not known"
            )
        record = answer.get("record")
        return Refused(None if record is None else _record(record), str(answer.get("reason", "")))

    def report(self, reporter: str, kind: str, body: Mapping[str, Any], *, patience: float | None = None) -> bool:
        content = {"reporter": reporter, "kind": kind, "body": dict(body)}
        answer, _lost = self._insist("report", content, patience=patience)
        return _field(answer, "recorded", bool)

    def close(self) -> None:
        """Closes the connection of the calling thread."""
        client, self._per_thread.client = getattr(self._per_thread, "client", None), None
        if client is not None:
            client.close()

    def _insist(
        self, verb: str, content: Mapping[str, Any], *, patience: float | None = None, answers: tuple[int, ...] = (200,)
    ) -> tuple[Mapping[str, Any], bool]:
        """Sends a request until it is answered; returns the answer and whether an earlier reply was lost (that request may have succeeded).

        Raises:
            StoreUnavailable: the patience is exhausted.
        """
        deadline = self._monotonic() + (self._patience if patience is None else patience)
        pause, lost = PAUSE, False
        while True:
            left = TIMEOUT if patience is None else max(LEAST_TIMEOUT, deadline - self._monotonic())
            try:
                return self._ask(verb, content, timeout=min(TIMEOUT, left), answers=answers), lost
            except StoreUnavailable:
                if self._monotonic() + pause > deadline:
                    raise
                lost = True
                self._sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _ask(
        self, verb: str, content: Mapping[str, Any], *, timeout: float, answers: tuple[int, ...] = (200,)
    ) -> Mapping[str, Any]:
        """Sends a request once."""
        body = {"nonce": self.assignment.nonce, **content}
        headers = {"Authorization": f"Bearer {self._token()}"}
        try:
            reply = self._client().post(f"{self._path}/{verb}", json=body, headers=headers, timeout=timeout)
        except (httpx.HTTPError, OSError) as problem:
            self.close()
            why = str(problem) or type(problem).__name__
            raise StoreUnavailable(
                f"the gateway {self.assignment.gateway} does not answer ({why}); whether it was done is not known"
            ) from problem
        try:
            answer = reply.json()
        except ValueError:
            answer = None
        if (
            reply.status_code in answers
            and isinstance(answer, dict)
            and (reply.status_code == 200 or "refused" in answer)
        ):
            return answer
        detail = str(answer.get("detail", "")) if isinstance(answer, dict) else ""
        why = f"the gateway answered {reply.status_code}" + (f": {detail}" if detail else "")
        full = reply.status_code == 429 and isinstance(answer, dict) and answer.get("title") == "reports-full"
        if verb == "report" and (reply.status_code == 413 or full):
            raise ReportTooLarge(f"{why} (attempt {self.assignment.attempt} of {self.assignment.key})")
        if 400 <= reply.status_code < 500 and reply.status_code not in (401, 408, 429) and isinstance(answer, dict):
            raise StoreUnusable(f"{why} (attempt {self.assignment.attempt} of {self.assignment.key})")
        self.close()
        raise StoreUnavailable(why)

    def _client(self) -> httpx.Client:
        client: httpx.Client | None = getattr(self._per_thread, "client", None)
        if client is None:
            client = self._per_thread.client = httpx.Client(verify=self._trust, trust_env=False, follow_redirects=False)
        return client

    def _token(self) -> str:
        try:
            return self._token_file.read_text().strip()
        except OSError as problem:
            raise StoreUnavailable(
                f"the driver's pod has no token at {self._token_file} ({problem.strerror}); "
                "the kubelet mounts it from the pod's volumes"
            ) from None


def _trust(ca: str) -> ssl.SSLContext:
    """Trust for a CA given as PEM text or the path of a PEM file; the machine's own authorities if it is empty."""
    try:
        if ca.lstrip().startswith("-----BEGIN"):
            return ssl.create_default_context(cadata=ca)
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError, ValueError) as problem:
        raise InvalidInput(
            f"the gateway's CA is not a PEM certificate ({problem}); name another with --gateway-ca"
        ) from None


def _record(document: object) -> Record:
    try:
        return Record.model_validate(document)
    except ValueError:
        raise StoreUnavailable("the gateway's answer cannot be read; it may have been done") from None


def _field(answer: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = answer.get(name)
    if not isinstance(value, kind):
        raise StoreUnavailable("the gateway's answer cannot be read; it may have been done")
    return value
