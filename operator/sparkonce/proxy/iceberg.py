"""The proxy's profile for Iceberg REST catalogs: keys for a catalog that has none.

A client that sends an `Idempotency-Key` with a commit gets one effect and one answer, also where the catalog answered 503 after the
commit, a connection broke, or this proxy died. Clients send keys to catalogs that advertise a lifetime, so `GET /v1/config` gains
`idempotency-key-lifetime`. A repetition that comes while the first request runs is answered 503 and never 409, which clients take for a
failed commit: they would delete its files. Refusals have Iceberg's form.

**What became of a request whose answer was lost** the catalog shows. A commit that names the snapshot on which it was made
(`assert-ref-snapshot-id`) lands at most once, so the same request is sent again, unless the table has its snapshots already:

| the catalog says | then |
| --- | --- |
| 200 | it landed now, or its first sending did: one of the two |
| 409, and the table has its snapshots | the first one landed: 200 |
| 409, and the branch has moved on without them, with no gap in its history | another commit won: that 409 |
| 409, and neither | unknown |

A 409 to the first sending is looked at, too, where the commit adds snapshots: if the table has them, something on the way sent the commit
twice, or a ledger that knew of it was lost, and the client gets 200.

A table that is created, or registered, can be created once: 409 is an answer only if the table that is there is visibly this one. Nothing
of the kind holds for what is dropped or renamed, or for properties: unknown, 503 until the lifetime ends.

**Nothing that a catalog vends is stored.** Its answers to commits have the table's metadata, and may have credentials; of these only the
status is recorded. For a repetition the proxy loads the table anew with that request's credentials, so a caller who may not load it gets
the catalog's refusal. Iceberg's specification allows the answer to show a newer state. Before it replays any other answer, the proxy asks
the catalog whether the caller may see the namespace.

Sources: the `idempotency-key` parameter of Iceberg's REST specification; apache/iceberg #13867, #17947; apache/polaris #3803.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from sparkonce.asgi import Asgi, IdempotencyMiddleware, Receive, Send, send_reply
from sparkonce.observe.meter import ReplyMeter
from sparkonce.proxy.evidence import (
    Json,
    as_list,
    as_mapping,
    has_landed,
    is_created,
    is_registered,
    json_object,
    lands_once,
    snapshots,
    stands_on,
    was_overtaken,
)
from sparkonce.proxy.upstream import Upstream
from sparkonce.replies.coordinator import KeyedRequest, NotDone, Reconciled, Refusal, Unknown
from sparkonce.replies.exchange import REPLAYED, ReplyForm, document, iso_duration, replay_of
from sparkonce.replies.keys import KeyPolicy
from sparkonce.replies.policy import ReplyPolicy, Scope
from sparkonce.replies.protocol import Reply, ReplyLedger

NAMESPACES, NAMESPACE = "/namespaces", "/namespaces/{namespace}"
TABLE, VIEW = f"{NAMESPACE}/tables/{{table}}", f"{NAMESPACE}/views/{{view}}"
OPERATIONS = (
    ("updateTable", "POST", TABLE),
    ("dropTable", "DELETE", TABLE),
    ("unregisterTable", "POST", f"{TABLE}/unregister"),
    ("replaceView", "POST", VIEW),
    ("dropView", "DELETE", VIEW),
    ("createTable", "POST", f"{NAMESPACE}/tables"),
    ("createView", "POST", f"{NAMESPACE}/views"),
    ("registerTable", "POST", f"{NAMESPACE}/register"),
    ("registerView", "POST", f"{NAMESPACE}/register-view"),
    ("updateProperties", "POST", f"{NAMESPACE}/properties"),
    ("dropNamespace", "DELETE", NAMESPACE),
    ("createNamespace", "POST", NAMESPACES),
    ("renameTable", "POST", "/tables/rename"),
    ("renameView", "POST", "/views/rename"),
    ("commitTransaction", "POST", "/transactions/commit"),
)
"""Operations with lasting effects whose parameters name the key in Iceberg's OpenAPI, by their `operationId`, and `createView`, with which
its Java client sends one. Planning a scan takes keys, too, and leaves nothing behind: it is passed on."""
LIFETIME = 3600.0
"""Seconds. Clients repeat a request for minutes; all their keys of this time share one ceiling."""
LARGEST_COMMIT = 8 * 1024 * 1024
"""Bytes of a request: schemas of thousands of columns have some."""
WHOLE = 1024 * 1024
"""Bytes up to which an answer is held until it is complete: a table's metadata with some thousand snapshots. Iceberg's client repeats a
request that got no answer, and fails the statement if an answer breaks off, for instance because this proxy dies while it sends one."""
LOADED = frozenset({"updateTable", "createTable", "registerTable", "replaceView", "createView", "registerView"})
"""Operations whose answer is what is loaded afterwards, or a part of it."""
PLAIN = frozenset({"namespace", "properties", "updated", "removed", "missing"})
"""Fields of the answers about namespaces."""
DENIED = frozenset({401, 403, 419})
"""Statuses of a caller who may not."""
SEPARATOR = "%1F"
"""Between the levels of a namespace in a path: the one that each server takes, whatever else it advertises."""
_NOT_FORWARDED = frozenset({"idempotency-key", "content-type", "content-length", "if-match", "if-none-match"})
_ERRORS = {
    400: "BadRequestException",
    500: "InternalServerError",
    502: "CommitStateUnknownException",
    503: "ServiceUnavailableException",
    504: "CommitStateUnknownException",
}
"""Types of errors, as the examples of Iceberg's OpenAPI name them for each status."""


