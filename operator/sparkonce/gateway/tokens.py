"""Caches token reviews for seconds, so that a heartbeat does not cost a TokenReview.

Keyed by the SHA-256 of the whole token; the token itself is not stored. A token that is revoked, or whose pod is deleted, is therefore
accepted for up to `KEPT` seconds longer. That can prolong an attempt lease by as much, and nothing else: seals, reports and decisions
check the pod or the right at the API server each time. A refusal is cached for one second only, against floods, because a token that
becomes valid must not wait. Errors are not cached.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

from sparkonce.commands.callers import Authenticator, Caller

KEPT = 10.0
"""Seconds for which an accepted token is cached."""
REFUSED = 1.0
"""Seconds for which a refusal is cached."""
MOST = 4096
"""Maximum cached answers, a few hundred bytes each: enough for the running drivers of many operator replicas."""
LONGEST = 16_384
"""Maximum characters of a token; service account tokens have about a thousand."""


class Tokens:
    """An Authenticator that caches the answers of another one."""

    def __init__(
        self,
        inner: Authenticator,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_answer: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_answer`: called with remembered, accepted or refused, for metrics."""
        self._inner, self._clock, self._on_answer = inner, clock, on_answer
        self._known: OrderedDict[bytes, tuple[float, Caller | None]] = OrderedDict()

    async def caller(self, token: str) -> Caller | None:
        """The token's holder; None if the API server refuses it. Raises what the inner authenticator raises."""
        if not token or len(token) > LONGEST:
            return None
        key = hashlib.sha256(token.encode()).digest()
        cached = self._known.get(key)
        if cached is not None and self._clock() < cached[0]:
            self._on_answer("remembered")
            return cached[1]
        found = await self._inner.caller(token)
        self._on_answer("accepted" if found is not None else "refused")
        self._known.pop(key, None)
        self._known[key] = self._clock() + (KEPT if found is not None else REFUSED), found
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return found
