"""Ranges of a lane with keys, merged into a Delta table by the statement in docs/lanes.md, in a process of its own:
`python -m harness.lane_merged FOLDER JARS`. Writes the table's rows after each range, which is sent twice, to facts.json."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import sparkonce
from harness.delta_spark import session

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lanes.md"
CHANGES: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([{"id": 1, "state": "new"}, {"id": 2, "state": "new"}], []),
    ([{"id": 2, "state": "paid"}, {"id": 3, "state": "new"}], [{"id": 1}, {"id": 9}]),
    ([{"id": 1, "state": "again"}], [{"id": 3}]),
]
"""Rows appended and deleted in each range."""


def main(folder: Path, jars: str) -> None:
    found = re.search(r'"""(MERGE INTO orders .*?)"""', PAGE.read_text(), flags=re.DOTALL)
    assert found is not None
    place = folder / "orders"
    rows = pa.table({"id": pa.array([], pa.int64()), "state": pa.array([], pa.string())})
    # This engine can neither write nor read checkpoints with this Spark (it calls a removed method), so the test has none.
    write_deltalake(str(place), rows, configuration={"delta.checkpointInterval": "1000"})
    spark = session(folder, jars)
    spark.sql(f"CREATE TABLE orders USING delta LOCATION '{place}'")
    left = []
    for number, (appended, deleted) in enumerate(CHANGES):
        with sparkonce.writer(folder / "lane", name="tap", keys=["id"], linger=60.0) as writer:
            writer.append(appended)
            if deleted:
                writer.delete(deleted)
        taken = f"tap@{number + 1}-{number + 1}"
        for _ in range(2):
            output = {"orders": {"delta": {"path": str(place)}}}
            with sparkonce.job(taken, outputs=output, store=f"sqlite:///{folder}/ledger.db") as job:
                if not job.replayed:
                    changes = sparkonce.read(spark, str(folder / "lane"), batches=taken, latest=["id"])
                    changes.createOrReplaceTempView("changes")
                    job.sql(found[1], "orders")
        left.append(sorted(list(row.values()) for row in DeltaTable(str(place)).to_pyarrow_table().to_pylist()))
    (folder / "facts.json").write_text(json.dumps({"left": left, "version": DeltaTable(str(place)).version()}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