SCOPES = tuple(
    Scope(path=f"/v1{{prefix...}}{path}", methods=frozenset({method}), operation=name)
    for name, method, path in OPERATIONS
)


_PATTERNS = tuple(
    (name, method, re.compile("(?P<root>/v1.*?)" + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)))
    for name, method, path in OPERATIONS
)


@dataclass(frozen=True)
class Operation:
    name: str
    path: str
    root: str
    """The path up to `/v1` and the prefix."""
    namespace: str
    """As in the path; empty where that has none."""

    @classmethod
    def of(cls, request: KeyedRequest) -> Operation:
        for name, method, pattern in _PATTERNS:
            if method == request.method and (found := pattern.fullmatch(request.path)) is not None:
                return cls(name, request.path, found["root"], found.groupdict().get("namespace") or "")
        raise ValueError(f"{request.method} {request.path} takes no key")

    def table(self, identifier: object) -> str | None:
        """The path of a table that a body names; None: it names none."""
        match identifier:
            case {"namespace": [*levels], "name": str(name)} if levels and all(
                isinstance(each, str) for each in levels
            ):
                return f"{self.namespace_of(levels)}/tables/{quote(name, safe='')}"
        return None

    def namespace_of(self, levels: Iterable[str]) -> str:
        return f"{self.root}{NAMESPACES}/{SEPARATOR.join(quote(each, safe='') for each in levels)}"


class CatalogPolicy(ReplyPolicy):
    def kept(self, reply: Reply) -> Reply:
        """Of a success the status alone, unless all of its fields are known to have no credentials."""
        kept = super().kept(reply)
        fields = json_object(kept.body).keys()
        if reply.status != 200 or not kept.body or (fields and fields <= PLAIN):
            return kept
        return Reply(kept.status, (), b"", len(reply.body))


def catalog_policy(lifetime: float = LIFETIME, *, service: str = "") -> ReplyPolicy:
    """lifetime: seconds. Tokens of a client change between two tries, and the catalog itself checks each caller, so none is in the key."""
    return CatalogPolicy(
        service=service,
        scopes=SCOPES,
        keys=KeyPolicy.UUID7,
        caller_in_key=False,
        lifetime=lifetime,
        busy_status=503,
        max_request_bytes=LARGEST_COMMIT,
        max_response_bytes=WHOLE,
    )


def catalog_error(refusal: Refusal) -> Reply:
    """A refusal as an Iceberg client reads it."""
    kind = _ERRORS.get(refusal.status, "UnprocessableEntityException")
    later = () if refusal.retry_after is None else (("retry-after", str(max(1, round(refusal.retry_after)))),)
    error = {"message": str(refusal), "type": kind, "code": refusal.status}
    return document(refusal.status, {"error": error}, headers=later)


