"""Policies as plain values: the backoff, and what is derived from a spec's fields."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.attempt.decide import Policy
from sparkonce.model.spec import (
    IdempotentJob,
    JobSpec,
    OnDelete,
    OnDuplicate,
    OnFinalized,
    OnMismatch,
    OnResultChanged,
    OnUnknown,
)

POLICY = Policy(declared=True, backoff_initial=10.0, backoff_max=300.0)
JITTER = 0.1
"""The fraction of a wait that jitter may subtract."""


def spec_of(**spec: Any) -> JobSpec:
    outputs = [{"name": "orders", "slotLog": {"path": "lake/orders"}}]
    template = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "spec": {"type": "Python", "mainApplicationFile": "job.py"},
    }
    document = {
        "apiVersion": "sparkonce.dev/v1alpha1",
        "kind": "IdempotentJob",
        "metadata": {"name": "load-may"},
        "spec": {"idempotencyKey": "load-may", "template": template, "outputs": outputs, **spec},
    }
    return IdempotentJob.of(document).spec


def job(**spec: Any) -> Policy:
    return Policy.of(spec_of(**spec))


@pytest.mark.parametrize(("attempts", "wait"), [(1, 10), (2, 20), (3, 40), (4, 80), (5, 160)])
def test_the_wait_doubles(attempts: int, wait: float) -> None:
    """Ten seconds after the first attempt, twice as long after each further one, less the jitter."""
    assert wait * (1 - JITTER) <= POLICY.delay(attempts, nonce="n1") <= wait
    assert POLICY.delay(attempts, nonce="n1") == pytest.approx(wait / 10 * POLICY.delay(1, nonce="n1"))


@given(st.integers(min_value=6, max_value=10**9), st.text())
def test_the_wait_is_capped(attempts: int, nonce: str) -> None:
    """However many attempts there were, the wait is at most the cap, and below it by no more than the jitter."""
    assert POLICY.backoff_max * (1 - JITTER) <= POLICY.delay(attempts, nonce=nonce) <= POLICY.backoff_max


@given(st.integers(min_value=-5, max_value=0), st.text())
def test_nothing_to_wait_for(attempts: int, nonce: str) -> None:
    """Before any counted attempt, or without a backoff, the wait is zero."""
    assert POLICY.delay(attempts, nonce=nonce) == 0
    assert Policy(declared=True, backoff_initial=0.0).delay(3, nonce=nonce) == 0


def test_jitter_is_a_function_of_the_nonce() -> None:
    """The same attempt always waits equally long, whichever process computes it; the waits of a hundred attempts that failed together are
    spread over most of the jitter."""
    waits = [POLICY.delay(1, nonce=f"nonce-{n}") for n in range(100)]
    assert waits == [POLICY.delay(1, nonce=f"nonce-{n}") for n in range(100)]
    assert len(set(waits)) == 100
    assert max(waits) - min(waits) > 0.8 * JITTER * 10


def test_of_a_job_with_outputs_that_says_nothing() -> None:
    """A job with outputs and no policies gets three attempts, Attach, Reject, Replay, and a heartbeat timeout of two minutes."""
    assert job() == Policy(
        declared=True,
        max_attempts=3,
        backoff_initial=10.0,
        backoff_max=300.0,
        on_duplicate=OnDuplicate.ATTACH,
        on_mismatch=OnMismatch.REJECT,
        on_finalized=OnFinalized.REPLAY,
        on_unknown=OnUnknown.HOLD,
        start_timeout=1800,
        active_deadline=None,
        heartbeat_timeout=120,
        stop_timeout=120,
        linger=60,
        retention_succeeded=30 * 86400,
        retention_failed=7 * 86400,
        suspend=False,
    )


def test_of_an_opaque_job_that_says_nothing() -> None:
    """An opaque job without policies runs once, and is never given up for silence, since nothing makes it send heartbeats."""
    policy = job(outputs=[])
    assert (policy.declared, policy.max_attempts, policy.heartbeat_timeout) == (False, 1, None)


def test_of_a_job_that_says_everything() -> None:
    """Every field of the spec that affects a decision is in the policy, in seconds where it is a time."""
    policy = job(
        retry={
            "maxAttempts": 7,
            "submissionRetries": 1,
            "backoff": {"initial": "1m", "max": "1h"},
            "retryOn": ["ImportError"],
        },
        onDuplicate="Reject",
        onMismatch="Supersede",
        onFinalized="RerunIfFailed",
        onResultChanged="Gone",
        onUnknown="Retry",
        startTimeoutSeconds=5,
        activeDeadlineSeconds=6,
        heartbeatTimeoutSeconds=7,
        stopTimeoutSeconds=8,
        lingerSeconds=10,
        retention={"succeeded": "2d", "failed": "3h"},
        suspend=True,
        onDelete="Detach",
        applicationTTL={"succeeded": "2m", "failed": "3m"},
        ttlSecondsAfterFinished=9,
    )
    expected = Policy(
        declared=True,
        max_attempts=7,
        submission_retries=1,
        backoff_initial=60.0,
        backoff_max=3600.0,
        retry_on=frozenset({"ImportError"}),
        on_duplicate=OnDuplicate.REJECT,
        on_mismatch=OnMismatch.SUPERSEDE,
        on_finalized=OnFinalized.RERUN_IF_FAILED,
        on_result_changed=OnResultChanged.GONE,
        on_unknown=OnUnknown.RETRY,
        start_timeout=5,
        active_deadline=6,
        heartbeat_timeout=7,
        stop_timeout=8,
        linger=10,
        retention_succeeded=2 * 86400,
        retention_failed=3 * 3600,
        suspend=True,
        on_delete=OnDelete.DETACH,
        application_ttl_succeeded=120,
        application_ttl_failed=180,
        object_ttl=9,
    )
    assert policy == expected
    silent = job()
    same = [each.name for each in fields(Policy) if getattr(policy, each.name) == getattr(silent, each.name)]
    assert same == ["declared"], "a field that a spec cannot change proves nothing here"


def test_the_environment_has_its_own_heartbeat() -> None:
    """Where silence is suspicious sooner, the environment sets another default; a job with a timeout of its own keeps that."""
    assert Policy.of(spec_of(), heartbeat_timeout=30).heartbeat_timeout == 30
    assert Policy.of(spec_of(heartbeatTimeoutSeconds=7), heartbeat_timeout=30).heartbeat_timeout == 7
    assert Policy.of(spec_of(outputs=[]), heartbeat_timeout=30).heartbeat_timeout is None
