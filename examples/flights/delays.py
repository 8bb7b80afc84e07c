"""From the table `flights`: delays per carrier and day beside that day's weather, and each carrier's totals."""

from __future__ import annotations

import argparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkonce

WEATHER_SCHEMA = """
    origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, wind_dir DOUBLE,
    wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP
"""
LATE = 15  # minutes after which an arrival counts as late


def daily_weather(hourly: DataFrame) -> DataFrame:
    """One row per airport and day."""
    return hourly.groupBy("origin", F.make_date("year", "month", "day").alias("date")).agg(
        F.mean("wind_speed").alias("wind_speed"),
        F.sum("precip").alias("precipitation"),
        F.min("visib").alias("visibility"),
    )


def flight_totals() -> list[Column]:
    """Numbers of flights and mean delays, for any grouping."""
    return [
        F.count("*").alias("flights"),
        F.count_if("cancelled").alias("cancelled"),
        F.count_if(F.col("arr_delay") > LATE).alias("late"),
        F.mean("dep_delay").alias("mean_dep_delay"),
        F.mean("arr_delay").alias("mean_arr_delay"),
    ]


def per_carrier_and_day(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """The weather at each flight's airport counts once per flight: on a day with more departures from Newark, Newark's wind weighs more."""
    means = [F.mean(name).alias(name) for name in ("wind_speed", "precipitation", "visibility")]
    return flights.join(weather, ["origin", "date"], "left").groupBy("carrier", "date").agg(*flight_totals(), *means)


def main() -> None:
    """Writes both tables, or neither."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", required=True, help="the table that load_month.py fills")
    parser.add_argument("--raw", required=True, help="folder of the raw CSV files")
    parser.add_argument("--months", type=int, default=12, help="as many must be loaded")
    args = parser.parse_args()

    job = sparkonce.current()
    spark = SparkSession.builder.getOrCreate()
    flights = sparkonce.read(spark, args.flights).cache()
    months = flights.select(F.trunc("date", "month")).distinct().count()
    if months != args.months:
        job.fail(f"{args.flights} has {months} of {args.months} months; load the others first")
    airlines = spark.read.csv(f"{args.raw}/airlines.csv", schema="carrier STRING, airline STRING", header=True)
    hourly = spark.read.csv(f"{args.raw}/weather.csv", schema=WEATHER_SCHEMA, header=True, nullValue="NA")

    delays = per_carrier_and_day(flights, daily_weather(hourly))
    carriers = flights.groupBy("carrier").agg(*flight_totals())
    with job.transaction() as tx:
        tx.write(delays.join(F.broadcast(airlines), "carrier"), "delays")
        tx.write(carriers.join(F.broadcast(airlines), "carrier"), "carriers")
    job.result(flights=flights.count())


if __name__ == "__main__":
    main()