class CatalogProxy(ReplyForm):
    """An ASGI application: the catalog of the upstream, with keys. Takes paths as they were sent (`paths_as_sent`): a level or a name
    with an encoded slash is one part of the path."""

    def __init__(
        self,
        upstream: Upstream,
        *,
        store: str | ReplyLedger,
        policy: ReplyPolicy | None = None,
        meter: ReplyMeter | None = None,
    ) -> None:
        """As `IdempotencyMiddleware`. Raises: InvalidInput, StoreUnusable, StoreUnavailable."""
        self._upstream, self._policy = upstream, policy or catalog_policy()
        self._app = IdempotencyMiddleware(
            upstream,
            store=store,
            policy=self._policy,
            reconcile=self.reconcile,
            caller=lambda _: "",
            form=self,
            meter=meter,
        )

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/v1/config":
            await send_reply(send, await self._config(scope))
            return
        await self._app(scope, receive, send)

    async def _config(self, scope: Asgi) -> Reply:
        query = scope.get("query_string", b"").decode("latin-1")
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        answer = await self._upstream.ask("GET", "/v1/config" + (f"?{query}" if query else ""), _plain(headers))
        if answer is None:
            return self.refused(_down())
        config = json_object(answer.body)
        if answer.status != 200 or not config:
            return _passed(answer)
        for section in ("defaults", "overrides"):  # by an address of the catalog's own, clients would go past the proxy
            config = {
                **config,
                section: {name: each for name, each in as_mapping(config.get(section)).items() if name != "uri"},
            }
        return document(200, {**config, "idempotency-key-lifetime": iso_duration(self._policy.lifetime)})

    # --- answers that are not the catalog's own

    def refused(self, refusal: Refusal) -> Reply:
        return catalog_error(refusal)

    async def replayed(self, request: KeyedRequest, recorded: Reply) -> Reply:
        """The recorded answer, if the catalog lets the caller see what it is about."""
        operation, body = Operation.of(request), json_object(request.body)
        loads = recorded.status == 200 and operation.name in LOADED
        staged = loads and _is_staged(operation, body)
        path = _shown(operation, body, loads=loads)
        answer = await (self._again(request) if staged else self._get(request, path))
        if answer is None or answer.status >= 500:
            raise _down()
        if answer.status in DENIED or staged:
            return _passed(answer)
        if not loads and recorded.status == 200 and recorded.omitted:
            raise Refusal(
                503, "gone", "the request was carried out; its answer was not kept, and cannot be given again"
            )
        if not loads:
            return replay_of(recorded)
        loaded = json_object(answer.body)
        if answer.status != 200 or not loaded:
            raise Refusal(
                503,
                "gone",
                "the request was carried out, and what it wrote to has been dropped since; its answer cannot be given",
            )
        if operation.name == "updateTable":
            return _table(loaded, headers=(REPLAYED,))
        return document(200, loaded, headers=(REPLAYED,))

    async def checked(self, request: KeyedRequest, answer: Reply) -> Reply:
        """A 409 to a commit that the table has already: something on the way sent it twice, or an earlier answer was lost together with the
        ledger. The client would delete the files of its commit."""
        if answer.status != 409:
            return answer
        operation = Operation.of(request)
        changes = _changes(operation, json_object(request.body))
        if not changes:
            return answer
        path, telling = _telling(changes)
        if not snapshots(telling):  # tags and branches may be where another client has put them
            return answer
        found = await self._get(request, path)
        if found is None or found.status >= 500:
            return self.refused(_down())  # unknown: whether the 409 is true is looked for once more
        loaded = json_object(found.body) if found.status == 200 else {}
        if not has_landed(as_mapping(loaded.get("metadata")), telling):
            return answer
        return Reply(204) if operation.name == "commitTransaction" else _table(loaded)

    # --- what became of a request

    async def reconcile(self, request: KeyedRequest) -> Reconciled:
        operation, body = Operation.of(request), json_object(request.body)
        match operation.name:
            case "updateTable" | "commitTransaction":
                changes = _changes(operation, body)
                return await self._committed(request, changes) if changes else Unknown
            case "createTable" if _is_staged(operation, body):
                return NotDone
            case "createTable":
                made = int(request.text.replace("-", "")[:12], 16)  # a UUIDv7 has its time
                return await self._created(request, operation, body, lambda found: is_created(body, found, since=made))
            case "registerTable":
                return await self._created(request, operation, body, lambda found: is_registered(body, found))
        return Unknown

    async def _committed(self, request: KeyedRequest, changes: Sequence[tuple[str, Json]]) -> Reconciled:
        path, telling = _telling(changes)
        if has_landed(await self._metadata(request, path), telling):
            return self._done(request)
        if not any(lands_once(change) for _, change in changes):
            return Unknown
        answer = await self._again(request)
        if answer is None:
            return Unknown
        if answer.status in (200, 204):
            return answer
        if answer.status not in (400, 409):
            return Unknown
        there = await self._metadata(request, path)
        if has_landed(there, telling):
            return self._done(request)
        if answer.status == 400:
            return answer
        for other, change in changes:
            if was_overtaken(there if other == path else await self._metadata(request, other), change):
                return answer
        return Unknown

    @staticmethod
    def _done(request: KeyedRequest) -> Reply:
        """What the catalog has answered, as far as it is recorded: a replay loads the rest."""
        return Reply(204) if Operation.of(request).name == "commitTransaction" else Reply(200, (), b"", 1)

    async def _created(
        self, request: KeyedRequest, operation: Operation, body: Json, is_this: Callable[[Json], bool]
    ) -> Reconciled:
        answer = await self._again(request)
        if answer is None:
            return Unknown
        if answer.status in (200, 400):
            return answer
        if answer.status != 409:
            return Unknown
        found = await self._get(request, _shown(operation, body, loads=True))
        there = found is not None and found.status == 200 and is_this(json_object(found.body))
        return Reply(200, (), b"", 1) if there else Unknown

    async def _metadata(self, request: KeyedRequest, path: str) -> Json:
        answer = await self._get(request, path)
        return (
            as_mapping(json_object(answer.body).get("metadata")) if answer is not None and answer.status == 200 else {}
        )

    async def _get(self, request: KeyedRequest, path: str) -> Reply | None:
        return await self._upstream.ask("GET", path, _plain(request.headers))

    async def _again(self, request: KeyedRequest) -> Reply | None:
        path = request.path + (f"?{request.query}" if request.query else "")
        return await self._upstream.ask(request.method, path, request.headers, request.body)


