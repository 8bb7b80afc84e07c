"""Captured scripts: which of their calls write (`writes`), their Iceberg tables (`tables`), and the tables they declare (`creates`)."""
