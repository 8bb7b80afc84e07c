"""Spark jobs whose effects happen exactly once."""
