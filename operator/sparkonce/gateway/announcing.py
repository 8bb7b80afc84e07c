"""Announces in the ledger that this gateway serves: an entry under a lease, rewritten every two seconds while it does.

Runs on a thread of its own and probes this process's readiness over the network, as a driver would. So an event loop that hangs, a full
backlog or a lost port ends the entry, although the lease could still be renewed. Each period of service has a nonce: after any gap (no
answer, a driver that got 503, a freeze) the entry is removed and a new one begins, so that the ledger never claims more service than there
was. After SIGKILL the entry ends with its lease.

Its purpose: a driver's silence is evidence only while a gateway could have received its heartbeats (`store/roster.py`).
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import ssl
import threading
import time
import uuid
from collections.abc import Callable
from typing import cast

from sparkonce.blocking import run
from sparkonce.errors import SparkonceError
from sparkonce.store.protocol import IdempotencyStore, Lease
from sparkonce.store.roster import ANNOUNCE, SILENT, Gateway, Gateways

log = logging.getLogger(__name__)

ANSWER = 2.0
"""Seconds for our own readiness, whose answer needs no request to another service."""


class Announcer:
    def __init__(
        self,
        open_ledger: Callable[[], IdempotencyStore],
        *,
        owner: str,
        answers: Callable[[], bool],
        unanswered: Callable[[], int],
        period: float = ANNOUNCE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_ledger`: a store of this thread's own, whose verbs block. `answers`: whether this gateway is ready, asked as a client
        would. `unanswered`: how many requests of drivers got no answer so far."""
        self._open, self._owner = open_ledger, owner
        self._answers, self._unanswered, self._period = answers, unanswered, period
        self._monotonic = monotonic
        self._store: IdempotencyStore | None = None
        self._lease: Lease | None = None
        self._nonce = ""
        self._began = self._written = 0.0
        self._troubles = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkonce-announcer", daemon=True)

    @property
    def announced(self) -> bool:
        return self._lease is not None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops announcing and deletes the entry, if the ledger answers."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._period):
            try:
                self.step()
            except SparkonceError as problem:
                log.warning("cannot announce this gateway: %s", problem)
                self._withdraw()
            except Exception:
                log.exception("cannot announce this gateway")
                self._withdraw()
        self._withdraw()
        if self._store is not None:
            run(self._store.close())

    def step(self) -> None:
        """Probes readiness once; writes the entry if this process serves, else withdraws it."""
        troubles, before = self._unanswered(), self._troubles
        self._troubles = troubles
        serves = self._answers() and troubles == before
        if self._lease is not None and (not serves or self._monotonic() - self._written > SILENT):
            self._withdraw()
        if not serves:
            return
        if self._store is None:
            self._store = self._open()
        if self._lease is None:
            self._lease = run(self._store.open_lease(owner=self._owner))
            self._nonce = uuid.uuid4().hex
            self._began = self._monotonic()
        now = self._monotonic()
        entry = Gateway(nonce=self._nonce, owner=self._owner, served=now - self._began)
        run(cast("Gateways", self._store).announce_gateway(entry, lease=self._lease))
        self._written = now

    def _withdraw(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(SparkonceError):  # the entry expires with its lease, which is no longer refreshed
                run(lease.revoke())


def asks(host: str, port: int, *, tls: bool) -> Callable[[], bool]:
    """Whether /readyz of this process answers 200, over the network. The certificate is our own and is not verified."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def ready() -> bool:
        connection = (
            http.client.HTTPSConnection(host, port, timeout=ANSWER, context=context)
            if tls
            else http.client.HTTPConnection(host, port, timeout=ANSWER)
        )
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return ready