def _changes(operation: Operation, body: Json) -> list[tuple[str, Json]]:
    """The changes of a commit, by the path of their table; the catalog commits all of them or none. Empty: it is no commit, or one of
    its tables has no name."""
    if operation.name == "updateTable":
        return [(operation.path, body)]
    if operation.name != "commitTransaction":
        return []
    named = [
        (operation.table(each.get("identifier")), each) for each in map(as_mapping, as_list(body.get("table-changes")))
    ]
    whole = [(path, change) for path, change in named if path is not None]
    return whole if len(whole) == len(named) else []


def _telling(changes: Sequence[tuple[str, Json]]) -> tuple[str, Json]:
    """Path of a table, and the change of it by which the whole request is found again: one that adds snapshots if there is one, since their
    ids are the request's own, and preferably one that names the snapshot it stands on. A catalog makes all changes of a request or none."""
    return max(changes, key=lambda each: (bool(snapshots(each[1])), bool(stands_on(each[1]))))


def _table(loaded: Json, *, headers: Sequence[tuple[str, str]] = ()) -> Reply:
    """The answer to a commit, of a loaded table: without what the catalog vends beside it."""
    return document(
        200, {name: loaded[name] for name in ("metadata-location", "metadata") if name in loaded}, headers=headers
    )


def _shown(operation: Operation, body: Json, *, loads: bool) -> str:
    """The path that is asked for before a replay. loads: it is the answer."""
    match operation.name:
        case "updateTable" | "replaceView" if loads:
            return operation.path
        case "createTable" | "registerTable" | "createView" | "registerView" if loads:
            return f"{operation.path.rpartition('/')[0]}/{_kind(operation)}/{quote(str(body.get('name')), safe='')}"
        case "renameTable" | "renameView":
            found = operation.table(body.get("destination"))
        case "commitTransaction":
            changes = as_list(body.get("table-changes"))
            found = operation.table(as_mapping(changes[0]).get("identifier")) if changes else None
        case "createNamespace":
            levels = body.get("namespace")
            return operation.namespace_of(map(str, levels)) if isinstance(levels, list) else operation.path
        case "dropNamespace":
            return f"{operation.root}{NAMESPACES}"
        case _:
            return f"{operation.root}{NAMESPACES}/{operation.namespace}"
    return found.rpartition("/tables/")[0] if found else f"{operation.root}{NAMESPACES}"


def _is_staged(operation: Operation, body: Json) -> bool:
    """Whether a table is to be made by a later commit: the catalog keeps nothing of the request, and every answer is as good."""
    return operation.name == "createTable" and body.get("stage-create") is True


def _kind(operation: Operation) -> str:
    return "views" if operation.name.endswith("View") else "tables"


def _plain(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers of a request that reads, for the same caller."""
    return [(name, value) for name, value in headers if name not in _NOT_FORWARDED]


def _passed(answer: Reply) -> Reply:
    """An answer of the catalog's, as it is sent on after it was read whole."""
    kept = [
        (name, value) for name, value in answer.headers if name in ("content-type", "www-authenticate", "retry-after")
    ]
    return Reply(answer.status, (*kept, ("content-length", str(len(answer.body)))), answer.body)


def _down() -> Refusal:
    return Refusal(503, "upstream-down", "the catalog did not answer; send the request again later", retry_after=1)
