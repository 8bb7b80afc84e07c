"""The job of the replay benchmark: eight Parquet files by pyarrow. How they came to be is nothing that a replay looks at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from sparkonce.driver.attempt import current
from sparkonce.sink.staging import Written

FILES = 8
ROWS = 800


def stage(frame: Any, folder: str, _: Sequence[str] = ()) -> Written:
    path, schema = Path(folder.removeprefix("file://")), {"name": "n", "type": "long", "nullable": True, "metadata": {}}
    path.mkdir(parents=True)
    for part in range(FILES):
        size = ROWS // FILES
        parquet.write_table(frame.slice(part * size, size), path / f"part-{part:05d}.parquet")
    return Written(rows=frame.num_rows, data_schema=json.dumps({"type": "struct", "fields": [schema]}))


if __name__ == "__main__":
    frame: Any = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    current(stager=stage).write(frame, "rows")
