"""Slots without files, and a place that loses the answers of creates: for tests of ownership in which rows do not matter."""

from __future__ import annotations

from sparkonce.errors import OutputUnavailable
from sparkonce.model.spec import OnRerun
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import SinkKey, Slot, SlotState


def committing(
    key: SinkKey, token: int, *, nonce: str | None = None, fingerprint: str = "f", on_rerun: OnRerun = OnRerun.REPLACE
) -> Slot:
    """The slot that an attempt would commit."""
    return Slot(
        state=SlotState.COMMITTED,
        sink_key=str(key),
        token=token,
        nonce=nonce or f"n{token}",
        fingerprint=fingerprint,
        on_rerun=on_rerun,
    )


class Unanswered:
    """Wraps a place: loses `times` answers of creates, which took effect if `lands` and otherwise not."""

    def __init__(self, objects: TableObjects, *, times: int, lands: bool) -> None:
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
