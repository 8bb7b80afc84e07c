"""kopf's settings: it only triggers, and writes nothing."""

from __future__ import annotations

import itertools
from typing import Any

import kopf

from sparkonce.kube.trigger import FINALIZER, quiet_settings


def test_kopf_can_store_nothing() -> None:
    """kopf's storages discard what they are given, its finalizer is not the default that other operators' objects may carry, and it posts
    no events."""
    settings = quiet_settings()
    patch = kopf.Patch()
    body: Any = kopf.Body({"metadata": {"annotations": {"a": "b"}}, "spec": {"x": 1}})
    handler: Any = "handler"
    record: Any = {"started": "now"}
    base, progress = settings.persistence.diffbase_storage, settings.persistence.progress_storage
    assert base.build(body=body) == {}
    base.store(body=body, patch=patch, essence=base.build(body=body))
    progress.store(key=handler, record=record, body=body, patch=patch)
    progress.touch(body=body, patch=patch, value="now")
    progress.purge(key=handler, body=body, patch=patch)
    assert (base.fetch(body=body), progress.fetch(key=handler, body=body)) == (None, None)
    assert not patch
    assert settings.persistence.finalizer == FINALIZER != kopf.OperatorSettings().persistence.finalizer
    assert not settings.posting.enabled


def test_kopf_gives_nobody_up() -> None:
    """kopf retries a request without end, in growing pauses of at most 20 s, and each request starts afresh; it never ends the process."""
    settings = quiet_settings()
    backoffs: Any = settings.networking.error_backoffs
    for _ in range(2):
        first = list(itertools.islice(backoffs, 12))
        assert first[0] <= 1
        assert 10 <= first[-1] <= 20
    assert settings.process.ultimate_exiting_timeout is None
