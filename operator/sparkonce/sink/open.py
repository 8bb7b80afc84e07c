"""Opens the sink of a declared output.

Takes plain data, so that operators, drivers and settle runs open the same sink from what each of them has. An output that this release
cannot write is refused with one sentence that names the field; another kind is never substituted: a job that declares a Delta table gets
one or fails at once. Opening does no I/O: it creates no folder and sends no request.

`open_or_absent` is for processes that observe jobs without writing their outputs: an operator without pyiceberg still runs jobs with
Iceberg tables and leaves their outputs to settle runs. Drivers never use it: for them a missing library is an error before anything runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from sparkonce.errors import InvalidInput, LibraryMissing, OutputUnavailable, OutputUnsupported
from sparkonce.model.spec import IdempotentJob, WriteMode
from sparkonce.sink.objects.cloud import parse
from sparkonce.sink.objects.location import objects_at, on_store
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import (
    PLAIN,
    CommitOutcome,
    Declared,
    Evidence,
    Inventory,
    SeriesPlace,
    Sink,
    SinkKey,
    Slot,
    Swept,
    WriteOptions,
)
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.sink.staging import Stager

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


SLOT_LOG = "slotLog"
DELTA = "delta"
ICEBERG = "iceberg"

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")


def open_sink(output: Declared, *, base: str | None, stage: Stager | None = None, durable: bool = True) -> Sink:
    """The sink of a declared output; nothing is read or written.

    base: the folder that relative paths are relative to; None refuses them.
    stage: writes the rows; Spark by default.
    durable: see `FolderObjects`.

    Raises:
        InvalidInput: an invalid name or location; names the field.
        OutputUnsupported: a kind or scheme that this release does not write; names the field.
        LibraryMissing: the library of this kind is not installed.
        OutputUnavailable: the environment's settings for the store are invalid.
    """
    if output.kind not in (SLOT_LOG, DELTA, ICEBERG):
        raise OutputUnsupported(
            f"{_path(output)}: this version writes {SLOT_LOG}, {DELTA} and {ICEBERG} outputs only; declare `slotLog: {{path: ...}}` instead"
        )
    if not _NAME.match(output.name):
        raise InvalidInput(
            f"spec.outputs[{output.name}].name becomes part of paths; use letters, digits, `-`, `_` and `.`, a letter or digit first"
        )
    if output.kind == ICEBERG:
        return _iceberg(output, stage=stage, durable=durable)
    objects = objects_at(output.location, base=base, field=f"{_path(output)}.path", durable=durable)
    if output.kind == DELTA:
        return _delta(output, objects, stage=stage)
    return SlotLogSink(objects, name=output.name, on_rerun=output.on_rerun, mode=output.mode, stage=stage)


def _path(output: Declared) -> str:
    return f"spec.outputs[{output.name}].{output.kind}"


def _iceberg(output: Declared, *, stage: Stager | None, durable: bool) -> Sink:
    try:
        from sparkonce.sink.iceberg.sink import open_iceberg
    except ModuleNotFoundError:
        raise LibraryMissing(
            f"{_path(output)}: the package pyiceberg is not installed; run `pip install sparkonce[iceberg]`"
        ) from None
    return open_iceberg(output, stage=stage, durable=durable)


def _delta(output: Declared, objects: TableObjects, *, stage: Stager | None) -> Sink:
    try:
        from sparkonce.sink.delta.sink import open_delta
    except ModuleNotFoundError:
        raise LibraryMissing(
            f"{_path(output)}: the package deltalake is not installed; run `pip install sparkonce[delta]`"
        ) from None
    return open_delta(output, objects, stage=stage)


class Absent:
    """A `Sink` that cannot, or must not, be used here: `probe` answers "not checked", every other method raises OutputUnsupported."""

    mode: WriteMode | None = None
    place: SeriesPlace | None = None

    def __init__(self, *, name: str, kind: str, uri: str, why: str, remedy: str = "") -> None:
        """`remedy`: what lets this process use it, as part of a sentence; empty: what any output out of reach needs."""
        self.name, self.kind, self.uri, self.why, self.remedy = name, kind, uri, why, remedy

    def _refuse(self) -> NoReturn:
        raise OutputUnsupported(self.why)

    async def check(self) -> None:
        self._refuse()

    async def find(self, key: SinkKey) -> Slot | None:
        del key
        self._refuse()

    async def probe(self, key: SinkKey, slot_digest: str | None) -> Evidence:
        del key, slot_digest
        return Evidence.NOT_CHECKED

    async def fence(self, key: SinkKey, token: int, *, fingerprint: str, by: str) -> Slot | None:
        del key, token, fingerprint, by
        self._refuse()

    def stage(
        self, frame: DataFrame, key: SinkKey, token: int, *, fingerprint: str, options: WriteOptions = PLAIN
    ) -> Slot:
        del frame, key, token, fingerprint, options
        self._refuse()

    async def commit(self, key: SinkKey, slot: Slot) -> CommitOutcome:
        del key, slot
        self._refuse()

    async def abort(self, key: SinkKey, slot: Slot) -> Slot:
        del key, slot
        self._refuse()

    async def discard(self, key: SinkKey, slot: Slot) -> None:
        del key, slot
        self._refuse()

    async def inventory(self) -> Inventory:
        self._refuse()

    async def sweep(self, key: SinkKey, *, more: bool = False) -> Swept:
        del key, more
        self._refuse()


def open_or_absent(output: Declared, *, base: str | None) -> Sink:
    """The sink of an output that this process does not write; `Absent` if it cannot be opened here.

    Raises:
        InvalidInput: as for `open_sink`.
        OutputUnsupported: as for `open_sink`.
    """
    try:
        return open_sink(output, base=base)
    except LibraryMissing as why:
        return Absent(name=output.name, kind=output.kind, uri=_uri(output), why=str(why))
    except OutputUnavailable as why:
        remedy = "give it the settings and credentials of that store"
        return Absent(name=output.name, kind=output.kind, uri=_uri(output), why=str(why), remedy=remedy)


def _uri(output: Declared) -> str:
    """The URI that the opened sink would have, so that results name the location alike, whichever process settled."""
    if output.kind == ICEBERG or not on_store(output.location):
        return output.location
    return parse(output.location, field=_path(output)).uri


def sinks_of(job: IdempotentJob, base: str | None, *, stager: Stager | None = None) -> dict[str, Sink]:
    """Sinks of the declared outputs, by name. Errors as `open_sink`."""
    return {each.name: open_sink(each, base=base, stage=stager) for each in declared_of(job)}


def sinks_or_absent(job: IdempotentJob, base: str | None) -> dict[str, Sink]:
    """The same for processes that do not write them: see `open_or_absent`."""
    return {each.name: open_or_absent(each, base=base) for each in declared_of(job)}


def declared_of(job: IdempotentJob) -> list[Declared]:
    series = job.spec.series
    return [
        Declared(name=o.name, kind=o.kind, location=o.location, on_rerun=o.on_rerun, mode=o.mode, series=series)
        for o in job.resolved_outputs
    ]
