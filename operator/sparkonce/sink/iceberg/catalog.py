"""Opens Iceberg catalogs, loads and creates tables, and checks that a catalog enforces the requirements of commits.

Properties (address, credentials, warehouse) come from where pyiceberg itself looks: `PYICEBERG_CATALOG__<NAME>__*` and `.pyiceberg.yaml`.
They are never in a job's spec, so never in a record.

Exactly-once rests on one property: a catalog refuses a commit whose requirements do not hold. `honours` requests a change under a
requirement that cannot hold; a catalog that makes it is refused.

pyiceberg passes on errors of the layers below (HTTP, databases, file systems). Any error that is not an answer of the catalog becomes
`OutputUnavailable`: it proves nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyiceberg.catalog import MetastoreCatalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate
from pyiceberg.types import DoubleType
from pyiceberg.utils.config import Config

from sparkonce.errors import InvalidInput, OutputUnavailable, OutputUnsafe, SparkonceError
from sparkonce.sink.iceberg.objects import is_place

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

FORMAT = "2"
"""The format version that pyiceberg writes; it only reads version 3."""
PROBE = "sparkonce.probe"


@contextlib.contextmanager
def asking(what: str) -> Iterator[None]:
    """Turns errors that are not answers into OutputUnavailable; the catalog's own answers pass through."""
    try:
        yield
    except (SparkonceError, NoSuchTableError, NoSuchNamespaceError, CommitFailedException):
        raise
    except (TableAlreadyExistsError, NamespaceAlreadyExistsError):
        raise
    except (ForbiddenError, UnauthorizedError) as error:
        raise OutputUnavailable(f"{what}: the catalog refuses these credentials") from error
    except Exception as error:
        raise OutputUnavailable(f"{what}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """First line of an error's text, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def is_absolute(location: str) -> bool:
    """Whether a path or URL means the same place to every reader. `file://warehouse/x` names a host, which readers treat differently."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return parts.path.startswith("/") and not parts.netloc
    return True


def _opened(name: str, properties: dict[str, str]) -> Catalog:
    """Loads the catalog. A SQL catalog checks for its tables and creates them: of two processes that open a new one at once, one fails."""
    try:
        return load_catalog(name, **properties)
    except Exception as error:
        if not type(error).__module__.startswith("sqlalchemy"):
            raise
        return load_catalog(name, **properties)


@dataclass(frozen=True)
class CatalogTable:
    """A table by its name; the constructor sends no request."""

    catalog_name: str
    identifier: tuple[str, ...]
    """Namespace, followed by the table's name."""

    @property
    def uri(self) -> str:
        return ".".join((self.catalog_name, *self.identifier))

    @cached_property
    def catalog(self) -> Catalog:
        """The opened catalog.

        Raises:
            InvalidInput: no such catalog is configured here.
            OutputUnavailable: the catalog cannot be opened.
        """
        try:
            # pyiceberg reads its configuration once, on import; a notebook may set variables later.
            given = Config().get_catalog_config(self.catalog_name) or {}
            return _opened(self.catalog_name, {name: str(value) for name, value in given.items()})
        except (ValueError, KeyError) as error:
            name = self.catalog_name.upper()
            raise InvalidInput(
                f"the Iceberg catalog {self.catalog_name} is not configured here ({first_line(error)}); set PYICEBERG_CATALOG__{name}__URI "
                "and its other properties, or write them to .pyiceberg.yaml"
            ) from error
        except Exception as error:
            raise OutputUnavailable(
                f"cannot open the Iceberg catalog {self.catalog_name}: {first_line(error)}"
            ) from error

    def load(self) -> Table | None:
        """The current table; None if the catalog answered that there is none.

        Raises:
            OutputUnavailable: the catalog did not answer.
            InvalidInput: the table's metadata names no place.
        """
        with asking(f"cannot load the table {self.uri}"):
            try:
                table = self.catalog.load_table(self.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            if not is_place(table.location()):
                raise InvalidInput(
                    f"the table {self.uri} has the location {table.location()!r} in its metadata {table.metadata_location}, which is "
                    "neither an absolute path nor a URL; restore that file from a backup, or set the table's location in its catalog"
                )
            _read_exactly(table.metadata)
            return table

    def placed(self) -> None:
        """Checks that tables of this catalog lie where Spark and pyiceberg both find them. A catalog server chooses places by itself.

        Raises:
            InvalidInput: the warehouse is not an absolute location.
        """
        warehouse = self.catalog.properties.get("warehouse")
        if warehouse and isinstance(self.catalog, MetastoreCatalog) and not is_absolute(warehouse):
            raise InvalidInput(
                f"the warehouse of the Iceberg catalog {self.catalog_name} is {warehouse}, where Spark and pyiceberg would write to "
                "different folders; give an absolute location, as file:///data/warehouse or s3://bucket/warehouse"
            )

    def make(self) -> Table:
        """The table, created without columns if it does not exist: the first commit adds the columns, so that a failed job leaves no
        schema behind. Concurrent callers create one table.

        Raises:
            InvalidInput: see `placed`.
            OutputUnavailable: the catalog did not answer.
            OutputUnsafe: see `honours`.
        """
        if (table := self.load()) is not None:
            return table
        self.placed()
        self._make_namespaces()
        with asking(f"cannot create the table {self.uri}"), contextlib.suppress(TableAlreadyExistsError):
            self.catalog.create_table(self.identifier, schema=Schema(), properties={"format-version": FORMAT})
        table = self.load()
        if table is None:
            raise OutputUnavailable(f"the table {self.uri} was dropped while it was created; run it again")
        self.honours(table)
        return table

    def honours(self, table: Table) -> None:
        """Checks that the catalog enforces requirements.

        Raises:
            OutputUnsafe: it made a change whose requirement does not hold.
            OutputUnavailable: it did not answer.
        """
        impossible = AssertRefSnapshotId(ref=PROBE, snapshot_id=1)
        with (
            asking(f"cannot ask the catalog of {self.uri} whether it checks requirements"),
            contextlib.suppress(CommitFailedException),
        ):
            self.catalog.commit_table(table, (impossible,), (SetPropertiesUpdate(updates={PROBE: "accepted"}),))
            raise OutputUnsafe(
                f"the catalog {self.catalog_name} makes changes whose requirements do not hold, so exactly-once cannot be kept in "
                f"{self.uri}; use another catalog"
            )

    def reachable(self) -> None:
        """Checks that the catalog answers.

        Raises:
            OutputUnavailable: it does not.
        """
        with asking(f"cannot reach the Iceberg catalog {self.catalog_name}"):
            self.catalog.namespace_exists(self.identifier[:-1])

    def _make_namespaces(self) -> None:
        namespace = self.identifier[:-1]
        for depth in range(1, len(namespace) + 1):
            part = namespace[:depth]
            with asking(f"cannot create the namespace {'.'.join(part)} of {self.catalog_name}; create it there"):
                if self.catalog.namespace_exists(part):
                    continue
                try:
                    self.catalog.create_namespace(part)
                except Exception:
                    # Created by another process, or by us with a lost reply: it only has to exist.
                    if not self.catalog.namespace_exists(part):
                        raise


def _read_exactly(metadata: TableMetadata) -> None:
    """pyiceberg 0.12.0's fast decoder reads doubles in single precision, and it writes a manifest anew with what it has read: partitions by
    a double, of other writers too, would get other values. The slower one, for this process from now on, reads them as they are."""
    from pyiceberg.avro import file
    from pyiceberg.avro.decoder import StreamingBinaryDecoder

    sources = {field.source_id for spec in metadata.partition_specs for field in spec.fields}
    kinds = []
    for schema in metadata.schemas:
        for source in sources:
            with contextlib.suppress(ValueError):  # of a column that this schema does not have
                kinds.append(schema.find_type(source))
    if any(isinstance(kind, DoubleType) for kind in kinds):
        file.new_decoder = StreamingBinaryDecoder  # type: ignore[attr-defined,assignment] # a function of the same argument
