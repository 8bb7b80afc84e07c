"""A script as people write them: overwrites a folder of Parquet. `unchanged_script.py FOLDER ROWS`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from spark import frame_of

session = SparkSession.builder.appName("rows").getOrCreate()
frame_of(session, int(sys.argv[2])).write.mode("overwrite").parquet(sys.argv[1])
session.stop()
