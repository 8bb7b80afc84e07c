"""Idempotency for functions: `@sparkonce.idempotent` carries out a call with a key once, and gives its result to every repetition.

    @sparkonce.idempotent(store="sqlite:///replies.db", key=lambda order, amount: order)
    def charge(order: str, amount: int) -> dict:
        ...

    charge("order-17", 100)     # charges
    charge("order-17", 100)     # the same result, from the ledger; also in another process, or after a crash
    charge("order-17", 200)     # CallRefused: the key was used for another call

Arguments and result are JSON: a result is what a repetition can be given, so the first call returns it as JSON keeps it (tuples as lists).
An exception leaves the outcome unknown, because only the function knows what it did before it raised: the next call reconciles, or is
refused. Exceptions named in `failures` are results: a repetition raises `RecordedFailure`.

Plain functions run in their caller's thread, coroutine functions on their caller's loop, which must be one loop for all calls.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import rfc8785

from sparkonce.errors import CallRefused, InvalidInput, RecordedFailure
from sparkonce.model.identity import explicit_text
from sparkonce.replies.coordinator import (
    KeyAttempt,
    KeyedRequest,
    NotDone,
    Reconcile,
    Reconciled,
    Refusal,
    ReplyCoordinator,
    Unknown,
)
from sparkonce.replies.exchange import called, keyed_request, policy_of
from sparkonce.replies.open import open_replies
from sparkonce.replies.policy import ReplyPolicy, Scope
from sparkonce.replies.protocol import Reply
from sparkonce.replies.threads import ThreadCoordinator

P = ParamSpec("P")
R = TypeVar("R")

SUCCEEDED, FAILED = 200, 422
"""Statuses of a recorded result and of a recorded failure: final ones, for the policy."""
_SCOPE = Scope(path="/", methods=frozenset({"CALL"}))


def idempotent(
    *,
    store: str,
    key: Callable[..., Any],
    reconcile: Callable[..., Any] | None = None,
    failures: tuple[type[Exception], ...] = (),
    name: str | None = None,
    **options: Any,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function. `store`: an address as of `sparkonce.asgi.IdempotencyMiddleware`; `key`: the key of a call, from its arguments.
    `reconcile`: gets the arguments of a call whose outcome is unknown, and returns its result, `sparkonce.asgi.NotDone` or `Unknown`.
    `name`: what the key is for, by default the function's module and name. `options`: fields of `ReplyPolicy`.

    A call raises: CallRefused: nothing ran; RecordedFailure; InvalidInput: no key, or arguments that JSON cannot express; what the function
    raises; TypeError: the function returned what JSON cannot express, and its outcome is unknown."""
    policy = policy_of(None, options, by="idempotent")

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        full_name = name or f"{function.__module__}.{function.__qualname__}"
        calls = _FunctionCalls(full_name, inspect.signature(function), policy, key, reconcile, failures)
        hook = None if reconcile is None else calls.verdict
        if inspect.iscoroutinefunction(function):
            return cast(Callable[P, R], _of_a_loop(function, calls, store, policy, hook))
        return _of_threads(function, calls, store, policy, hook)

    return decorated


def _of_threads(
    function: Callable[P, R], calls: _FunctionCalls, store: str, policy: ReplyPolicy, hook: Reconcile | None
) -> Callable[P, R]:
    threads = ThreadCoordinator(lambda: open_replies(store), policy, hook)

    @functools.wraps(function)
    def once(*args: P.args, **kwargs: P.kwargs) -> R:
        def effect(_: KeyAttempt) -> Reply:
            try:
                result = function(*args, **kwargs)
            except calls.failures as failure:
                raised.append(failure)
                return _failure(failure)
            return calls.recorded(result)

        raised: list[Exception] = []
        try:
            response = threads.answer(calls.request_of(args, kwargs), effect)
        except Refusal as refusal:
            raise _refused(refusal) from None
        return cast(R, _result(response.reply, raised))

    return once


def _of_a_loop(
    function: Callable[..., Awaitable[Any]],
    calls: _FunctionCalls,
    store: str,
    policy: ReplyPolicy,
    hook: Reconcile | None,
) -> Callable[..., Awaitable[Any]]:
    coordinators: list[ReplyCoordinator] = []

    @functools.wraps(function)
    async def once(*args: Any, **kwargs: Any) -> Any:
        if not coordinators:  # here: a ledger's connections belong to the loop of its first verb
            coordinators.append(ReplyCoordinator(open_replies(store), policy, hook))

        async def effect(_: KeyAttempt) -> Reply:
            try:
                result = await function(*args, **kwargs)
            except calls.failures as failure:
                raised.append(failure)
                return _failure(failure)
            return calls.recorded(result)

        raised: list[Exception] = []
        try:
            response = await coordinators[0].answer(calls.request_of(args, kwargs), effect)
        except Refusal as refusal:
            raise _refused(refusal) from None
        return _result(response.reply, raised)

    return once


@dataclass(frozen=True)
class _FunctionCalls:
    """How calls of one function become requests, and what it returns becomes an answer."""

    name: str
    signature: inspect.Signature
    policy: ReplyPolicy
    key: Callable[..., Any]
    reconcile: Callable[..., Any] | None
    failures: tuple[type[Exception], ...]

    def request_of(self, args: Any, kwargs: Any) -> KeyedRequest:
        """Raises: InvalidInput. TypeError: the function does not take these arguments."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()  # a call is the same however its arguments are written
        try:
            body = rfc8785.dumps(bound.arguments)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f"{self.name}: its arguments cannot be expressed as JSON ({error})") from None
        text = self.key(*bound.args, **bound.kwargs)
        if not isinstance(text, str):
            raise InvalidInput(f"{self.name}: its key is no text, but a {type(text).__name__}")
        try:
            text = explicit_text(text)
        except ValueError as error:
            raise InvalidInput(f"{self.name}: its key cannot be one: {error}") from None
        return keyed_request(
            self.policy,
            _SCOPE,
            text,
            caller="",
            method="CALL",
            path=self.name,
            query="",
            headers=[("content-type", "application/json")],
            body=body,
            more={"args": bound.args, "kwargs": bound.kwargs},
        )

    def recorded(self, result: Any) -> Reply:
        """Raises: TypeError."""
        try:
            text = json.dumps(result, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise TypeError(
                f"{self.name} returned what JSON cannot express ({error}): its outcome is unknown"
            ) from None
        return Reply(SUCCEEDED, (("content-type", "application/json"),), text.encode())

    async def verdict(self, request: KeyedRequest) -> Reconciled:
        assert self.reconcile is not None
        found = await called(self.reconcile, *request.more["args"], **request.more["kwargs"])
        undecided = found is NotDone or found is Unknown or isinstance(found, NotDone | Unknown)
        return cast(Reconciled, found) if undecided else self.recorded(found)


def _failure(error: Exception) -> Reply:
    told = {"type": type(error).__name__, "message": str(error)}
    return Reply(FAILED, (("content-type", "application/json"),), json.dumps(told).encode())


def _refused(refusal: Refusal) -> CallRefused:
    return CallRefused(str(refusal), reason=refusal.title, retry_after=refusal.retry_after)


def _result(reply: Reply, raised: list[Exception]) -> Any:
    if raised:
        raise raised[0]
    if reply.omitted:
        raise RecordedFailure(
            f"the call succeeded; its result of {reply.omitted} bytes was too large to be kept", kind="ResultTooLarge"
        )
    found = json.loads(reply.body)
    if reply.status == FAILED:
        raise RecordedFailure(str(found["message"]), kind=str(found["type"]))
    return found
