"""Outputs with exactly one committed effect per (key, output, generation)."""
