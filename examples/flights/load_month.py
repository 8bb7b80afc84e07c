"""Load one month of flights into the table `flights`."""

from __future__ import annotations

import argparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkonce

RAW_SCHEMA = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
    hour INT, minute INT, time_hour TIMESTAMP
"""


def minutes(column: str) -> Column:
    """A number of minutes as an interval."""
    return F.make_dt_interval(mins=F.col(column))


def clean(raw: DataFrame, month: str) -> DataFrame:
    """One row per scheduled flight. Clock times such as 2400 become timestamps, computed from the scheduled hour and the known delay."""
    scheduled = F.col("time_hour") + minutes("minute")
    return raw.where(F.format_string("%04d-%02d", "year", "month") == month).select(
        F.make_date("year", "month", "day").alias("date"),
        "carrier",
        "flight",
        "tailnum",
        "origin",
        "dest",
        scheduled.alias("scheduled_departure"),
        (scheduled + minutes("dep_delay")).alias("departure"),
        "dep_delay",
        "arr_delay",
        "air_time",
        "distance",
        F.isnull("dep_time").alias("cancelled"),
    )


def main() -> None:
    """Reads, cleans and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--month", required=True, help="such as 2013-01")
    parser.add_argument("--raw", required=True, help="folder of the raw CSV files")
    args = parser.parse_args()

    job = sparkonce.current()
    spark = SparkSession.builder.getOrCreate()
    raw = spark.read.csv(
        f"{args.raw}/flights/{args.month}.csv", schema=RAW_SCHEMA, header=True, nullValue="NA", mode="FAILFAST"
    )
    written = job.write(clean(raw, args.month), "flights")
    job.result(month=args.month, rows=written.rows)


if __name__ == "__main__":
    main()
