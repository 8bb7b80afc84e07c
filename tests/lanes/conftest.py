"""Fixtures for the tests of lanes."""

from __future__ import annotations

from harness.spark import spark
from harness.store_fixtures import running, server

__all__ = ["running", "server", "spark"]
