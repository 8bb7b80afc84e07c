"""The control channel over HTTP, for drivers in pods: to the gateway, with the pod's own service-account token.

The token is read anew for each request, because the kubelet replaces it; it is sent to the gateway and to nobody else (no proxy, no
redirect). Whatever is no answer of the ledger (no connection, a timeout, 5xx, a token that is not known) is unknown: StoreUnavailable.
After one the connection is dropped, so that the next request may reach another gateway.

A seal or a report is repeated until it is answered, for `PATIENCE` seconds: the ledger recognises a repetition. One thing must not get
lost on the way: a seal that is *refused* after an unanswered one may have been sealed and rolled forward by then. Who reads the refusal
would delete what was staged, so it is raised as unknown once; the caller asks again and knows that an answer was lost before.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx

from sparkonce.errors import InvalidInput, StoreUnavailable, StoreUnusable
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Intent, Record
from sparkonce.store.protocol import Refused, Sealed

T = TypeVar("T")

TOKEN_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Where a kubelet puts it."""
TOKEN_ENVIRONMENT = "SPARKONCE_TOKEN_FILE"
"""Names another file."""
BEAT_TIMEOUT = 5.0
"""Seconds: a beat that takes longer is late already, and the next one follows."""
TIMEOUT = 15.0
"""Seconds for a seal or a report: the gateway asks the API server and the ledger, each within its own deadline."""
LEAST_TIMEOUT = 1.0
"""Seconds that any call is given, however little its sender's patience has left."""
PATIENCE = 60.0
"""Seconds for which an unanswered seal or report is repeated: longer than a gateway takes to be replaced."""
PAUSE, LONGEST_PAUSE = 0.2, 3.0
"""Seconds between two of them, doubled each time."""


class HttpChannel:
    """Used by the job's thread and the heartbeat's. Raises StoreUnavailable (unknown) and StoreUnusable (answered: not for you)."""

    def __init__(
        self,
        assignment: Assignment,
        *,
        token_file: Path = TOKEN_FILE,
        patience: float = PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """InvalidInput: the CA that the assignment names is none."""
        self.assignment = assignment
        self._token_file, self._patience, self._sleep, self._monotonic = token_file, patience, sleep, monotonic
        self._trust = _trust(assignment.gateway_ca)
        self._mine = threading.local()
        """The client of each thread: whoever meets a broken connection closes his own, and nobody else's."""
        self._path = (
            f"{assignment.gateway.rstrip('/')}/v1/attempts/{assignment.namespace}/{assignment.key_hash}"
            f"/{assignment.generation}/{assignment.attempt}"
        )

    def renew(self, progress: Mapping[str, Any]) -> bool:
        said = self._ask("renew", {"progress": dict(progress)}, timeout=BEAT_TIMEOUT)
        return _field(said, "current", bool)

    def seal(self, intent: Intent) -> Sealed | Refused:
        said, lost = self._insist("seal", {"intent": intent.dump()}, answers=(200, 409))
        if said.get("refused") is not True:
            return Sealed(_record(said.get("record")))
        if lost:
            raise StoreUnavailable(
                "the gateway refused a seal of which an earlier answer was lost; whether it was sealed is not known"
            )
        record = said.get("record")
        return Refused(None if record is None else _record(record), str(said.get("reason", "")))

    def report(self, reporter: str, kind: str, body: Mapping[str, Any], *, patience: float | None = None) -> bool:
        content = {"reporter": reporter, "kind": kind, "body": dict(body)}
        said, _lost = self._insist("report", content, patience=patience)
        return _field(said, "recorded", bool)

    def close(self) -> None:
        """The connection of the calling thread."""
        client, self._mine.client = getattr(self._mine, "client", None), None
        if client is not None:
            client.close()

    def _insist(
        self, verb: str, content: Mapping[str, Any], *, patience: float | None = None, answers: tuple[int, ...] = (200,)
    ) -> tuple[Mapping[str, Any], bool]:
        """Sent until it is answered; with the answer, whether an earlier one was lost: that one may have done it. StoreUnavailable when
        the patience is over, which the last try respects."""
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
        """Sent once."""
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
            said = reply.json()
        except ValueError:
            said = None
        if reply.status_code in answers and isinstance(said, dict) and (reply.status_code == 200 or "refused" in said):
            return said
        detail = str(said.get("detail", "")) if isinstance(said, dict) else ""
        why = f"the gateway answered {reply.status_code}" + (f": {detail}" if detail else "")
        if 400 <= reply.status_code < 500 and reply.status_code not in (401, 408, 429) and isinstance(said, dict):
            raise StoreUnusable(f"{why} (attempt {self.assignment.attempt} of {self.assignment.key})")
        self.close()
        raise StoreUnavailable(why)

    def _client(self) -> httpx.Client:
        client: httpx.Client | None = getattr(self._mine, "client", None)
        if client is None:
            client = self._mine.client = httpx.Client(verify=self._trust, trust_env=False, follow_redirects=False)
        return client

    def _token(self) -> str:
        try:
            return self._token_file.read_text().strip()
        except OSError as problem:
            raise StoreUnavailable(
                f"the driver's pod has no token at {self._token_file} ({problem.strerror}); "
                "its service account must be mounted (automountServiceAccountToken)"
            ) from None


def _trust(ca: str) -> ssl.SSLContext:
    """PEM text, the path of a file of it, or nothing: then the machine's own authorities."""
    try:
        if ca.lstrip().startswith("-----BEGIN"):
            return ssl.create_default_context(cadata=ca)
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError, ValueError) as problem:
        raise InvalidInput(
            f"the gateway's CA is no certificate in PEM ({problem}); name another with --gateway-ca"
        ) from None


def _record(document: object) -> Record:
    try:
        return Record.model_validate(document)
    except ValueError:
        raise StoreUnavailable("the gateway's answer cannot be read; it may have been done") from None


def _field(said: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = said.get(name)
    if not isinstance(value, kind):
        raise StoreUnavailable("the gateway's answer cannot be read; it may have been done")
    return value
