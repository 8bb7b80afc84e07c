"""A generation that follows an application that sparkonce did not create, in every store."""

from __future__ import annotations

import pytest

from sparkonce.blocking import run
from sparkonce.errors import RecordTooNew
from sparkonce.model import record as records
from sparkonce.model.record import FOLLOWING, Bound
from sparkonce.store.protocol import Duplicate
from store.backends import Backend
from store.samples import request, reserved

BOUND = Bound(application="nightly", uid="u1")


def test_the_first_binding_stands(backend: Backend) -> None:
    """Reserve records the binding; a second request for the same job, bound to another application or to none, is a duplicate and changes
    nothing."""
    key = reserved(backend.open(), bound=BOUND)
    assert (key.now().bound, key.now().min_reader) == (BOUND, FOLLOWING)
    for other in (Bound(application="hourly", uid="u2"), None):
        reply = run(key.store.reserve(request(key.record.key, bound=other), lease=key.lease, floor=0))
        assert isinstance(reply, Duplicate)
        assert reply.record.bound == BOUND
    assert key.now() == key.record


def test_the_next_generation_is_bound_only_if_its_request_is(backend: Backend) -> None:
    """A generation opened by a plain rerun is not bound; one opened by a request with a binding is."""
    key = reserved(backend.open(), bound=BOUND)
    key.finalize()
    again = key.reopen()
    assert again.now().bound is None
    again.finalize()
    assert again.reopen(bound=BOUND).now().bound == BOUND


def test_a_version_that_does_not_know_bindings_leaves_it_alone(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that does not know bindings would launch the application instead of following it, so its reader (version 1) refuses a bound
    record as too new, and reads an unbound one."""
    store = backend.open()
    bound, plain = reserved(store, bound=BOUND), reserved(store)
    monkeypatch.setattr(records, "READER", 1)
    with pytest.raises(RecordTooNew):
        bound.now()
    assert plain.now().min_reader == 1
