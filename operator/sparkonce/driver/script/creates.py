"""What a `CREATE TABLE IF NOT EXISTS` of a captured script declares, and which of it sparkonce keeps when it makes the table itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from sparkonce.driver.statements import Target
from sparkonce.sink.delta.widths import DECLARED as WIDTHS
from sparkonce.sink.native import PARTITIONS

_PLAIN = {"comment", WIDTHS}
"""Metadata of a column that a table made by sparkonce keeps. Others say how values come about: defaults, identities, generated columns."""
_VERSION = ("format-version", "2")
"""The one property that a new Iceberg table cannot have otherwise."""


@dataclass(frozen=True, kw_only=True)
class DeclaredTable:
    """Columns and layout of a table that a command declares."""

    schema: str
    """Spark's JSON; widths of texts are metadata."""
    partition_by: list[tuple[str, str]] = field(default_factory=list)
    """Spark's name of the transform, and the column; empty for a transform that no new table takes."""
    provider: str = ""
    """In lower case; empty where the catalog chooses."""
    properties: dict[str, str] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    """What neither kind of table keeps, for a sentence."""
    transforms: list[str] = field(default_factory=list)
    """The partitions, as the command spells them."""
    located: bool = False

    @property
    def odd(self) -> list[str]:
        """What sparkonce cannot declare in a new Delta table."""
        named = zip(self.partition_by, self.transforms, strict=True)
        odd = [*self.rules, *(text for (transform, _), text in named if transform != "identity")]
        return [*odd, "TBLPROPERTIES"] if self.properties else odd

    @property
    def odd_in_iceberg(self) -> list[str]:
        """What sparkonce cannot declare in a new Iceberg table."""
        named = zip(self.partition_by, self.transforms, strict=True)
        odd = [*self.rules, *(text for (transform, _), text in named if transform not in PARTITIONS)]
        name, version = _VERSION
        odd += [f"{name} {self.properties[name]}"] if self.properties.get(name, version) != version else []
        odd += [f"USING {self.provider}"] if self.provider not in ("", "iceberg") else []
        return [*odd, "LOCATION"] if self.located else odd


def declared_by(target: Target) -> DeclaredTable | None:
    """What a CREATE TABLE declares; None: no columns."""
    from pyspark.sql.types import StructType

    plan, session = target.plan, target.session
    java: Any = session
    if plan.columns().isEmpty():
        return None
    widths = java._jvm.org.apache.spark.sql.catalyst.util.CharVarcharUtils  # noqa: SLF001 - Python's API has no parser
    schema = StructType.fromJson(json.loads(widths.replaceCharVarcharWithStringInSchema(plan.tableSchema()).json()))
    spec = plan.tableSpec()
    by = [plan.partitioning().apply(at) for at in range(plan.partitioning().size())]
    pairs = spec.properties().toSeq()
    properties = [pairs.apply(at) for at in range(pairs.size())]
    return DeclaredTable(
        schema=schema.json(),
        partition_by=[(str(each.name()), _column(each)) for each in by],
        provider=str(spec.provider().get()).lower() if spec.provider().isDefined() else "",
        properties={str(each._1()): str(each._2()) for each in properties},  # noqa: SLF001 - a pair of Scala's
        rules=[f"a default or rule for {each.name}" for each in schema.fields if each.metadata.keys() - _PLAIN],
        transforms=[str(each.toString()).removeprefix("temp_") for each in by],
        located=bool(spec.location().isDefined()),
    )


def _column(transform: Any) -> str:
    return ".".join(transform.references()[0].fieldNames()) if transform.name() in PARTITIONS else ""
