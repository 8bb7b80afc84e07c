"""Whether the objects of a key show its end: asked before its record is forgotten, since nobody could tell them afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sparkonce.engine.objects import ObjectRef
from sparkonce.errors import InvalidInput
from sparkonce.model.record import Record


def check_told(record: Record, kubeconfig: Path | None) -> None:
    """InvalidInput: some object waits for what is to be forgotten, or cannot be looked at."""
    if record.objects:
        asyncio.run(_check(record, kubeconfig))


async def _check(record: Record, kubeconfig: Path | None) -> None:
    try:
        from sparkonce.kube.client import ApiClient
        from sparkonce.kube.jobs import ENDS
        from sparkonce.kube.login import Login
        from sparkonce.launch.kubernetes import JOBS, ApiRefused, ApiUnavailable
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"looking at the objects of {record.key} needs {missing.name}, which is not installed; install sparkonce[operator]"
        ) from None
    client = ApiClient(Login(kubeconfig))
    try:
        for ref in map(ObjectRef.parse, record.objects):
            found = await client.get(JOBS, ref.namespace, ref.name)
            mine = found is not None and found["metadata"]["uid"] == ref.uid
            if mine and ((found or {}).get("status") or {}).get("phase") not in ENDS:
                raise InvalidInput(
                    f"IdempotentJob {ref.namespace}/{ref.name} does not show the end of {record.key} yet; wait until it does, or delete it"
                )
    except (ApiUnavailable, ApiRefused) as problem:
        raise InvalidInput(
            f"whether the objects of {record.key} show its end cannot be seen ({problem}); say how with --kubeconfig FILE"
        ) from None
    finally:
        await client.close()
