"""Iceberg tables as outputs: Spark stages Parquet files, one conditional commit of the catalog makes them visible."""
