"""Whether the objects of a key show its end: asked before its record is forgotten, since nobody could tell them afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sparkonce.engine import told
from sparkonce.errors import InvalidInput
from sparkonce.model.record import Record


def check_told(record: Record, kubeconfig: Path | None) -> None:
    """InvalidInput: some object waits for what is to be forgotten, or cannot be looked at."""
    if record.objects:
        asyncio.run(_check(record, kubeconfig))


async def _check(record: Record, kubeconfig: Path | None) -> None:
    try:
        from sparkonce.kube.client import ApiClient
        from sparkonce.kube.login import Login
        from sparkonce.launch.kubernetes import JOBS, ApiRefused, ApiUnavailable
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"looking at the objects of {record.key} needs {missing.name}, which is not installed; install sparkonce[operator]"
        ) from None
    client = ApiClient(Login(kubeconfig))
    try:
        await told.check_told(record, lambda namespace, name: client.get(JOBS, namespace, name))
    except (ApiUnavailable, ApiRefused) as problem:
        raise InvalidInput(
            f"whether the objects of {record.key} show its end cannot be seen ({problem}); say how with --kubeconfig FILE"
        ) from None
    finally:
        await client.close()
