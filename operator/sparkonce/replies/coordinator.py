"""One request with a key, from its reservation to its answer, for whichever server or function it comes through.

    reserve ─ owned ──── run ── final ────── finalize ── answer
            │                ├─ released ─── release ─── answer
            │                └─ unknown ──── abandon ─── answer
            ├ answered ── replay
            ├ running ─── wait, then reserve again
            ├ stale ───── take over ── reconcile ─┬─ Reply ──── finalize ── replay
            │                                     ├─ NotDone ── run
            │                                     └─ Unknown ── abandon ── 503
            └ mismatch ── 422

* The effect runs in a task of its own: a client that leaves cancels nothing. Effect and finalize share no `try`, so that an error while an
  answer is recorded never counts as an error of the effect.
* An outcome is unknown if the effect raised, answered 5xx, or its process died. An unknown outcome is never run again by itself:
  `reconcile` decides, or the scope's `rerun`, or the client gets 503 until the lifetime ends.
* A reservation that was not answered may have landed: it is asked for again until it is answered, and released, because nothing ran.
* Answers are finalized before they are sent. While the ledger is down longer than `store_patience` the client gets its answer and
  finalizing goes on.

Sources: research on Apache Polaris (#3803, #4269, #4659, #4912) and draft-ietf-httpapi-idempotency-key-header; each deviation is explained
in docs/http.md.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sparkonce.errors import RecordUnreadable, SparkonceError, StoreFull, StoreUnavailable
from sparkonce.failpoints import hit
from sparkonce.observe.meter import NoReplyMeter, ReplyMeter
from sparkonce.replies.beating import Beating, ClaimLost
from sparkonce.replies.followers import Followers
from sparkonce.replies.keys import bucket_of
from sparkonce.replies.policy import Finality, ReplyPolicy, StoreDown
from sparkonce.replies.protocol import KeyStanding, Reply, ReplyLedger, ReplyRecord, Reservation, WriteOutcome

LOG = logging.getLogger(__name__)
T = TypeVar("T")

AGAIN = 0.2
"""Seconds between two tries of a verb that was not answered."""
PURGES = 60.0
"""Seconds between two removals of expired answers; each process does it, beside its requests."""
PURGED = 1000
"""Answers that one transaction removes."""
INSISTING = 1000
"""Unanswered reservations that are given back in the background; beyond this number the lease's end decides."""


class NotDone:
    """From `reconcile`: the request had no effect and can have none any more. It runs now."""


class Unknown:
    """From `reconcile`: what became of the request cannot be known yet. The client gets 503, and a later request reconciles again."""


Reconciled = Reply | NotDone | Unknown | type[NotDone] | type[Unknown]


@dataclass(frozen=True)
class KeyedRequest:
    """A request with a key, as `reconcile` gets it."""

    key: str
    """64 hex digits: the key in the ledger."""
    text: str
    """The key as the client chose it."""
    caller: str
    fingerprint: str
    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    """All of the request's, names in lower case."""
    body: bytes
    rerun: bool = False
    token: int = 1
    """Of the attempt that runs or reconciles (`KeyAttempt.token`): a hook that answers NotDone bars smaller ones."""
    more: dict[str, Any] = field(default_factory=dict)
    """What the server's adapter adds: the ASGI scope."""


@dataclass(frozen=True)
class KeyAttempt:
    """What a running request knows of its claim."""

    token: int
    """1, and one more for each takeover of the key: a service that stores it with its effect can refuse smaller ones."""
    beating: Beating | None
    """None: without protection."""


@dataclass(frozen=True)
class Response:
    """What the client gets."""

    reply: Reply
    own: bool
    """From this request's own effect, which may have sent parts of it already. Otherwise the recorded answer, of another request."""


Effect = Callable[[KeyAttempt], Coroutine[Any, Any, Reply]]
Reconcile = Callable[[KeyedRequest], Coroutine[Any, Any, Reconciled]]


