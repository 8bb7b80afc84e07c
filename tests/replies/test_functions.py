"""`@sparkonce.idempotent`: calls with one key are carried out once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sparkonce
from sparkonce.asgi import NotDone, Unknown
from sparkonce.errors import CallRefused, InvalidInput, RecordedFailure

OPTIONS: dict[str, Any] = {"lease": 30.0, "pause": 0.2, "store_patience": 30.0}


def guarded(store: str, calls: list[Any], *, result: Any = None, **options: Any) -> Any:
    """A function that notes its calls. `result`: a value, or an exception to raise."""

    @sparkonce.idempotent(store=store, key=lambda order, amount: order, **(OPTIONS | options))
    def charge(order: str, amount: int = 100) -> Any:
        """Charges."""
        calls.append((order, amount))
        if isinstance(result, BaseException):
            raise result
        return {"charged": amount, "parts": (1, 2)} if result is None else result

    return charge


def test_a_call_is_carried_out_once_and_its_result_is_json(tmp_path: Path) -> None:
    """The first call and its repetitions, also of another process's function, return the same value."""
    calls: list[Any] = []
    store = f"sqlite:///{tmp_path / 'replies.db'}"
    charge = guarded(store, calls)
    assert (
        charge("o1", 100) == charge("o1", 100) == guarded(store, calls)("o1", 100) == {"charged": 100, "parts": [1, 2]}
    )
    assert charge("o1") == charge(amount=100, order="o1") == charge("o1", 100)
    assert charge("o2", 100)["charged"] == 100
    assert calls == [("o1", 100), ("o2", 100)]
    assert (charge.__name__, charge.__doc__) == ("charge", "Charges.")


def test_a_coroutine_function_is_carried_out_once(tmp_path: Path) -> None:
    """Of 20 calls at a time one runs, and all get its result."""
    calls: list[str] = []

    @sparkonce.idempotent(store=f"sqlite:///{tmp_path / 'replies.db'}", key=lambda order: order, **OPTIONS)
    async def charge(order: str) -> int:
        calls.append(order)
        await asyncio.sleep(0.05)
        return 17

    async def scenario() -> list[int]:
        return await asyncio.gather(*(charge("o1") for _ in range(20)))

    assert asyncio.run(scenario()) == [17] * 20
    assert calls == ["o1"]


def test_threads_with_one_key_have_one_effect() -> None:
    """64 threads; the effect runs in the thread of one of them."""
    calls: list[Any] = []
    charge = guarded("memory:", calls)
    together = threading.Barrier(32)

    def called(_: int) -> Any:
        together.wait(60)
        return charge("o1", 1)

    with ThreadPoolExecutor(32) as clients:
        results = list(clients.map(called, range(32)))
    assert calls == [("o1", 1)]
    assert all(each == results[0] for each in results)


def test_another_call_under_the_key_is_refused() -> None:
    """Other arguments, or another function with the same store."""
    calls: list[Any] = []
    charge = guarded("memory:", calls)
    charge("o1", 100)
    with pytest.raises(CallRefused, match="was used for another request") as refused:
        charge("o1", 200)
    assert (refused.value.reason, refused.value.retry_after) == ("key-reused", None)
    assert calls == [("o1", 100)]


def test_an_exception_leaves_the_outcome_unknown_until_it_is_reconciled() -> None:
    """Without a hook the call is refused; with one its arguments decide."""
    calls: list[Any] = []
    charge = guarded("memory:", calls, result=OSError("the line broke"))
    with pytest.raises(OSError, match="the line broke"):
        charge("o1", 1)
    with pytest.raises(CallRefused) as refused:
        charge("o1", 1)
    assert refused.value.reason == "unknown-outcome"
    asked: list[Any] = []

    def reconcile(order: str, amount: int) -> Any:
        asked.append((order, amount))
        return Unknown if len(asked) == 1 else {"found": order}

    charge = guarded("memory:", calls, result=OSError("the line broke"), reconcile=reconcile)
    with pytest.raises(OSError, match="the line broke"):
        charge("o2", 2)
    with pytest.raises(CallRefused):
        charge("o2", 2)
    assert charge("o2", 2) == charge("o2", 2) == {"found": "o2"}
    assert asked == [("o2", 2)] * 2
    assert calls == [("o1", 1), ("o2", 2)]


