"""Another user's Spark with Iceberg's runtime: reads, appends, compacts, expires. Prints one line of JSON.

python iceberg_read.py RUNTIME_JAR REST_URL FOLDER
"""

from __future__ import annotations

import json
import sys


def main(jar: str, url: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jar)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", folder)
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "rest")
        .config("spark.sql.catalog.lake.uri", url)
        .config("spark.sql.catalog.lake.cache-enabled", "false")
        .getOrCreate()
    )
    rows = spark.table("lake.sales.orders").orderBy("id").collect()
    at = "date_format(at, 'yyyy-MM-dd HH:mm:ss')"
    said = {
        "ids": [row.id for row in rows],
        "odd": spark.table("lake.sales.orders").where("p = false").count(),
        "extra": spark.table("lake.sales.orders").where("extra = 'new'").count(),
        "large": str(rows[99].large),
        "at": spark.table("lake.sales.orders").where("id = 0").selectExpr(at).collect()[0][0],
    }
    spark.sql("insert into lake.sales.orders (id, p) values (5000, true)")
    spark.sql("call lake.system.rewrite_data_files(table => 'sales.orders', options => map('rewrite-all', 'true'))")
    spark.sql(
        "call lake.system.expire_snapshots(table => 'sales.orders', older_than => timestamp'2100-01-01 00:00:00', retain_last => 1)"
    )
    spark.sql("call lake.system.remove_orphan_files(table => 'sales.orders')")
    said["after"] = spark.table("lake.sales.orders").count()
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
