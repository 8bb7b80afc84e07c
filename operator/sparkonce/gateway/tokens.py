"""Who holds a token, asked of the API server and remembered for seconds, so that a heartbeat does not cost a TokenReview.

Remembered under a SHA-256 of the token; the token itself is kept nowhere. The consequence: a token that is revoked, or whose pod is
deleted, is taken for good up to `KEPT` seconds longer. That may prolong an attempt lease by so much, and nothing else: whatever seals,
reports or decides looks at the pod, or asks for the right, at the API server each time. A refusal is remembered for a second only,
against floods: a token that becomes valid must not wait. What was not answered is not remembered.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

from sparkonce.engine.callers import Authenticator, Caller

KEPT = 10.0
REFUSED = 1.0
"""Seconds for which an answer is remembered."""
MOST = 4096
"""Answers remembered at once: a few hundred bytes each, and the drivers of many replicas' slots."""
LONGEST = 16_384
"""Characters of a token; those of service accounts have about a thousand."""


class Tokens:
    """An Authenticator in front of another one."""

    def __init__(
        self,
        inner: Authenticator,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_answer: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_answer`: remembered, accepted or refused, for counting."""
        self._inner, self._clock, self._on_answer = inner, clock, on_answer
        self._known: OrderedDict[bytes, tuple[float, Caller | None]] = OrderedDict()

    async def caller(self, token: str) -> Caller | None:
        if not token or len(token) > LONGEST:
            return None
        key = hashlib.sha256(token.encode()).digest()
        stands = self._known.get(key)
        if stands is not None and self._clock() < stands[0]:
            self._on_answer("remembered")
            return stands[1]
        found = await self._inner.caller(token)
        self._on_answer("accepted" if found is not None else "refused")
        self._known.pop(key, None)
        self._known[key] = self._clock() + (KEPT if found is not None else REFUSED), found
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return found
