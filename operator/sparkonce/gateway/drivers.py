"""The drivers' control channel over HTTP: renew, seal and report, for the attempt's own pod and nobody else.

    POST /v1/attempts/{namespace}/{key_hash}/{generation}/{attempt}/renew|seal|report

Who asks must hold a token that is bound to a pod of that namespace; the pod, as the API server has it now, must be the attempt's driver,
or a settle run of it for a verdict, and must carry the nonce that the request names. Only then is the record read; where it notes an
application or a driver, the pod must be of that one. All refusals read alike, so that nobody learns from them whether a key exists.

Nothing is decided here: each request is one verb of the store, whose answer is the answer. A request may be repeated for ever, by a
driver that was frozen for an hour too; what that means, the verb says (an attempt that is over is told so). A verdict is taken only
while the record says that the attempt is being settled: one that was found before could still be overtaken by a seal.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from sparkonce.engine.callers import BoundPod, Caller, Lookup
from sparkonce.engine.entrust import REPORTER
from sparkonce.gateway.problem import Problem
from sparkonce.launch.kubeflow_speaker import Speaker, speaker_of
from sparkonce.launch.kubernetes import Json
from sparkonce.model.record import Address, Beat, Intent, Record, Report
from sparkonce.store.protocol import IdempotencyStore, Sealed

VERDICT = "verdict"
REPORTS = 1000
"""Entries of one attempt: a job that reports in a loop must not fill the ledger."""
HEARD = 10.0
"""Seconds for which a pod that was looked at may renew without another look: it prolongs an attempt lease, no more."""
MOST = 4096
"""Drivers remembered at once."""

_NOT_YOURS = "this token is not of a pod that may speak for this attempt; a driver speaks for its own attempt only, with its own token"

Namespace = Annotated[str, Path(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
KeyHash = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[int, Path(ge=1, le=2**31)]
Nonce = Annotated[str, Field(min_length=1, max_length=128)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    nonce: Nonce
    """Of the attempt, as its driver was told."""


class RenewRequest(_Body):
    progress: dict[str, Any] = {}
    """How far it is, for people."""


class RenewAnswer(BaseModel):
    current: bool
    """False: the attempt is over; nothing that it writes from now on can be committed."""


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
    """False: the ledger has no attempt that it could stand beside, or another body stands there."""


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
    def __init__(
        self,
        *,
        store: IdempotencyStore,
        objects: Lookup,
        realm_of: Callable[[str], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._objects, self._realm_of, self._clock = store, objects, realm_of, clock
        self._heard: OrderedDict[tuple[BoundPod, _Attempt], float] = OrderedDict()
        """Drivers that were looked at, and until when that counts for a heartbeat."""
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
        """Keeps the attempt lease."""
        of = self._attempt(namespace, key_hash, generation, attempt, body)
        caller: Caller = request.state.caller
        if caller.pod is None or self._clock() >= self._heard.get((caller.pod, of), 0.0):
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
        """Seals the attempt's transaction. 409: refused, with the reason; the same intent again is sealed again."""
        of = self._attempt(namespace, key_hash, generation, attempt, body)
        if body.intent.token != attempt:
            raise Problem(
                400, f"the intent is of token {body.intent.token} and the attempt is {attempt}; nothing was sealed"
            )
        await self._driver(request, of)
        answer = await self._store.seal(
            of.address, generation=generation, token=attempt, nonce=body.nonce, intent=body.intent
        )
        if not isinstance(answer, Sealed):
            record = None if answer.record is None else answer.record.dump()
            raise Problem(409, f"not sealed: {answer.reason}", refused=True, reason=answer.reason, record=record)
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
        """A create-once entry beside the record; a `verdict` is taken from a settle run alone."""
        of = self._attempt(namespace, key_hash, generation, attempt, body)
        speaker, record = await self._speaker(request, of)
        if not ((body.kind == VERDICT) == body.reporter.startswith(REPORTER) == speaker.settles):
            raise Problem(403, "a verdict is reported by a settle run and by nobody else, and it reports nothing else")
        if record is None:
            return ReportAnswer(recorded=False)
        settling = record.settling is not None and record.settling.attempt >= attempt
        if body.kind == VERDICT and not settling:
            raise Problem(409, f"attempt {attempt} is not being settled, so that no verdict about it can be final")
        entry = Report(attempt=attempt, reporter=body.reporter, kind=body.kind, body=body.body)
        before = [each for each in await self._store.reports(of.address, generation) if each.attempt == attempt]
        if len(before) >= REPORTS and all(each.reporter != body.reporter for each in before):
            raise Problem(409, f"attempt {attempt} has made {REPORTS} reports already; report less often")
        return ReportAnswer(recorded=await self._store.report(of.address, generation, entry))

    # --- who speaks

    def _attempt(self, namespace: str, key_hash: str, generation: int, attempt: int, body: _Body) -> _Attempt:
        address = Address(realm=self._realm_of(namespace), key_hash=key_hash)
        return _Attempt(namespace, address, generation, attempt, body.nonce)

    async def _driver(self, request: Request, of: _Attempt) -> None:
        speaker, record = await self._speaker(request, of)
        if speaker.settles:
            raise Problem(403, "a settle run has no token: it neither renews nor seals")
        bound = request.state.caller.pod
        self._heard.pop((bound, of), None)
        if record is not None and record.application is not None:  # until then any pod of the name may be the driver
            self._heard[bound, of] = self._clock() + HEARD
        while len(self._heard) > MOST:
            self._heard.popitem(last=False)

    async def _speaker(self, request: Request, of: _Attempt) -> tuple[Speaker, Record | None]:
        """With the record while this attempt is its current one. Problem 403: this pod may not speak for it."""
        caller: Caller = request.state.caller
        bound = caller.pod
        if bound is None:
            raise Problem(403, "this token is not bound to a pod; use the one that is mounted into the driver's pod")
        pod = await self._pod(bound) if bound.namespace == of.namespace else None
        speaker = pod and speaker_of(pod, of.address, of.generation, of.attempt, nonce=of.nonce)
        if not speaker:
            raise Problem(403, _NOT_YOURS)
        record = (await self._store.load(of.address)).record
        if not of.current(record):
            return speaker, None
        noted = None if record is None or speaker.settles else record.application
        if noted is not None and (
            speaker.application_uid not in (None, noted.uid) or noted.driver not in (None, speaker.pod_uid)
        ):
            raise Problem(403, _NOT_YOURS)
        return speaker, record

    async def _pod(self, bound: BoundPod) -> Json | None:
        """As the API server has it now; None: it is not there any more, whatever its token says."""
        found = await self._objects.pod(bound.namespace, bound.name)
        return found if found is not None and found["metadata"].get("uid") == bound.uid else None
