"""Lanes: exactly-once record writers outside Spark jobs (docs/lanes.md)."""
