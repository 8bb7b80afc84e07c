"""The keys of a namespace over HTTP, for people and programs that do not reach the ledger: list, show, history, explain, and what a
person decides (rerun, cancel, resolve, forget).

The right is asked for before a key is looked at, replays and keys that do not exist included: who may not read the IdempotentJobs of a
namespace learns nothing of its keys. Reading is `list` and `get` on `idempotentjobs`; each decision is `update` on a subresource of its
own name (`idempotentjobs/rerun`, ...), so that a role that may edit objects may not decide about results.

The ledger's realm of a namespace is looked at, nothing else: where an administrator maps several namespaces to one realm, a right in one
of them is a right about all keys of the realm. `by` in the history is the user's name as the API server says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from sparkonce.engine import elsewhere, operate, telling
from sparkonce.engine.callers import Authorizer, Caller, Lookup
from sparkonce.engine.finding import find
from sparkonce.engine.told import check_told
from sparkonce.engine.wishing import ask_to_stop
from sparkonce.gateway.decisions import Decisions
from sparkonce.gateway.drivers import Namespace
from sparkonce.gateway.problem import Problem
from sparkonce.model.key import explicit
from sparkonce.model.record import Address, Record, State
from sparkonce.store.protocol import IdempotencyStore
from sparkonce.store.protocol import Query as StoreQuery

PHASES: Mapping[str, State] = {
    **dict.fromkeys(("Pending", "Running", "Recovering"), State.IN_PROGRESS),
    "Held": State.HELD,
    **dict.fromkeys(("Succeeded", "Failed", "Cancelled"), State.FINALIZED),
}
PAGE, LONGEST_PAGE = 100, 500
LOOKED_AT = 2000
"""Records that one request looks at for those of a phase; the page's token leads on from there."""
_WHOLE_HASH = 64

Phase = Literal["Pending", "Running", "Recovering", "Held", "Succeeded", "Failed", "Cancelled"]
Told = dict[str, Any]


