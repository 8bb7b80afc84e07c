"""Slots without files, and a place whose create loses answers: for tests of who decides, where rows do not matter."""

from __future__ import annotations

from sparkonce.errors import OutputUnavailable
from sparkonce.sink.objects import Objects
from sparkonce.sink.protocol import OnRerun, SinkKey, Slot, SlotState


def committing(
    key: SinkKey, token: int, *, nonce: str | None = None, fingerprint: str = "f", on_rerun: OnRerun = OnRerun.REPLACE
) -> Slot:
    """What an attempt would commit."""
    return Slot(
        state=SlotState.COMMITTED,
        sink_key=str(key),
        token=token,
        nonce=nonce or f"n{token}",
        fingerprint=fingerprint,
        on_rerun=on_rerun,
    )


class Unanswered:
    """Wraps a place: each create is sent `lands` or not, and `times` answers are lost."""

    def __init__(self, objects: Objects, *, times: int, lands: bool) -> None:
        self._objects, self.times, self.lands, self.creates = objects, times, lands, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._objects, name)

    async def create(self, path: str, data: bytes) -> bool:
        self.creates += 1
        if self.times == 0:
            return await self._objects.create(path, data)
        self.times -= 1
        if self.lands:
            await self._objects.create(path, data)
        raise OutputUnavailable(f"cannot create {path}: no answer")
