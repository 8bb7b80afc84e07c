"""What tests of `kube/` share: running a coroutine, and waiting for a fact in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from harness.eventually import INTERVAL
from harness.patience import Patience, within

SCENE = 90.0
"""Seconds for one scene: most take two, a killed API server five, and nine test runs share two cores."""


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await within(scene(), SCENE)

    asyncio.run(limited())


async def until(holds: Callable[[], object], timeout: float = 20.0) -> None:
    """Like `assert_eventually`, for a fact that a task of the same event loop brings about."""
    patience = Patience(timeout)
    while not holds():
        assert not patience.over(), "not true in time"
        await asyncio.sleep(INTERVAL)


def job(name: str, *, finalizers: list[str] | None = None, **spec: Any) -> dict[str, Any]:
    """The smallest IdempotentJob."""
    template = {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "spec": {}}
    metadata = {"name": name} | ({"finalizers": finalizers} if finalizers else {})
    return {"metadata": metadata, "spec": {"idempotencyKey": f"key-of-{name}", "template": template, **spec}}
