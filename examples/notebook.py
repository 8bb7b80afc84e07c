"""A job without a YAML, cell by cell: in a notebook, or from the checkout's root with `.venv/bin/python examples/notebook.py`.

Run the second cell again, restart the kernel in between, or run it in two notebooks: the rows are in the table once. A cell that raises
ends its attempt; running it again starts the next one. Another value in `parameters` with the same key is refused. Everything is written to
`examples/data/notebook`, below the current folder.
"""

# %%
from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import sparkonce

spark = SparkSession.builder.master("local[*]").getOrCreate()
lake = Path("examples/data/notebook").absolute()
lake.mkdir(parents=True, exist_ok=True)

# %%
limit = 1000
with sparkonce.job(
    "squares-of-the-first-thousand",
    outputs={"squares": f"{lake}/squares"},
    parameters={"limit": limit},
    store=f"sqlite:///{lake}/ledger.db",
) as job:
    squares = spark.range(limit).selectExpr("id", "id * id AS square")
    written = job.write(squares, "squares")
print(f"{written.rows} rows, {'written now' if written.fresh else 'recorded before'}")

# %%
sparkonce.read(spark, f"{lake}/squares").orderBy("id").show(5)
