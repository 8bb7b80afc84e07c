"""Password authentication: one token shared by all calls, and one login at a time.

etcd invalidates tokens without notice: after idling (5 minutes by default), when a member restarts, when users or roles change. So
there is no renewal timer. A caller whose request was refused passes in the refused token; if that token is still the current one, the
caller logs in, once, while the others wait for the result: a login costs etcd some 80 ms of bcrypt. If etcd's authentication is
disabled, no token is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from sparkonce.etcd.errors import EtcdRefused, EtcdUnavailable
from sparkonce.etcd.pb import etcd_pb2 as pb

NOT_ENABLED = "authentication is not enabled"


class EtcdLogin:
    def __init__(self, user: str, password: str) -> None:
        self.request = pb.AuthenticateRequest(name=user, password=password)
        self._token: str | None = None
        self._lock = asyncio.Lock()

    async def token(
        self, refused: str | None, authenticate: Callable[[], Awaitable[pb.AuthenticateResponse]], *, deadline: float
    ) -> str:
        """The current token, after a new login if that is the refused one; empty if etcd requires none.

        Raises:
            EtcdUnavailable: no login within the deadline; the request was not sent.
            EtcdRefused: etcd rejected the user or the password.
        """
        if self._token is not None and self._token != refused:
            return self._token
        try:
            async with asyncio.timeout(max(0.0, deadline - monotonic())):
                await self._lock.acquire()
        except TimeoutError:
            message = "etcd did not answer a login in time, so the request was not sent; try again"
            raise EtcdUnavailable(message, code="DEADLINE_EXCEEDED") from None
        try:
            if self._token is None or self._token == refused:
                self._token = None  # should this login fail, the next caller tries again
                self._token = await _token(authenticate)
            return self._token
        finally:
            self._lock.release()


async def _token(authenticate: Callable[[], Awaitable[pb.AuthenticateResponse]]) -> str:
    try:
        return (await authenticate()).token
    except EtcdRefused as error:
        if NOT_ENABLED in error.details:
            return ""
        raise
