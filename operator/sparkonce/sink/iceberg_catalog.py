"""The catalog of an Iceberg table: found by its name, asked for its table, and made to prove that it keeps its word.

Properties (address, credentials, warehouse) come from where pyiceberg itself looks: `PYICEBERG_CATALOG__<NAME>__*` and `.pyiceberg.yaml`.
They are never in a job's spec, so never in a record.

Everything here rests on one thing: a catalog refuses a commit whose requirements do not hold. `honours` asks it to make a change under a
requirement that cannot hold; a catalog that makes it is refused.

pyiceberg lets the errors of whatever lies below it through (HTTP, databases, file systems). So whatever is no answer of the catalog is
`OutputUnavailable`: it proves nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog
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
from pyiceberg.utils.config import Config

from sparkonce.errors import InvalidInput, OutputUnavailable, OutputUnsafe, SparkonceError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

FORMAT = "2"
"""Iceberg's table format that pyiceberg writes; version 3 it reads only."""
PROBE = "sparkonce.probe"


@contextlib.contextmanager
def asking(what: str) -> Iterator[None]:
    """Turns whatever is no answer into OutputUnavailable; a catalog's own answers pass through."""
    try:
        yield
    except (SparkonceError, NoSuchTableError, NoSuchNamespaceError, CommitFailedException):
        raise
    except (TableAlreadyExistsError, NamespaceAlreadyExistsError):
        raise
    except (ForbiddenError, UnauthorizedError) as error:
        raise OutputUnavailable(f"{what}: the catalog refuses these credentials") from error
    except Exception as error:
        raise OutputUnavailable(f"{what}: {said(error)}") from error


def said(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _opened(name: str, properties: dict[str, str]) -> Catalog:
    """A SQL catalog looks for its tables and makes them: of two who open a new one at the same time, one finds them made in between."""
    try:
        return load_catalog(name, **properties)
    except Exception as error:
        if not type(error).__module__.startswith("sqlalchemy"):
            raise
        return load_catalog(name, **properties)


@dataclass(frozen=True)
class Place:
    """A table by its name. Making one asks nobody."""

    catalog_name: str
    identifier: tuple[str, ...]
    """Namespace, and the table's name last."""

    @property
    def uri(self) -> str:
        return ".".join((self.catalog_name, *self.identifier))

    @cached_property
    def catalog(self) -> Catalog:
        """InvalidInput: no such catalog is configured. OutputUnavailable."""
        try:
            # pyiceberg itself reads its configuration once, when it is imported; a notebook sets variables later.
            given = Config().get_catalog_config(self.catalog_name) or {}
            return _opened(self.catalog_name, {name: str(value) for name, value in given.items()})
        except (ValueError, KeyError) as error:
            name = self.catalog_name.upper()
            raise InvalidInput(
                f"the Iceberg catalog {self.catalog_name} is not configured here ({said(error)}); set PYICEBERG_CATALOG__{name}__URI "
                "and its other properties, or write them to .pyiceberg.yaml"
            ) from error
        except Exception as error:
            raise OutputUnavailable(f"cannot open the Iceberg catalog {self.catalog_name}: {said(error)}") from error

    def load(self) -> Table | None:
        """As it is now; None: the catalog answered that there is none. OutputUnavailable."""
        with asking(f"cannot load the table {self.uri}"):
            try:
                return self.catalog.load_table(self.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def make(self) -> Table:
        """The table, made without columns and rows if there is none: the first commit gives it its columns, so that a job which fails
        leaves no schema behind. Any number of callers make one. OutputUnavailable; OutputUnsafe (`honours`)."""
        if (table := self.load()) is not None:
            return table
        self._make_namespaces()
        with asking(f"cannot create the table {self.uri}"), contextlib.suppress(TableAlreadyExistsError):
            self.catalog.create_table(self.identifier, schema=Schema(), properties={"format-version": FORMAT})
        table = self.load()
        if table is None:
            raise OutputUnavailable(f"the table {self.uri} was dropped while it was created; run it again")
        self.honours(table)
        return table

    def honours(self, table: Table) -> None:
        """OutputUnsafe: this catalog ignores what a commit requires."""
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
        """OutputUnavailable when the catalog does not answer."""
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
                    # Somebody else made it, or the answer was lost: what counts is that it is there.
                    if not self.catalog.namespace_exists(part):
                        raise
