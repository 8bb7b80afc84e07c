"""Outputs: where a job's effects appear, and what makes a commit there recognizable.

Exactly one kind per output. There is no default kind and no fallback: a job that asked for Delta never writes a slot log.
`{revision}` in a location stands for the job's revision, so that two revisions can stand side by side.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StrictInt, model_validator

from sparkonce.model.part import Part
from sparkonce.model.problems import Loc, refuse

REVISION = "{revision}"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
NAME_LENGTH = 40  # it is part of sink keys, and of Delta application ids

Location = Annotated[str, Field(min_length=1, max_length=1024)]
ColumnName = Annotated[str, Field(min_length=1, max_length=255)]


class OnRerun(StrEnum):
    REPLACE = "Replace"
    APPEND = "Append"


class SlotLog(Part):
    """Parquet files that become visible by a create-once slot; read with `sparkonce.read`."""

    path: Location
    """Folder or URL of the table."""


class Delta(Part):
    """A Delta table."""

    path: Location
    """Folder or URL of the table."""


class Iceberg(Part):
    """An Iceberg table."""

    catalog: Location
    """Name of the catalog, as Spark knows it."""
    table: Location
    """Name of the table with its namespace, `sales.orders`."""


class Expect(Part):
    """What a commit must fulfil; otherwise nothing is committed."""

    min_rows: Annotated[StrictInt, Field(ge=0)] = 0
    """Fewer rows are an error."""
    columns: Annotated[tuple[ColumnName, ...], Field(max_length=256)] = ()
    """Columns that must be there; others may."""


class Output(Part):
    name: Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, json_schema_extra={"pattern": NAME_PATTERN})]
    """What the job calls it: `job.write(df, "orders")`."""
    slot_log: SlotLog | None = None
    """Parquet files behind create-once slots."""
    delta: Delta | None = None
    """A Delta table."""
    iceberg: Iceberg | None = None
    """An Iceberg table."""
    on_rerun: OnRerun = OnRerun.REPLACE
    """What readers see after a rerun: the newest generation alone, or all of them."""
    expect: Expect = Expect()
    """What a commit must fulfil."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [kind for kind in (self.slot_log, self.delta, self.iceberg) if kind is not None]
        if len(kinds) != 1:
            found = "none is given" if not kinds else f"{len(kinds)} are given"
            refuse("Output", [((), f"must have exactly one of slotLog, delta and iceberg; {found}")])
        return self

    @property
    def kind(self) -> str:
        """As the field is called: slotLog, delta or iceberg."""
        if self.slot_log is not None:
            return "slotLog"
        return "delta" if self.delta is not None else "iceberg"

    @property
    def location(self) -> str:
        """Path, or catalog and table, in one text; unique for the place within its kind."""
        if self.iceberg is not None:
            return f"{self.iceberg.catalog}.{self.iceberg.table}"
        place = self.slot_log or self.delta
        return place.path if place is not None else ""

    @property
    def location_field(self) -> Loc:
        """Where the location stands, below the output."""
        return ("iceberg", "table") if self.iceberg is not None else (self.kind, "path")

    def with_revision(self, revision: str) -> Self:
        """The location that this revision of the job writes to."""
        change: dict[str, object] = {}
        if self.iceberg is not None:
            catalog, table = (text.replace(REVISION, revision) for text in (self.iceberg.catalog, self.iceberg.table))
            change["iceberg"] = self.iceberg.model_copy(update={"catalog": catalog, "table": table})
        else:
            change = self._moved(self.location.replace(REVISION, revision))
        return self.model_copy(update=change)

    def at(self, path: str) -> Self:
        """The same output in another folder. ValueError for Iceberg: a folder is no table of a catalog."""
        if self.iceberg is not None:
            raise ValueError("is an Iceberg table, which a folder cannot stand for")
        return self.model_copy(update=self._moved(path))

    def _moved(self, path: str) -> dict[str, object]:
        if self.slot_log is not None:
            return {"slot_log": self.slot_log.model_copy(update={"path": path})}
        return {"delta": self.delta.model_copy(update={"path": path})} if self.delta is not None else {}