class Refusal(Exception):
    """The request is answered without an effect; an effect that raises it proves that it had none. `str()` is one sentence."""

    def __init__(self, status: int, title: str, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.status, self.title, self.retry_after = status, title, retry_after


class ReplyCoordinator:
    """Belongs to one event loop. `reconcile`: finds out what became of a request whose outcome is unknown."""

    def __init__(
        self,
        ledger: ReplyLedger,
        policy: ReplyPolicy,
        reconcile: Reconcile | None = None,
        *,
        meter: ReplyMeter | None = None,
    ) -> None:
        self._ledger, self._policy, self._reconcile = ledger, policy, reconcile
        self._meter = meter or NoReplyMeter()
        self._followers = Followers(ledger, most=policy.max_waiting)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._giving_back: set[asyncio.Task[Any]] = set()
        """Tasks that free keys for which nothing ran: nothing is lost by their end but time."""
        self._closing = False
        self._purged_at = time.monotonic()

    async def answer(self, request: KeyedRequest, effect: Effect) -> Response:
        """Raises: Refusal; what the effect raises, after its outcome was noted as unknown."""
        if time.monotonic() - self._purged_at > PURGES:
            self._purged_at = time.monotonic()
            self._spawn(self._purge())
        deadline = time.monotonic() + self._policy.wait
        nonce = secrets.token_hex(16)
        while True:
            sent = time.monotonic()
            try:
                found = await self._patiently(lambda: self._reserve(request, nonce))
            except StoreFull as full:
                raise Refusal(503, "too-many-keys", str(full), retry_after=full.retry_after) from None
            except RecordUnreadable as error:
                raise Refusal(500, "unreadable-record", str(error)) from None
            except (SparkonceError, TimeoutError) as error:
                LOG.warning("a key could not be reserved: %s", error)
                return await self._without_ledger(request, nonce, effect)
            except asyncio.CancelledError:  # the client left, and its reservation may have landed
                self._insist(lambda: self._give_back(request, nonce), among=self._giving_back)
                raise
            record = found.record
            if self._closing and found.standing in (KeyStanding.OWNED, KeyStanding.RUNNING, KeyStanding.STALE):
                if found.standing is KeyStanding.OWNED:
                    await self._free(request, nonce)
                raise closed(begun=False)
            if found.standing is KeyStanding.OWNED:
                hit("replies.reserved")
                return await self._shielded(self._own(request, nonce, effect, sent=sent, token=record.takeovers + 1))
            if found.standing is KeyStanding.MISMATCH:
                raise Refusal(
                    422,
                    "key-reused",
                    "this Idempotency-Key was used for another request; send the same request again, or use a new key",
                )
            if found.standing is KeyStanding.ANSWERED:
                assert record.reply is not None
                return Response(record.reply, own=False)
            if found.standing is KeyStanding.STALE:
                answer = await self._stale(request, record, nonce, effect)
                if answer is not None:
                    return answer
            rest = deadline - time.monotonic()
            if rest <= 0 or not await self._followers.wait(request.key, rest):
                raise Refusal(
                    self._policy.busy_status,
                    "in-progress",
                    "the first request with this Idempotency-Key is still running; send it again later to get its answer",
                    retry_after=1,
                )

    async def close(self, *, grace: float) -> None:
        """Waits up to `grace` seconds for running requests; what is left is unknown to later requests, as after a crash. Repetitions that
        wait look at the ledger once more, and are refused unless it has their answer."""
        for task in self._giving_back:
            task.cancel()
        ends = time.monotonic() + grace
        while self._tasks and (rest := ends - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=rest)
        self._closing = True
        self._followers.wake()
        while self._tasks:  # one that is cancelled notes its outcome as unknown, once
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=self._policy.store_patience)

    # --- the owner

    async def _reserve(self, request: KeyedRequest, nonce: str) -> Reservation:
        policy = self._policy
        return await self._ledger.reserve(
            request.key,
            caller=bucket_of(request.caller),
            fingerprint=request.fingerprint,
            nonce=nonce,
            lease=policy.lease,
            lifetime=policy.kept_for,
        )

    async def _own(self, request: KeyedRequest, nonce: str, effect: Effect, *, sent: float, token: int) -> Response:
        async with Beating(self._ledger, request.key, nonce, lease=self._policy.lease, sent=sent) as beating:
            return await self._run(request, nonce, effect, KeyAttempt(token, beating))

    async def _run(self, request: KeyedRequest, nonce: str, effect: Effect, attempt: KeyAttempt) -> Response:
        assert attempt.beating is not None
        hit("replies.effect.before")
        try:
            reply = await attempt.beating.bounded(effect(attempt))
        except ClaimLost:
            raise Refusal(
                503,
                "claim-lost",
                "the ledger of answers could not be reached in time, and the request was stopped; send it again to learn its outcome",
                retry_after=1,
            ) from None
        except Refusal:  # the effect proved that it has not begun
            await self._free(request, nonce)
            raise
        except BaseException:
            await self._unknown(request, nonce, pause=0.0)
            raise
        hit("replies.effect.after")
        finality = self._policy.finality(reply.status)
        if finality is Finality.UNKNOWN:
            await self._unknown(request, nonce, pause=0.0)
            return Response(reply, own=True)
        if finality is Finality.RELEASE:
            await self._free(request, nonce)
            return Response(reply, own=True)
        recorded = await self._finalized(request, nonce, reply)
        return Response(reply, own=True) if recorded is None else Response(recorded, own=False)

    async def _finalized(self, request: KeyedRequest, nonce: str, reply: Reply) -> Reply | None:
        """Records the answer. Returns another one if that is what the key has: it was taken over and decided meanwhile."""
        kept = self._policy.kept(reply)

        async def finalize() -> WriteOutcome:
            hit("replies.finalize.before")
            outcome = await self._ledger.finalize(request.key, nonce, kept, lifetime=self._policy.kept_for)
            hit("replies.finalize.after")
            return outcome

        outcome = await self._insisted(request.key, finalize)
        if outcome in (None, WriteOutcome.WRITTEN, WriteOutcome.ALREADY, WriteOutcome.NOT_FOUND):
            return None
        LOG.warning(
            "a request with key %s ended after its claim was lost: its answer is not the recorded one", request.key[:20]
        )
        return await self._decided(request)

    async def _decided(self, request: KeyedRequest) -> Reply:
        """The answer of the process that took the key over. Raises: Refusal."""
        deadline = time.monotonic() + self._policy.wait
        while time.monotonic() < deadline:
            try:
                found = await self._ledger.look(request.key)
            except StoreUnavailable:
                found = None
            if found is not None and found.record.reply is not None:
                return found.record.reply
            if found is None or found.standing is KeyStanding.STALE:
                break
            await self._followers.wait(request.key, deadline - time.monotonic())
        raise _unknown_outcome(self._policy.pause)

    async def _unknown(self, request: KeyedRequest, nonce: str, *, pause: float) -> None:
        await self._insisted(request.key, lambda: self._ledger.abandon(request.key, nonce, pause=pause))

    async def _free(self, request: KeyedRequest, nonce: str) -> None:
        await self._insisted(request.key, lambda: self._ledger.release(request.key, nonce))

    # --- a stale key

    async def _stale(self, request: KeyedRequest, record: ReplyRecord, nonce: str, effect: Effect) -> Response | None:
        """The answer, or None if another request has taken the key over."""
        if self._reconcile is None and not request.rerun:
            raise _unknown_outcome(min(3600.0, max(1.0, record.expires_at - time.time())))
        sent = time.monotonic()
        try:
            taken = await self._patiently(
                lambda: self._ledger.take_over(request.key, seen=record.nonce, nonce=nonce, lease=self._policy.lease)
            )
        except (SparkonceError, TimeoutError) as error:
            LOG.warning("a key could not be taken over: %s", error)
            raise _store_down() from None
        if taken is not WriteOutcome.WRITTEN:
            return None
        hit("replies.taken")
        return await self._shielded(self._recover(request, nonce, effect, sent=sent, token=record.takeovers + 2))

    async def _recover(self, request: KeyedRequest, nonce: str, effect: Effect, *, sent: float, token: int) -> Response:
        async with Beating(self._ledger, request.key, nonce, lease=self._policy.lease, sent=sent) as beating:
            verdict = await self._verdict(replace(request, token=token), beating)
            hit("replies.reconciled")
            if isinstance(verdict, Reply):
                other = await self._finalized(request, nonce, verdict)
                return Response(self._policy.kept(verdict) if other is None else other, own=False)
            if verdict is NotDone or isinstance(verdict, NotDone):
                return await self._run(request, nonce, effect, KeyAttempt(token, beating))
            await self._unknown(request, nonce, pause=self._policy.pause)
            raise _unknown_outcome(self._policy.pause)

    async def _verdict(self, request: KeyedRequest, beating: Beating) -> Reconciled:
        if self._reconcile is None:
            self._meter.reconciled("rerun")
            return NotDone  # the scope's `rerun`
        found: Reconciled = Unknown
        try:
            found = await beating.bounded(self._reconcile(request))
        except ClaimLost:
            pass
        except Exception:
            LOG.exception("reconcile failed for key %s: its outcome stays unknown", request.key[:20])
        self._meter.reconciled(_named(found))
        return found

    # --- a ledger that does not answer

    async def _without_ledger(self, request: KeyedRequest, nonce: str, effect: Effect) -> Response:
        if self._policy.when_store_down is StoreDown.PASS:
            return Response(await self._shielded(self._unprotected(request, nonce, effect)), own=True)
        self._insist(lambda: self._give_back(request, nonce), among=self._giving_back)
        raise _store_down()

    async def _unprotected(self, request: KeyedRequest, nonce: str, effect: Effect) -> Reply:
        """The effect's answer. Its reservation may have landed, or may land late: where nothing was done, the key is freed, and where the
        outcome is unknown, it says so once its claim has ended."""
        try:
            reply = await effect(KeyAttempt(1, None))
        except Refusal:
            self._insist(lambda: self._give_back(request, nonce), among=self._giving_back)
            raise
        finality = self._policy.finality(reply.status)
        if finality is Finality.FINAL:
            self._insist(lambda: self._record_late(request, nonce, reply))
        elif finality is Finality.RELEASE:
            self._insist(lambda: self._give_back(request, nonce), among=self._giving_back)
        return reply

    async def _give_back(self, request: KeyedRequest, nonce: str) -> None:
        """Frees the key if an unanswered reservation has landed, and looks once more whether it lands late."""
        found = await self._reserve(request, nonce)
        for _ in range(2):
            if found.record.nonce == nonce:
                await self._ledger.release(request.key, nonce)
            await asyncio.sleep(self._policy.lease)
            late = await self._ledger.look(request.key)
            if late is None:
                return
            found = late

    async def _record_late(self, request: KeyedRequest, nonce: str, reply: Reply) -> None:
        """The answer of a request that ran without protection, if its key is still free."""
        found = await self._reserve(request, nonce)
        if found.standing is KeyStanding.OWNED:
            kept = self._policy.kept(reply)
            await self._ledger.finalize(request.key, nonce, kept, lifetime=self._policy.kept_for)

    async def _patiently(self, verb: Callable[[], Awaitable[T]]) -> T:
        """Repeats a verb that was not answered. Raises: StoreUnavailable or TimeoutError after `store_patience`."""
        async with asyncio.timeout(self._policy.store_patience):
            while True:
                try:
                    return await verb()
                except StoreUnavailable:
                    await asyncio.sleep(AGAIN)

    async def _insisted(self, key: str, verb: Callable[[], Awaitable[T]]) -> T | None:
        """A write that must land: None if it was not answered in time, and goes on in the background, or if it was refused."""
        try:
            async with asyncio.timeout(self._policy.store_patience):
                return await verb()
        except (StoreUnavailable, TimeoutError):
            self._insist(lambda: self._written(key, verb))
        except SparkonceError as error:
            LOG.error("the ledger of answers refused a write: %s", error)  # noqa: TRY400 - the sentence is all there is
        finally:
            self._followers.settled(key)
        return None

    async def _written(self, key: str, verb: Callable[[], Awaitable[Any]]) -> None:
        await verb()
        self._followers.settled(key)

    def _insist(self, verb: Callable[[], Awaitable[Any]], *, among: set[asyncio.Task[Any]] | None = None) -> None:
        if among is not None and len(among) >= INSISTING:  # the others are as many as requests that ran
            return
        self._spawn(self._until_answered(verb), among=among)

    async def _until_answered(self, verb: Callable[[], Awaitable[T]]) -> T | None:
        """Repeats a verb for a lifetime at most. None: the answer was an error, which is logged."""
        ends = time.monotonic() + self._policy.lifetime
        pause = AGAIN
        while time.monotonic() < ends:
            try:
                return await verb()
            except StoreUnavailable:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
            except SparkonceError as error:
                LOG.error("the ledger of answers refused a write: %s", error)  # noqa: TRY400 - the sentence is all there is
                return None
        return None

    async def _purge(self) -> None:
        try:
            removed = PURGED
            while removed == PURGED:
                removed = await self._ledger.purge(limit=PURGED)
        except SparkonceError as error:
            LOG.warning("expired answers could not be removed: %s", error)

    # --- tasks

    def _spawn(self, work: Coroutine[Any, Any, T], *, among: set[asyncio.Task[Any]] | None = None) -> asyncio.Task[T]:
        tasks = self._tasks if among is None else among
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that goes on if its caller leaves."""
        task = self._spawn(work)
        task.add_done_callback(_looked_at)
        return await asyncio.shield(task)


def _named(verdict: Reconciled) -> str:
    """As `ReplyMeter.reconciled` has it."""
    if isinstance(verdict, Reply):
        return "answered"
    return "not-done" if verdict is NotDone or isinstance(verdict, NotDone) else "unknown"


def _looked_at(task: asyncio.Task[Any]) -> None:
    """The caller may have left: no warning that the error was never read."""
    if not task.cancelled():
        task.exception()


def _unknown_outcome(retry_after: float) -> Refusal:
    return Refusal(
        503,
        "unknown-outcome",
        "an earlier request with this Idempotency-Key ended without an answer, and whether it took effect is not known; ask for its "
        "result in another way, or send it again later",
        retry_after=retry_after,
    )


def closed(*, begun: bool) -> Refusal:
    """Of a request that its process no longer answers. `begun`: its effect may have happened."""
    detail = (
        "this process ended while it carried out the request, and whether it took effect is not known; send it again to learn its outcome"
        if begun
        else "this process ends: it has not carried out this request, and does not know what became of another one with its "
        "Idempotency-Key; send it again later to get the answer"
    )
    return Refusal(503, "shutting-down", detail, retry_after=1)


def _store_down() -> Refusal:
    return Refusal(
        503,
        "store-down",
        "the ledger of answers does not answer, and nothing was done; send the request again later",
        retry_after=1,
    )
