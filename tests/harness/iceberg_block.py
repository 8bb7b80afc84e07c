"""A native block on an Iceberg table, whose engine is played by pyiceberg."""

from __future__ import annotations

import secrets
from typing import Any

import pyarrow as pa

from harness import iceberg_tables
from harness.iceberg_tables import NUMBERS, catalog
from sparkonce.blocking import run
from sparkonce.sink.iceberg.branch import branches
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.native import OpenBranch
from sparkonce.sink.protocol import CommitOutcome, SinkKey, Slot


def table_of(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def foreign_table() -> None:
    """A table of another user with the rows 0 and 1."""
    catalog().create_namespace_if_not_exists("sales")
    catalog().create_table(iceberg_tables.TABLE, NUMBERS).append(table_of(0, 1))


class Block:
    """One block of an attempt."""

    def __init__(self, sink: IcebergTableSink, key: SinkKey, token: int = 1) -> None:
        self.sink, self.key, self.token, self.nonce = sink, key, token, secrets.token_hex(16)
        found = run(sink.open_branch(key, token, nonce=self.nonce))
        assert isinstance(found, OpenBranch), found
        self.opened = found

    def append(self, *numbers: int) -> None:
        self._loaded().append(table_of(*numbers), branch=self.opened.mark.name, snapshot_properties=self._noted())

    def replace(self, old: int, new: int) -> None:
        """What an UPDATE does: it rewrites the file, with all its other rows."""
        self._loaded().overwrite(
            table_of(new), f"n == {old}", branch=self.opened.mark.name, snapshot_properties=self._noted()
        )

    def slot(self) -> Slot:
        found: Slot = run(
            self.sink.block_slot(
                self.key, self.token, nonce=self.nonce, branch=self.opened.mark, fingerprint="f", application="app"
            )
        )
        return found

    def commit(self) -> CommitOutcome:
        return run(self.sink.commit(self.key, self.slot()))

    def _loaded(self) -> Any:
        return iceberg_tables.table()

    def _noted(self) -> dict[str, str]:
        prefix = "spark.sql.iceberg.snapshot-property."
        return {name.removeprefix(prefix): text for name, text in self.opened.settings.items() if prefix in name}


def left() -> list[str]:
    """Branches of ours that the table has."""
    return [each.name for each in branches(iceberg_tables.table().metadata)]
