"""Spark's `from_json` reads the rows of a lane on Kafka as Parquet files of the same rows are read, with every type."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lanes.test_rows import KEPT, NONE
from sparkonce.lanes.json_rows import json_texts
from sparkonce.lanes.rows import arrow_of, parquet_of, spark_schema

ODD = pa.array([math.nan, math.inf, -math.inf, -0.0, 0.1, 5e-324, 1e22, None])
CASES = {
    **{name: array for name, (array, _) in KEPT.items()},
    "odd doubles": ODD,
    "odd floats": ODD.cast(pa.float32(), safe=False),
}


@pytest.mark.spark
def test_every_type_is_read_back(spark: SparkSession, tmp_path: Path) -> None:
    """Values, nulls and nested values, one column after the other."""
    for name, array in CASES.items():
        table = arrow_of(pa.table({"c": array}), NONE)
        (tmp_path / "rows.parquet").write_bytes(parquet_of(table))
        (tmp_path / "rows.jsonl").write_bytes(b"\n".join(json_texts(table)))
        schema = StructType.fromJson(json.loads(spark_schema(table.schema)))
        texts = spark.read.text(str(tmp_path / "rows.jsonl"))
        read = texts.select(F.from_json("value", schema, {"mode": "FAILFAST"}).alias("row")).select("row.c")
        expected = spark.read.parquet(str(tmp_path / "rows.parquet"))
        assert repr(read.toArrow().to_pylist()) == repr(expected.toArrow().to_pylist()), name
        assert read.schema["c"].dataType == expected.schema["c"].dataType, name