def test_not_done_calls_the_function_again() -> None:
    """The hook says that the first call had no effect."""
    calls: list[Any] = []
    charge = guarded("memory:", calls, result=OSError("x"), reconcile=lambda *_: NotDone)
    for _ in range(2):
        with pytest.raises(OSError, match="x"):
            charge("o1", 1)
    assert calls == [("o1", 1)] * 2


def test_a_declared_failure_is_a_result(tmp_path: Path) -> None:
    """The first call raises it, repetitions raise RecordedFailure with its text; the function runs once."""
    calls: list[Any] = []
    store = f"sqlite:///{tmp_path / 'replies.db'}"
    charge = guarded(store, calls, result=LookupError("no such order"), failures=(LookupError,))
    with pytest.raises(LookupError, match="no such order"):
        charge("o1", 1)
    with pytest.raises(RecordedFailure, match="no such order") as failed:
        charge("o1", 1)
    assert failed.value.kind == "LookupError"
    assert calls == [("o1", 1)]


def test_what_json_cannot_express_is_refused_by_name() -> None:
    """Arguments and keys before the call; a result after it, with the outcome unknown."""
    calls: list[Any] = []
    charge = guarded("memory:", calls)
    with pytest.raises(InvalidInput, match=r"charge: its arguments cannot be expressed as JSON"):
        charge("o1", object())
    with pytest.raises(InvalidInput, match="a key has 1 to 255 visible ASCII characters"):
        charge("", 1)
    with pytest.raises(InvalidInput, match="its key is no text, but a int"):
        charge(1, 1)
    assert calls == []
    charge = guarded("memory:", calls, result=object())
    with pytest.raises(TypeError, match="returned what JSON cannot express"):
        charge("o1", 1)
    with pytest.raises(CallRefused):
        charge("o1", 1)
    assert calls == [("o1", 1)]


def deep() -> list[Any]:
    """More levels than the interpreter's recursion has."""
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


@pytest.mark.parametrize("result", [object(), float("nan"), deep()], ids=["object", "nan", "deep"])
def test_a_result_that_json_cannot_express_is_no_declared_failure(result: Any) -> None:
    """The function has run, whatever `failures` names: the outcome is unknown, not a failure, until it is reconciled."""
    calls: list[Any] = []
    declared: dict[str, Any] = {"failures": (Exception,), "pause": 0.0}
    charge = guarded("memory:", calls, result=result, **declared)
    with pytest.raises(TypeError, match="its outcome is unknown"):
        charge("o1", 1)
    with pytest.raises(CallRefused) as refused:
        charge("o1", 1)
    assert refused.value.reason == "unknown-outcome"

    @sparkonce.idempotent(store="memory:", key=lambda: "o2", reconcile=lambda: "charged", **(OPTIONS | declared))
    async def coroutine() -> Any:
        calls.append("o2")
        return result

    async def scenario() -> Any:
        with pytest.raises(TypeError, match="its outcome is unknown"):
            await coroutine()
        return await coroutine()

    assert asyncio.run(scenario()) == "charged"
    assert calls == [("o1", 1), "o2"]


def test_a_large_result_is_given_once() -> None:
    """A repetition learns that the call succeeded, and that its result was not kept."""
    calls: list[Any] = []
    charge = guarded("memory:", calls, result="x" * 300_000)
    assert len(charge("o1", 1)) == 300_000
    with pytest.raises(RecordedFailure, match="the call succeeded; its result of 300002 bytes was too large"):
        charge("o1", 1)
    assert calls == [("o1", 1)]


def test_a_plain_hook_never_blocks_the_loop_that_keeps_claims_alive() -> None:
    """It runs in a thread of its own, as a service's hook does."""
    asked: list[str] = []

    def reconcile(order: str, amount: int) -> Any:
        asked.append(threading.current_thread().name)
        return amount

    charge = guarded("memory:", [], result=OSError("x"), reconcile=reconcile)
    with pytest.raises(OSError, match="x"):
        charge("o1", 1)
    assert charge("o1", 1) == 1
    assert asked[0] != "sparkonce-replies"
