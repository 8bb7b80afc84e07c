"""Objects below a table, in a local folder or on an object store: create-if-absent, read, list, delete; never overwrite."""
