"""The drivers' control channel over HTTP: renew, seal and report, only for the attempt's own pod.

    POST /v1/attempts/{namespace}/{key_hash}/{generation}/{attempt}/renew|seal|report

The caller's token must be bound to a pod of that namespace. The pod, as the API server currently has it, must be the attempt's driver
(for a verdict: a settle run of it) and must carry the nonce in the request. Only then is the record read; if it names an application or
a driver pod, the caller's must match. All refusals have the same text, so that they do not reveal whether a key exists.

Nothing is decided here: each request is one verb of the store, and its outcome is the response. Requests may be repeated at any time,
also by a driver that was frozen for an hour; the verb reports an attempt that is over. A verdict is accepted only while the record is
settling the attempt: an earlier one could still be overtaken by a seal.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from sparkonce.attempt.settle_runs import REPORTER
from sparkonce.commands.callers import BoundPod, Caller, Lookup
from sparkonce.errors import InvalidInput
from sparkonce.gateway.problem import ProblemResponse
from sparkonce.launch.kubeflow.speaker import Speaker, has_token, speaker_of
from sparkonce.launch.kubernetes import Json
from sparkonce.model.record import Address, Beat, Intent, Record, Report
from sparkonce.sink.sealed import outputs_of, sealed_slots
from sparkonce.store.protocol import IdempotencyStore, Sealed

VERDICT = "verdict"
HEARD = 10.0
"""Seconds for which a verified pod may renew without being verified again: it can only prolong an attempt lease."""
MOST = 4096
"""Maximum cached drivers."""

_NOT_YOURS = "this token belongs to no pod of this attempt; a driver may act only for its own attempt, with the token mounted in its pod"

Namespace = Annotated[str, Path(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
KeyHash = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[int, Path(ge=1, le=2**31)]
Nonce = Annotated[str, Field(min_length=1, max_length=128)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    nonce: Nonce
    """The attempt's nonce, from the driver's assignment."""


class RenewRequest(_Body):
    progress: dict[str, Any] = {}
    """Progress for display."""


class RenewAnswer(BaseModel):
    current: bool
    """False: the attempt is over, and nothing that it writes from now on can be committed."""


class SealRequest(_Body):
    intent: Intent


class SealAnswer(BaseModel):
    record: dict[str, Any]


class ReportRequest(_Body):
    reporter: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
    kind: Annotated[str, Field(pattern=r"^[a-z][a-z-]{0,31}$")]
    body: dict[str, Any] = {}


class ReportAnswer(BaseModel):
    recorded: bool
    """False: the ledger has no such attempt, or already a report of this reporter with another body."""


@dataclass(frozen=True)
class _Attempt:
    namespace: str
    address: Address
    generation: int
    attempt: int
    nonce: str

    def current(self, record: Record | None) -> bool:
        return record is not None and (record.generation, record.attempt, record.nonce) == (
            self.generation,
            self.attempt,
            self.nonce,
        )


class DriverRoutes:
    """The three routes of drivers."""

    def __init__(
        self,
        *,
        store: IdempotencyStore,
        objects: Lookup,
        realm_of: Callable[[str], str],
        audience: str,
        accept_api_tokens: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._audience, self._accept_api_tokens = audience, accept_api_tokens
        self._store, self._objects, self._realm_of, self._clock = store, objects, realm_of, clock
        self._heard: OrderedDict[tuple[BoundPod, bool, _Attempt], float] = OrderedDict()
        """Verified drivers, each with the time until which it may renew without being verified again."""
        self.router = APIRouter(prefix="/v1/attempts/{namespace}/{key_hash}/{generation}/{attempt}", tags=["drivers"])
        for verb, answer in ((self.renew, RenewAnswer), (self.seal, SealAnswer), (self.report, ReportAnswer)):
            self.router.add_api_route(f"/{verb.__name__}", verb, methods=["POST"], response_model=answer)

    async def renew(
        self,
        request: Request,
        *,
        namespace: Namespace,
        key_hash: KeyHash,
        generation: Number,
        attempt: Number,
        body: RenewRequest,
    ) -> RenewAnswer:
        """Renews the attempt lease."""
        of = self._attempt(namespace, key_hash, generation, attempt, body)
        caller: Caller = request.state.caller
        if caller.pod is None or self._clock() >= self._heard.get((caller.pod, caller.for_gateway, of), 0.0):
            await self._driver(request, of)
        beat = Beat(attempt=attempt, nonce=body.nonce, by="driver", progress=body.progress)
        return RenewAnswer(current=await self._store.renew(of.address, generation, beat))

    async def seal(
        self,
        request: Request,
        *,
        namespace: Namespace,
        key_hash: KeyHash,
        generation: Number,
        attempt: Number,
        body: SealRequest,
    ) -> SealAnswer:
        """Seals the attempt's transaction. 409: refused, with the reason. Repeating the same intent succeeds."""
        of = self._attempt(namespace, key_hash, generation, attempt, body)
        if body.intent.token != attempt:
            raise ProblemResponse(
                400, f"the intent's token is {body.intent.token}, but the attempt is {attempt}; nothing was sealed"
            )
        current = await self._driver(request, of)
        if current is not None:  # else the store refuses it, and says why
            await self._check(body.intent, current)
        answer = await self._store.seal(
            of.address, generation=generation, token=attempt, nonce=body.nonce, intent=body.intent
        )
        if not isinstance(answer, Sealed):
            record = None if answer.record is None else answer.record.dump()
            raise ProblemResponse(
                409, f"not sealed: {answer.reason}", refused=True, reason=answer.reason, record=record
            )
        return SealAnswer(record=answer.record.dump())

    async def report(
        self,
        request: Request,
        *,
        namespace: Namespace,
        key_hash: KeyHash,
        generation: Number,
        attempt: Number,
        body: ReportRequest,
    ) -> ReportAnswer:
        """Stores a report once per reporter; a `verdict` is accepted only from a settle run. 413: it is too large, or the attempt has
        reported as much as it may."""
        of = self._attempt(namespace, key_hash, generation, attempt, body)
        speaker, record = await self._speaker(request, of)
        if not ((body.kind == VERDICT) == body.reporter.startswith(REPORTER) == speaker.settles):
            raise ProblemResponse(
                403, "a settle run reports a verdict and nothing else, and only a settle run may report one"
            )
        if record is None:
            return ReportAnswer(recorded=False)
        settling = record.settling is not None and record.settling.attempt >= attempt
        if body.kind == VERDICT and not settling:
            raise ProblemResponse(409, f"attempt {attempt} is not being settled, so no verdict on it can be final")
        entry = Report(attempt=attempt, reporter=body.reporter, kind=body.kind, body=body.body)
        return ReportAnswer(recorded=await self._store.report(of.address, generation, entry))

    # --- authorizing the caller's pod

    def _attempt(self, namespace: str, key_hash: str, generation: int, attempt: int, body: _Body) -> _Attempt:
        address = Address(realm=self._realm_of(namespace), key_hash=key_hash)
        return _Attempt(namespace, address, generation, attempt, body.nonce)

    async def _check(self, intent: Intent, record: Record) -> None:
        """Checks an intent before it is sealed. Raises: ProblemResponse: 400: it could never be committed."""
        spec = await self._store.spec(record.address, record.generation)
        try:
            sealed_slots(
                intent,
                key_hash=record.key_hash,
                generation=record.generation,
                fingerprint=record.fingerprint,
                outputs={} if spec is None else outputs_of(spec),
            )
        except InvalidInput as invalid:
            raise ProblemResponse(400, f"{invalid}; nothing was sealed") from None

    async def _driver(self, request: Request, of: _Attempt) -> Record | None:
        """As `_speaker`, for a driver only."""
        speaker, record = await self._speaker(request, of)
        if speaker.settles:
            raise ProblemResponse(403, "a settle run may only report its verdict; it neither renews nor seals")
        caller: Caller = request.state.caller
        assert caller.pod is not None  # else it is not a speaker
        heard = caller.pod, caller.for_gateway, of
        self._heard.pop(heard, None)
        if record is not None and record.application is not None:  # before that, any pod of that name may be the driver
            self._heard[heard] = self._clock() + HEARD
        while len(self._heard) > MOST:
            self._heard.popitem(last=False)
        return record

    async def _speaker(self, request: Request, of: _Attempt) -> tuple[Speaker, Record | None]:
        """The caller's pod, and the record if this attempt is its current one.

        Raises:
            ProblemResponse: 403: the pod is neither a driver nor a settle run of the attempt, or the token is for the API server although
                the pod has one for the gateway. A pod without one was started by an earlier version, and goes on with what it has.
        """
        caller: Caller = request.state.caller
        bound = caller.pod
        if bound is None:
            raise ProblemResponse(403, "this token is not bound to a pod; use the one mounted into the driver's pod")
        pod = await self._pod(bound) if bound.namespace == of.namespace else None
        speaker = pod and speaker_of(pod, of.address, of.generation, of.attempt, nonce=of.nonce)
        if not speaker or not (caller.for_gateway or self._accept_api_tokens or not has_token(pod, self._audience)):
            raise ProblemResponse(403, _NOT_YOURS)
        record = (await self._store.load(of.address)).record
        if not of.current(record):
            return speaker, None
        noted = None if record is None or speaker.settles else record.application
        if noted is not None and (
            speaker.application_uid not in (None, noted.uid) or noted.driver not in (None, speaker.pod_uid)
        ):
            raise ProblemResponse(403, _NOT_YOURS)
        return speaker, record

    async def _pod(self, bound: BoundPod) -> Json | None:
        """The pod as the API server currently has it; None if it no longer exists, even if its token is still valid."""
        found = await self._objects.pod(bound.namespace, bound.name)
        return found if found is not None and found["metadata"].get("uid") == bound.uid else None
