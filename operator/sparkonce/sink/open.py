"""From a declared output to the sink that writes it.

Takes plain data, so that owners, drivers and settle runs open the same sink from whatever they hold. It refuses what this version
does not have with one sentence that names the field; another kind is never put in its place, because a job that asked for a Delta table
must not find out later that it has none. Opening touches nothing: no folder is made and no store is asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparkonce.errors import InvalidInput, LibraryMissing, OutputUnavailable, OutputUnsupported
from sparkonce.sink.absent import Absent
from sparkonce.sink.location import objects_at
from sparkonce.sink.protocol import OnRerun, Sink
from sparkonce.sink.slots import SlotLog
from sparkonce.sink.staging import Stager

SLOT_LOG = "slotLog"
DELTA = "delta"
ICEBERG = "iceberg"

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """One entry of `spec.outputs`."""

    name: str
    kind: str
    """The field that is set: slotLog, delta, iceberg."""
    location: str
    """A path, a `file://` URI or the URL of a place on a store; a relative path is relative to the job file's folder. Iceberg:
    `<catalog>.<namespace>.<table>`."""
    on_rerun: OnRerun = OnRerun.REPLACE

    @property
    def field(self) -> str:
        return f"spec.outputs[{self.name}].{self.kind}"


def open_sink(output: Declared, *, base: str | None, stage: Stager | None = None, durable: bool = True) -> Sink:
    """The sink of a declared output.

    base: the folder that relative paths are relative to; None where there is none.
    stage: what writes the rows; Spark by default.
    durable: see FolderObjects.
    InvalidInput, OutputUnsupported: one sentence with the field; OutputUnavailable: settings of a store that make no sense. Nothing was
    touched."""
    if output.kind not in (SLOT_LOG, DELTA, ICEBERG):
        raise OutputUnsupported(
            f"{output.field}: this version writes {SLOT_LOG}, {DELTA} and {ICEBERG} outputs only; declare `slotLog: {{path: ...}}` instead"
        )
    if not _NAME.match(output.name):
        raise InvalidInput(
            f"spec.outputs[{output.name}].name becomes part of paths; use letters, digits, `-`, `_` and `.`, a letter or digit first"
        )
    if output.kind == ICEBERG:
        try:
            from sparkonce.sink.iceberg import open_iceberg
        except ModuleNotFoundError:
            raise LibraryMissing(
                f"{output.field}: the package pyiceberg is not installed; run `pip install sparkonce[iceberg]`"
            ) from None
        return open_iceberg(
            output.location,
            name=output.name,
            field=output.field,
            on_rerun=output.on_rerun,
            stage=stage,
            durable=durable,
        )
    objects = objects_at(output.location, base=base, field=f"{output.field}.path", durable=durable)
    if output.kind == DELTA:
        try:
            from sparkonce.sink.delta import open_delta
        except ModuleNotFoundError:
            raise LibraryMissing(
                f"{output.field}: the package deltalake is not installed; run `pip install sparkonce[delta]`"
            ) from None
        return open_delta(objects, name=output.name, on_rerun=output.on_rerun, stage=stage)
    return SlotLog(objects, name=output.name, on_rerun=output.on_rerun, stage=stage)


def open_or_absent(output: Declared, *, base: str | None) -> Sink:
    """For whoever watches over jobs whose outputs others write: what can be opened elsewhere only is there, and out of reach. Other errors
    as `open_sink`."""
    try:
        return open_sink(output, base=base)
    except (LibraryMissing, OutputUnavailable) as why:
        return Absent(name=output.name, kind=output.kind, uri=output.location, why=str(why))
