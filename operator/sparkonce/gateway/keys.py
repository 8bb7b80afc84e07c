"""The keys of a namespace over HTTP, for people and programs without access to the ledger: list, show, history, explain, and the
decisions rerun, cancel, resolve, forget.

Authorization comes before any read of a key, also for replays and keys that do not exist: without the right to read the IdempotentJobs
of a namespace a caller learns nothing about its keys. Reading needs `list` and `get` on `idempotentjobs`; each decision needs `update` on
a subresource of the same name (`idempotentjobs/rerun`, ...), so that a role that may edit objects may not decide about results. `RIGHTS`
is the whole list.

Only the realm that the namespace maps to is read: where an administrator maps several namespaces to one realm, a right in one of them
covers all keys of the realm. `by` in the history is the user name that the API server authenticated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from sparkonce.commands import describe, operate
from sparkonce.commands import remote as elsewhere
from sparkonce.commands.callers import Authorizer, Caller, Lookup
from sparkonce.commands.find import AmbiguousKey, find, find_all
from sparkonce.commands.remote import check_reported, request_cancellation
from sparkonce.gateway.decisions import Decisions
from sparkonce.gateway.drivers import Namespace
from sparkonce.gateway.problem import ProblemResponse
from sparkonce.model.identity import explicit
from sparkonce.model.record import REASON_LIMIT, Address, Record, State
from sparkonce.store.protocol import IdempotencyStore
from sparkonce.store.protocol import Query as StoreQuery

PHASES: Mapping[str, State] = {
    **dict.fromkeys(("Pending", "Running", "Recovering"), State.IN_PROGRESS),
    "Held": State.HELD,
    **dict.fromkeys(("Succeeded", "Failed", "Cancelled"), State.FINALIZED),
}
PAGE, LONGEST_PAGE = 100, 500
LOOKED_AT = 2000
"""Maximum records that one request reads to filter by phase; the page token continues from there."""
_WHOLE_HASH = 64


@dataclass(frozen=True)
class KeyRight:
    """A right on the IdempotentJobs of a namespace, as RBAC has it."""

    verb: str
    subresource: str = ""

    @property
    def resource(self) -> str:
        return f"idempotentjobs/{self.subresource}" if self.subresource else "idempotentjobs"

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


RIGHTS: Mapping[str, KeyRight] = {
    "list": KeyRight("list"),
    **{read: KeyRight("get") for read in ("show", "history", "explain")},
    **{decision: KeyRight("update", decision) for decision in ("rerun", "cancel", "resolve", "forget")},
}
"""The right that each route needs, by its name; the subresources exist for this only."""

Phase = Literal["Pending", "Running", "Recovering", "Held", "Succeeded", "Failed", "Cancelled"]
Told = dict[str, Any]


class _Because(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CancelRequest(_Because):
    reason: Annotated[str, Field(max_length=REASON_LIMIT)] = ""


class RerunRequest(_Because):
    generation: Annotated[int, Field(ge=1)] | None = None
    """The generation to follow with another one, which must be the newest: makes the request safe to repeat after a lost reply."""
    reason: Annotated[str, Field(max_length=REASON_LIMIT)] = ""


class ForgetRequest(_Because):
    reason: Annotated[str, Field(min_length=1, max_length=REASON_LIMIT)]


class ResolveRequest(ForgetRequest):
    outcome: Literal["succeeded", "failed", "retry"]


class KeyRoutes:
    """The routes for reading keys and deciding about them."""

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
        """Lists keys in the order of their hashes; `after` of one page requests the next. `key` selects those of one text, or of a hash."""
        realm = await self._allowed(request, namespace, "list")
        phases = frozenset(phase) or PHASES.keys()
        if key is not None:
            found = await find_all(self._store, realm, key)
            wanted = [record for record in found if describe.phase_of(record) in phases]
            return {"keys": [_entry(record) for record in wanted], "unreadable": [], "after": None}
        states = tuple({PHASES[name] for name in phase})
        keys: list[Told] = []
        unreadable: list[Told] = []
        looked = 0
        position: str | None = f"{realm}/{after}" if after else ""
        while position is not None and len(keys) < limit and looked < LOOKED_AT:
            size = min(limit - len(keys), LOOKED_AT - looked)
            page = await self._store.list(StoreQuery(states=states, realm=realm, after=position, limit=size))
            keys += [_entry(record) for record in page.records if describe.phase_of(record) in phases]
            unreadable += [{"keyHash": address.key_hash, "reason": why} for address, why in page.unreadable]
            looked += len(page.records) + len(page.unreadable)
            position = page.after
        return {"keys": keys, "unreadable": unreadable, "after": position and position.rpartition("/")[2]}

    async def show(self, request: Request, namespace: Namespace, key: str) -> Told:
        """Shows a key: record, recorded result, attempts. Does not read the outputs; `explain` does."""
        record = await self._record(request, namespace, key, "show")
        view = await self._store.load(record.address)
        now = view.record or record
        spec = await self._store.spec(now.address, now.generation)
        result = await self._store.result(now.address, now.generation) if now.state is State.FINALIZED else None
        attempts = describe.attempts(now, await self._store.events(now.address))
        return {
            **_entry(now),
            "owner": view.claim.owner if view.claim else None,
            "note": now.note,
            "held": now.held,
            "result": describe.result_object(result) if result else None,
            "attempts": [{**each, "began": describe.iso(each["began"])} for each in attempts],
            "job": describe.job_object(spec) if spec else None,
        }

    async def history(self, request: Request, namespace: Namespace, key: str) -> Told:
        """Lists the events of a key: who, what, why. A forgotten key is found by its full hash or its explicit text."""
        realm = await self._allowed(request, namespace, "history")
        text = unquote(key)
        record = await self._found(realm, text)
        key_hash = record.key_hash if record else _hash_of(text, realm)
        events = await self._store.events(Address(realm=realm, key_hash=key_hash)) if key_hash else []
        if not events:
            raise _no_key(namespace)
        return {"key": record.key if record else None, "keyHash": key_hash, "events": describe.history(events)}

    async def explain(self, request: Request, namespace: Namespace, key: str) -> Told:
        """Explains the state of a key: the deciding rule, its evidence, what it waits for, what would unblock it."""
        record = await self._record(request, namespace, key, "explain")
        why = await self._decisions.carry_out(lambda embedded: operate.explain(embedded, record), realm=record.realm)
        return describe.explained(record, why)

    # --- deciding

    async def rerun(self, request: Request, namespace: Namespace, key: str, body: RerunRequest) -> Told:
        """Opens the next generation of a finished key, with the recorded job."""
        record = await self._record(request, namespace, key, "rerun")
        if body.generation is not None and record.generation > body.generation:
            return describe.identity(record)
        if body.generation is not None and record.generation < body.generation:
            raise ProblemResponse(
                409,
                f"{record.key} has no generation {body.generation} to follow, its newest is {record.generation}; nothing was opened",
            )
        by = _by(request)
        opened = await self._decisions.carry_out(
            lambda embedded: elsewhere.rerun(embedded, record, by=by, reason=body.reason), realm=record.realm, by=by
        )
        return describe.identity(opened)

    async def cancel(
        self, request: Request, namespace: Namespace, key: str, body: CancelRequest, response: Response
    ) -> Told:
        """Requests cancellation of a running generation. 202: requested; poll the key for the outcome."""
        record = await self._record(request, namespace, key, "cancel")
        now = await request_cancellation(self._store, record, by=_by(request), reason=body.reason)
        response.status_code = 200 if now.state is State.FINALIZED else 202
        return describe.identity(now)

    async def resolve(self, request: Request, namespace: Namespace, key: str, body: ResolveRequest) -> Told:
        """Decides a held key. The outputs are checked first, and their evidence takes precedence."""
        record = await self._record(request, namespace, key, "resolve")
        by = _by(request)
        ending = await self._decisions.carry_out(
            lambda embedded: operate.resolve(embedded, record, body.outcome, by=by, reason=body.reason),
            realm=record.realm,
            by=by,
        )
        return describe.ending_object(ending)

    async def forget(self, request: Request, namespace: Namespace, key: str, body: ForgetRequest) -> Told:
        """Removes the record of a finished key; its generation numbers, tables and history are kept."""
        record = await self._record(request, namespace, key, "forget")
        await check_reported(record, self._objects.job)
        floor = await operate.forget(self._store, record, by=_by(request), reason=body.reason)
        return {"key": record.key, "keyHash": record.key_hash, "forgotten": True, "floor": floor}

    # --- authorization

    async def _allowed(self, request: Request, namespace: str, route: str) -> str:
        """Authorizes the caller for a route of `RIGHTS` and returns the namespace's realm.

        Raises:
            ProblemResponse: 403: the caller lacks the right.
        """
        caller: Caller = request.state.caller
        right = RIGHTS[route]
        if not await self._authorizer.allowed(
            caller, verb=right.verb, namespace=namespace, subresource=right.subresource
        ):
            raise ProblemResponse(
                403, f"{caller.name} may not {right} in namespace {namespace}; ask for a role that allows it"
            )
        return self._realm_of(namespace)

    async def _record(self, request: Request, namespace: str, key: str, route: str) -> Record:
        realm = await self._allowed(request, namespace, route)
        record = await self._found(realm, unquote(key))
        if record is None:
            raise _no_key(namespace)
        return record

    async def _found(self, realm: str, text: str) -> Record | None:
        """The record that a text names. Raises: ProblemResponse: 409: several keys read alike; `matches` lists them, nothing was done."""
        try:
            return await find(self._store, realm, text)
        except AmbiguousKey as several:
            matches = [_entry(record) for record in several.records[:PAGE]]
            raise ProblemResponse(409, str(several), matches=matches) from None


def _no_key(namespace: str) -> ProblemResponse:
    return ProblemResponse(
        404, f"there is no such key in namespace {namespace}; `kubectl sparkonce list -n {namespace}` lists them"
    )


def _entry(record: Record) -> Told:
    return {**describe.identity(record), **describe.times(record)}


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