class _Because(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CancelRequest(_Because):
    reason: Annotated[str, Field(max_length=1000)] = ""


class RerunRequest(_Because):
    generation: Annotated[int, Field(ge=1)] | None = None
    """The generation that is to be followed by another; a repetition after a lost reply then opens no second one."""


class ForgetRequest(_Because):
    reason: Annotated[str, Field(min_length=1, max_length=1000)]


class ResolveRequest(ForgetRequest):
    outcome: Literal["succeeded", "failed", "retry"]


class KeyRoutes:
    def __init__(
        self,
        *,
        store: IdempotencyStore,
        authorizer: Authorizer,
        objects: Lookup,
        decisions: Decisions,
        realm_of: Callable[[str], str],
    ) -> None:
        self._store, self._authorizer, self._objects = store, authorizer, objects
        self._decisions, self._realm_of = decisions, realm_of
        self.router = APIRouter(prefix="/v1/namespaces/{namespace}/keys", tags=["keys"])
        self.router.add_api_route("", self.list, methods=["GET"])
        self.router.add_api_route("/{key}", self.show, methods=["GET"])
        for read in (self.history, self.explain):
            self.router.add_api_route(f"/{{key}}/{read.__name__}", read, methods=["GET"])
        for decide in (self.rerun, self.cancel, self.resolve, self.forget):
            self.router.add_api_route(f"/{{key}}/{decide.__name__}", decide, methods=["POST"])

    # --- reading

    async def list(
        self,
        request: Request,
        namespace: Namespace,
        *,
        phase: Annotated[Sequence[Phase], Query()] = (),
        key: str | None = None,
        limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE)] = PAGE,
        after: Annotated[str, Query(pattern="^([0-9a-f]{64})?$")] = "",
    ) -> Told:
        """A page of keys, in the order of their hashes; `after` of one page asks for the next. `key` asks for one by its text."""
        realm = await self._allowed(request, namespace, "list")
        phases = frozenset(phase) or PHASES.keys()
        if key is not None:
            found = await find(self._store, realm, key)
            wanted = [] if found is None or telling.phase_of(found) not in phases else [found]
            return {"keys": [_entry(record) for record in wanted], "unreadable": [], "after": None}
        states = tuple({PHASES[name] for name in phase})
        keys: list[Told] = []
        unreadable: list[Told] = []
        looked = 0
        position: str | None = f"{realm}/{after}" if after else ""
        while position is not None and len(keys) < limit and looked < LOOKED_AT:
            size = min(limit - len(keys), LOOKED_AT - looked)
            page = await self._store.list(StoreQuery(states=states, realm=realm, after=position, limit=size))
            keys += [_entry(record) for record in page.records if telling.phase_of(record) in phases]
            unreadable += [{"keyHash": address.key_hash, "reason": why} for address, why in page.unreadable]
            looked += len(page.records) + len(page.unreadable)
            position = page.after
        return {"keys": keys, "unreadable": unreadable, "after": position and position.rpartition("/")[2]}

    async def show(self, request: Request, namespace: Namespace, key: str) -> Told:
        """One key: its record, its result as recorded, its attempts. The outputs are not looked at; `explain` does."""
        record = await self._record(request, namespace, key, "get")
        view = await self._store.load(record.address)
        now = view.record or record
        spec = await self._store.spec(now.address, now.generation)
        result = await self._store.result(now.address, now.generation) if now.state is State.FINALIZED else None
        attempts = telling.attempts(now, await self._store.events(now.address))
        return {
            **_entry(now),
            "owner": view.claim.owner if view.claim else None,
            "note": now.note,
            "held": now.held,
            "result": telling.result_object(result) if result else None,
            "attempts": [{**each, "began": telling.iso(each["began"])} for each in attempts],
            "job": spec.job if spec else None,
        }

    async def history(self, request: Request, namespace: Namespace, key: str) -> Told:
        """Who did what to a key, and why; of a key that was forgotten by its whole hash, or the text that a client chose."""
        realm = await self._allowed(request, namespace, "get")
        text = unquote(key)
        record = await find(self._store, realm, text)
        key_hash = record.key_hash if record else _hash_of(text, realm)
        events = await self._store.events(Address(realm=realm, key_hash=key_hash)) if key_hash else []
        if not events:
            raise _no_key(namespace)
        return {"key": record.key if record else None, "keyHash": key_hash, "events": telling.history(events)}

    async def explain(self, request: Request, namespace: Namespace, key: str) -> Told:
        """Why a key stands where it stands: the row that decides, the evidence, what it waits for, what would unblock it."""
        record = await self._record(request, namespace, key, "get")
        why = await self._decisions.carry_out(lambda embedded: operate.explain(embedded, record))
        return telling.explained(record, why)

    # --- deciding

    async def rerun(self, request: Request, namespace: Namespace, key: str, body: RerunRequest) -> Told:
        """Opens the next generation of a finished key, with the job as it was recorded."""
        record = await self._record(request, namespace, key, "update", "rerun")
        if body.generation is not None and record.generation > body.generation:
            return telling.identity(record)
        opened = await self._decisions.carry_out(lambda embedded: elsewhere.rerun(embedded, record), by=_by(request))
        return telling.identity(opened)

    async def cancel(
        self, request: Request, namespace: Namespace, key: str, body: CancelRequest, response: Response
    ) -> Told:
        """Asks for the end of a running generation; 202: it is asked for, look at the key for what becomes of it."""
        record = await self._record(request, namespace, key, "update", "cancel")
        now = await ask_to_stop(self._store, record, by=_by(request), reason=body.reason)
        response.status_code = 200 if now.state is State.FINALIZED else 202
        return telling.identity(now)

    async def resolve(self, request: Request, namespace: Namespace, key: str, body: ResolveRequest) -> Told:
        """Decides a held key. The outputs are asked first, and what they say wins."""
        record = await self._record(request, namespace, key, "update", "resolve")
        by = _by(request)
        ending = await self._decisions.carry_out(
            lambda embedded: operate.resolve(embedded, record, body.outcome, by=by, reason=body.reason), by=by
        )
        return telling.ending_object(ending)

    async def forget(self, request: Request, namespace: Namespace, key: str, body: ForgetRequest) -> Told:
        """Removes the record of a finished key; its generation numbers stay used, its tables and its history stay."""
        record = await self._record(request, namespace, key, "update", "forget")
        await check_told(record, self._objects.job)
        floor = await operate.forget(self._store, record, by=_by(request), reason=body.reason)
        return {"key": record.key, "keyHash": record.key_hash, "forgotten": True, "floor": floor}

    # --- who may

    async def _allowed(self, request: Request, namespace: str, verb: str, subresource: str = "") -> str:
        """The namespace's realm. Problem 403."""
        caller: Caller = request.state.caller
        if not await self._authorizer.allowed(caller, verb=verb, namespace=namespace, subresource=subresource):
            resource = f"idempotentjobs/{subresource}" if subresource else "idempotentjobs"
            raise Problem(
                403, f"{caller.name} may not {verb} {resource} in namespace {namespace}; ask for a role that may"
            )
        return self._realm_of(namespace)

    async def _record(self, request: Request, namespace: str, key: str, verb: str, subresource: str = "") -> Record:
        realm = await self._allowed(request, namespace, verb, subresource)
        record = await find(self._store, realm, unquote(key))
        if record is None:
            raise _no_key(namespace)
        return record


def _no_key(namespace: str) -> Problem:
    return Problem(
        404, f"there is no such key in namespace {namespace}; GET /v1/namespaces/{namespace}/keys lists them"
    )


def _entry(record: Record) -> Told:
    return {**telling.identity(record), **telling.times(record)}


def _hash_of(text: str, realm: str) -> str | None:
    if len(text) == _WHOLE_HASH and set(text) <= set("0123456789abcdef"):
        return text
    try:
        return explicit(text, realm).key_hash
    except ValueError:
        return None


def _by(request: Request) -> str:
    caller: Caller = request.state.caller
    return caller.name
