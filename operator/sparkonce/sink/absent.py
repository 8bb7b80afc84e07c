"""An output of a kind whose library is not installed here: it has a name and a place, and can be neither read nor written.

For processes that watch over jobs whose outputs others write: an operator without pyiceberg runs jobs with Iceberg tables all the same,
and lets settle runs look at them. A driver never gets one: there the missing library is an error before anything runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from sparkonce.errors import OutputUnsupported
from sparkonce.sink.protocol import PLAIN, Decision, Evidence, Inventory, SinkKey, Slot, Swept, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Absent:
    """A `Sink` whose every verb is OutputUnsupported, except that what was recorded is "not checked"."""

    def __init__(self, *, name: str, kind: str, uri: str, why: str) -> None:
        self.name, self.kind, self.uri, self.why = name, kind, uri, why

    def _none(self) -> NoReturn:
        raise OutputUnsupported(self.why)

    async def check(self) -> None:
        self._none()

    async def find(self, key: SinkKey) -> Slot | None:
        del key
        self._none()

    async def probe(self, key: SinkKey, slot_digest: str | None) -> Evidence:
        del key, slot_digest
        return Evidence.NOT_CHECKED

    async def fence(self, key: SinkKey, token: int, *, fingerprint: str, by: str) -> Slot | None:
        del key, token, fingerprint, by
        self._none()

    def stage(
        self, frame: DataFrame, key: SinkKey, token: int, *, fingerprint: str, options: WriteOptions = PLAIN
    ) -> Slot:
        del frame, key, token, fingerprint, options
        self._none()

    async def commit(self, key: SinkKey, slot: Slot) -> Decision:
        del key, slot
        self._none()

    async def abort(self, key: SinkKey, slot: Slot) -> Slot:
        del key, slot
        self._none()

    async def discard(self, key: SinkKey, slot: Slot) -> None:
        del key, slot
        self._none()

    async def inventory(self) -> Inventory:
        self._none()

    async def sweep(self, key: SinkKey, *, more: bool = False) -> Swept:
        del key, more
        self._none()
