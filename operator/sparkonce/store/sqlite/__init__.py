"""Records in SQLite, the default of local mode."""
