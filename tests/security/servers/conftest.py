"""Attacks from one tenant's namespace, on real operators, gateways, etcd and API server."""

from __future__ import annotations

from api.conftest import cluster, install, ledger, ledger_server, namespace

__all__ = ["cluster", "install", "ledger", "ledger_server", "namespace"]
