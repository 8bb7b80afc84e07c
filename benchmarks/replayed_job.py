"""The job of the replay benchmark: writes eight Parquet files with pyarrow. A replay does not depend on how they were written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from sparkonce.driver.current import current
from sparkonce.sink.staging import StagedRows

FILES = 8
ROWS = 800


def stage(frame: Any, folder: str, _: Sequence[str] = ()) -> StagedRows:
    path, schema = Path(folder.removeprefix("file://")), {"name": "n", "type": "long", "nullable": True, "metadata": {}}
    path.mkdir(parents=True)
    for part in range(FILES):
        size = ROWS // FILES
        parquet.write_table(frame.slice(part * size, size), path / f"part-{part:05d}.parquet")
    return StagedRows(rows=frame.num_rows, data_schema=json.dumps({"type": "struct", "fields": [schema]}))


if __name__ == "__main__":
    frame: Any = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    current(stager=stage).write(frame, "rows")
