"""Logging in with a user and a password: one token for all calls, and one login at a time.

etcd's tokens end without notice: after a while unused (5 minutes by default), when a member restarts, when users or roles
change. So there is no timer; a request that is refused for its token names it, and whoever names the token that is still in
use logs in, once, while the others wait for the result: a login costs etcd some 80 ms of bcrypt. If authentication is switched
off there is no token, and none is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from sparkonce.etcd.errors import EtcdRefused, EtcdUnavailable
from sparkonce.etcd.pb import etcd_pb2 as pb

NOT_ENABLED = "authentication is not enabled"


class Login:
    def __init__(self, user: str, password: str) -> None:
        self.request = pb.AuthenticateRequest(name=user, password=password)
        self._token: str | None = None
        self._lock = asyncio.Lock()

    async def token(
        self, refused: str | None, authenticate: Callable[[], Awaitable[pb.AuthenticateResponse]], *, deadline: float
    ) -> str:
        """The token in use, unless that is the refused one; empty: etcd asks for none."""
        if self._token is not None and self._token != refused:
            return self._token
        try:
            async with asyncio.timeout(max(0.0, deadline - monotonic())):
                await self._lock.acquire()
        except TimeoutError:
            said = "etcd gave no answer to a login in time, so the request was not sent; ask again"
            raise EtcdUnavailable(said, code="DEADLINE_EXCEEDED") from None
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
