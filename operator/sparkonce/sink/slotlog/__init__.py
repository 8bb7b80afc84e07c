"""Slot logs: tables of Parquet files that Spark wrote, each write made visible by one object created only if absent.

`sink` commits, `layout` names paths and encodes slots, `snapshot` computes what is visible, `reader` gives it to Spark, `inventory`
lists everything for audits. Delta and Iceberg tables reuse the encoding of slots and of long file lists.
"""
