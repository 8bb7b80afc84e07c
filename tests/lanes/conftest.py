"""Fixtures for the tests of lanes."""

from __future__ import annotations

from harness.spark import spark

__all__ = ["spark"]
