"""Acts of a random tenant: requests to a gateway and to the API server, drawn with hypothesis. This module only draws them; `attacker.py`
carries them out.

What an act means depends on the state that it meets, so an act is a text with placeholders: `@NONCE@` is the nonce of one of the tenant's
own attempts, `@OTHER@` the namespace of the other team. The same seed draws the same acts for each test world. Half of the values are
valid, because a request that fails at its first field never reaches the code behind it.

Trees of values come from `documents.py`, by a seed that hypothesis draws. They are not shrunk, because the state that an act met no longer
exists.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from harness.forged import empty_slot
from harness.jobs import job
from security.documents import SCHEMA, TEXTS, anything, drawn, drawn_job, mutated_tree, nested

POOL = 8
"""The number of objects whose names acts reuse, so that they affect each other's."""

STATUS = SCHEMA["properties"]["status"]
SLOT = empty_slot("@HASH@-rows-g@GENERATION@", token="@#ATTEMPT@", fingerprint="@FINGERPRINT@")
VALID: dict[str, dict[str, Any]] = {
    "renew": {"nonce": "@NONCE@", "progress": {"rows": 7}},
    "seal": {"nonce": "@NONCE@", "intent": {"token": "@#ATTEMPT@", "slots": {"rows": SLOT}}},
    "report": {"nonce": "@NONCE@", "reporter": "r-1", "kind": "values", "body": {"rows": 3}},
    "rerun": {"generation": "@#GENERATION@", "reason": "r"},
    "cancel": {"reason": "r"},
    "resolve": {"reason": "r", "outcome": "retry"},
    "forget": {"reason": "r"},
}
"""Valid bodies of the gateway's routes. A text `@#NAME@` becomes a number."""
SPEAKS = ("renew", "seal", "report")
DECIDES = ("rerun", "cancel", "resolve", "forget")
KINDS = ("values", "committed", "verdict", "progress", "failed", "expectation")

ODD_SEGMENTS = (
    *("", ".", "..", "%2e%2e", "%00", "\x00", "%2F", "a%2Fb", "..%2F..%2F@OTHER@", "%", "%zz", "%c3%28", "%ed%a0%80", "\xe9", "*"),
    *("-1", "0", "00", "01", "+1", "1_0", "1.0", "1e3", "0x1", "99999999999999999999", "9" * 5000, "%D9%A3", "2147483648", "null"),
    *("x" * 253, "x" * 8000, "@OTHERHASH@", "@OTHER@", "@HASH@", "@SHORT@", "a;b", "a//b", "kube-system", "-", "f" * 64, "F" * 64),
)  # fmt: skip
ODD_HEADERS = (
    *("Content-Type: text/plain", "Content-Type: application/json; charset=utf-16", "Content-Type: multipart/form-data; boundary=x"),
    *("Content-Type: application/x-www-form-urlencoded", "Content-Encoding: gzip", "Accept: text/html", "Accept-Encoding: zstd"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: identity", "Content-Length: 0", "Content-Length: -1", "Content-Length: 1e1"),
    *("Authorization: Bearer other", "Authorization: Basic eA==", "Host: @OTHER@", "Host:", "Connection: close", "Connection: upgrade"),
    *("Upgrade: h2c", "Expect: 100-continue", "X-Forwarded-For: 127.0.0.1", "X-Remote-User: system:admin", "Range: bytes=0-"),
    *("Impersonate-User: system:admin", "Impersonate-Group: system:masters", "X-Http-Method-Override: DELETE", "X-Original-URL: /metrics"),
    *("X: " + "x" * 40_000, "X: \xff\xfe", "X: a\x00b", "no colon", " folded: x", "Idempotency-Key: @OTHERHASH@", "If-Match: *"),
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "FOO", "post", "")
TOKENS = ("driver", "person", "api", "unbound", "twin", "none", "garbage", "odd")


@dataclass(frozen=True, kw_only=True)
class Http:
    """A request to the gateway."""

    attempt: int
    """Number of the tenant's own attempt that provides the placeholders and the driver's token."""
    token: str
    method: str
    path: str
    headers: Sequence[str]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Kube:
    """A request to the API server."""

    attempt: int
    verb: str
    resource: str
    """One of jobs, applications and pods."""
    name: str
    subresource: str = ""
    foreign: bool = False
    """True: in the other team's namespace."""
    body: str = ""
    """JSON text."""


Act = Http | Kube

PLACES = (
    "@OTHERTABLE@",
    "@LAKE@/../@OTHER@/before",
    "s3://@OTHER@/x",
    "/",
    "@LAKE@",
    "@LAKE@/\0",
    "@LAKE@/" + "x" * 300,
)
CHANGES = (
    *("create", "create", "create", "spec", "spec", "status", "status", "status", "status", "metadata", "delete"),
    *("application", "stranger", "gone"),
)
STATES = ("", "SUBMITTED", "RUNNING", "SUCCEEDING", "COMPLETED", "FAILED", "SUSPENDED", "INVALIDATING", "UNKNOWN")
"""States of applications. tests/launch/test_kubeflow_anything.py covers all others, which the fake Spark operator does not produce."""

seeds = st.integers(0, 2**64 - 1)
chances = seeds.map(Random)
numbers = st.integers(0, 63)
texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=60))
labels = st.dictionaries(
    st.sampled_from(["sparkonce.dev/key", "sparkonce.dev/nonce", "sparkonce.dev/attempt", "sparkonce.dev/role", "a"]),
    st.sampled_from(["", "1", "2", "@NONCE@", "settle", "x" * 63]) | st.none(),
    max_size=3,
)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any], *, one_in: int = 8) -> st.SearchStrategy[Any]:
    """The usual value, with an odd one in about one of `one_in` draws."""
    return st.integers(1, one_in).flatmap(
        lambda number: odd if number == (one_in + 1) // 2 else usual
    )  # the middle, since hypothesis prefers the ends


def written(tree: Any) -> bytes:
    return json.dumps(tree).encode()


@st.composite
def _mutated(draw: st.DrawFn, valid: dict[str, Any]) -> bytes:
    """A valid body with some values replaced, removed, renamed or nested."""
    return written(mutated_tree(draw(chances), valid))


@st.composite
def _with_value(draw: st.DrawFn, valid: dict[str, Any]) -> bytes:
    """A valid body with an arbitrary value in one of its fields, or in an unknown one."""
    name = draw(st.sampled_from([*valid, "extra"]))
    return written({**valid, name: draw(trees | chances.map(anything))})


@st.composite
def _free(draw: st.DrawFn, valid: dict[str, Any]) -> bytes:
    """A valid body with arbitrary content in the fields that may hold anything."""
    free = draw(trees | chances.map(anything) | chances.map(lambda chance: nested(chance, "x")))
    inside = {"progress": free, "body": free, "reason": free}
    return written({name: inside.get(name, value) for name, value in valid.items()})


def _deep(depth: int) -> bytes:
    return b'{"nonce":"@NONCE@","progress":' + b"[" * depth + b"]" * depth + b"}"


def _raw() -> st.SearchStrategy[bytes]:
    huge = st.sampled_from([10_000, 70_000, 300_000, 1_100_000]).map(lambda size: b'{"nonce":"' + b"x" * size + b'"}')
    many = st.sampled_from([1000, 60_000]).map(
        lambda count: b'{"nonce":"@NONCE@","progress":{' + b'"a":1,' * count + b'"b":1}}'
    )
    few = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"1",
        b'"@NONCE@"',
        b"NaN",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'{"nonce":"@NONCE@"} x',
    ]
    few += [b'{"nonce":"@NONCE@","nonce":"x"}', b'{"nonce":' + b"9" * 5000 + b"}"]
    few += [b'{"nonce":"@NONCE@","progress":{"a":1e400}}']
    return st.one_of(
        st.sampled_from(few), huge, many, st.binary(max_size=200), st.sampled_from([50, 900, 30_000]).map(_deep)
    )


def _bodies(verb: str) -> st.SearchStrategy[bytes]:
    valid = VALID[verb]
    sound = st.just(written(valid))
    return st.one_of(
        sound,
        sound,
        _mutated(valid),
        _mutated(valid),
        _with_value(valid),
        _free(valid),
        _free(valid),
        _free(valid),
        _raw(),
    )


def _segments(usual: str) -> st.SearchStrategy[str]:
    return mostly(st.just(usual), st.sampled_from(ODD_SEGMENTS), one_in=25)


@st.composite
def speaks(draw: st.DrawFn) -> Http:
    """A request that a driver sends: a heartbeat, a seal or a report, for any attempt."""
    verb = draw(st.sampled_from(SPEAKS))
    owner = draw(st.sampled_from(["@OWN@", "@OWN@", "@OWN@", "@OTHER@"]))
    of = draw(st.sampled_from(["@HASH@", "@HASH@", "@HASH@", "@HASH@", "@HASH2@", "@OTHERHASH@"]))
    if (owner, of) == ("@OWN@", "@HASH@"):
        parts = [draw(_segments(each)) for each in (owner, of, "@GENERATION@", "@ATTEMPT@", verb)]
        body = draw(_bodies(verb))
    else:  # a fault in it would be refused before its sender is checked
        parts = [
            owner,
            of,
            draw(st.sampled_from(["@GENERATION@", "1"])),
            draw(st.sampled_from(["@ATTEMPT@", "1"])),
            verb,
        ]
        body = draw(st.just(written(VALID[verb])) | _free(VALID[verb]))
    if verb == "report":  # reports of one name are stored once
        body = body.replace(b'"r-1"', f'"r-{draw(numbers)}"'.encode())
        body = body.replace(b'"values"', f'"{draw(st.sampled_from(KINDS))}"'.encode())
    return draw(_sent("POST", "/v1/attempts/" + "/".join(parts), body, token="driver"))


@st.composite
def decides(draw: st.DrawFn) -> Http:
    """A request that a person sends: a look at keys, or a decision about one."""
    owner = draw(_segments(draw(st.sampled_from(["@OWN@"] * 5 + ["@OTHER@"]))))
    key = draw(_segments(draw(st.sampled_from(["@HASH@", "@SHORT@", "@KEY@", "@OTHERHASH@"]))))
    verb = draw(st.sampled_from(["", "show", "history", "explain", *DECIDES]))
    base = f"/v1/namespaces/{owner}/keys"
    if verb in DECIDES:
        return draw(_sent("POST", f"{base}/{key}/{verb}", draw(_bodies(verb))))
    if verb == "":
        odd = (
            st.sampled_from(["phase", "limit", "after", "key", "realm", "x"]),
            st.sampled_from([*ODD_SEGMENTS, "Held", "5"]),
        )
        query = "&".join(f"{name}={value}" for name, value in draw(st.lists(st.tuples(*odd), max_size=3)))
        return draw(_sent("GET", f"{base}?{query}", b""))
    return draw(_sent("GET", f"{base}/{key}" + ("" if verb == "show" else f"/{verb}"), b""))


@st.composite
def wanders(draw: st.DrawFn) -> Http:
    """A GET of an arbitrary path."""
    parts = draw(
        st.lists(st.sampled_from(["v1", "attempts", "namespaces", "keys", "metrics", *ODD_SEGMENTS]), max_size=7)
    )
    whole = st.sampled_from(
        ["/metrics", "/healthz", "/readyz", "/openapi.json", "/v1/config", "/docs", "*", "http://x/v1/config"]
    )
    return draw(_sent("GET", draw(st.just("/" + "/".join(parts)) | whole), draw(_raw())))


@st.composite
def _sent(draw: st.DrawFn, method: str, path: str, body: bytes, *, token: str = "person") -> Http:
    return Http(
        attempt=draw(numbers),
        token=draw(mostly(st.just(token), st.sampled_from(TOKENS), one_in=5)),
        method=draw(mostly(st.just(method), st.sampled_from(METHODS), one_in=15)),
        path=path,
        headers=draw(mostly(st.just([]), st.lists(st.sampled_from(ODD_HEADERS), min_size=1, max_size=3), one_in=4)),
        body=body,
    )


def sound(verb: str) -> Http:
    """A valid request of the tenant's first driver."""
    path = f"/v1/attempts/@OWN@/@HASH@/@GENERATION@/@ATTEMPT@/{verb}"
    return Http(attempt=0, token="driver", method="POST", path=path, headers=(), body=written(VALID[verb]))


def tenants_job(name: str, key: str) -> dict[str, Any]:
    """A valid job of the tenant."""
    made = job(
        name,
        key=key,
        arguments=("a",),
        retry={"maxAttempts": 2, "backoff": {"initial": "0.1s", "max": "0.2s"}},
        outputs=[{"name": "rows", "slotLog": {"path": "@LAKE@/table"}}],
    )
    made["spec"]["template"]["spec"]["driver"]["serviceAccount"] = "spark"
    return made


@st.composite
def _job(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A job of any shape: the tenant's own with changes, a drawn one, or one whose output is elsewhere, such as in the other team's
    table."""
    made = tenants_job(name, f"drawn-{draw(st.integers(0, POOL - 1))}")
    chance = draw(chances)
    match draw(st.sampled_from(["own", "mutated", "mutated", "drawn", "greedy", "policies"])):
        case "mutated":
            made["spec"] = mutated_tree(chance, made["spec"])
        case "drawn":
            made["spec"] = drawn_job(chance)["spec"]
        case "greedy":
            made["spec"]["outputs"][0]["slotLog"]["path"] = chance.choice(PLACES)
        case "policies":
            schema = SCHEMA["properties"]["spec"]["properties"]
            for field in chance.sample(sorted(set(schema) - {"template"}), 3):
                made["spec"][field] = drawn(chance, schema[field])
    return made


@st.composite
def _status(draw: st.DrawFn) -> Any:
    """A status of any shape; most follow the schema."""
    chance = draw(chances)
    if chance.random() < 0.1:
        return anything(chance)
    made: Any = {}
    while not made:
        made = drawn(chance, STATUS)
    if not isinstance(made, dict):
        return made
    odd = {
        "epoch": st.sampled_from([0, 1, 2, 15, 1000, 2**31 - 1]),
        "ledgerRevision": st.sampled_from([0, 1, 10**6, 2**48]),
        "generation": st.sampled_from([-(2**63), -1, 0, 1, 2, 2**31, 2**63 - 1]),
        "attempt": st.sampled_from([-1, 0, 1, 3, 2**31, 2**63 - 1]),
        "requestNumber": st.sampled_from([-1, 0, 1, 2**63 - 1]),
        "observedGeneration": st.sampled_from([-1, 0, 1, 2**63 - 1]),
        "keyHash": st.sampled_from(["@HASH@", "@OTHERHASH@", "", "x" * 70_000]),
        "fingerprint": st.sampled_from(["@FINGERPRINT@", "", "\0", "v999:x"]),
        "application": st.sampled_from(["@APPLICATION@", "..", "a/b", "x" * 70_000]),
    }
    for name in draw(st.lists(st.sampled_from(sorted(odd)), max_size=5, unique=True)):
        made[name] = draw(odd[name])
    return made


@st.composite
def objects(draw: st.DrawFn) -> Kube:
    """Creates, edits and deletes of jobs, and of their applications and pods."""
    number = draw(st.integers(0, POOL - 1))
    name, attempt = f"drawn-{number}", draw(numbers)
    foreign = draw(mostly(st.just(False), st.just(True), one_in=15))
    kind = draw(st.sampled_from(CHANGES))

    def of(verb: str, body: Any = None, *, resource: str = "jobs", named: str = name, subresource: str = "") -> Kube:
        return Kube(
            attempt=attempt,
            verb=verb,
            resource=resource,
            name=named,
            subresource=subresource,
            foreign=foreign,
            body="" if body is None else json.dumps(body),
        )

    match kind:
        case "create":
            return of("create", draw(_job(f"made-{attempt}")))
        case "spec":
            return of("patch", {"spec": draw(_job(name))["spec"]})
        case "status":
            named = draw(st.sampled_from([name, "@JOB@"]))
            return of("patch", {"status": draw(_status())}, named=named, subresource="status")
        case "metadata":
            field = draw(st.sampled_from(["annotations", "labels", "finalizers", "ownerReferences"]))
            value: Any = draw(
                st.dictionaries(
                    st.sampled_from(["sparkonce.dev/key", "a", "kubectl.kubernetes.io/x"]), texts, max_size=3
                )
            )
            if field == "finalizers":
                value = draw(st.sampled_from([[], ["example.org/kept"], ["sparkonce.dev/x"]]))
            if field == "ownerReferences":
                value = [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": draw(texts)}]
            return of("patch", {"metadata": {field: value}}, named=draw(st.sampled_from([name, "@JOB@"])))
        case "delete":
            return of("delete")
        case "application":
            state = {"state": draw(st.sampled_from(STATES)), "errorMessage": draw(texts)}
            changes: list[tuple[Any, str]] = [
                ({"status": {"applicationState": state}}, "status"),
                ({"spec": {"suspend": draw(st.booleans())}}, ""),
                ({"spec": {"arguments": [draw(texts)]}}, ""),
                ({"metadata": {"labels": draw(labels)}}, ""),
                ({"metadata": {"annotations": draw(labels)}}, ""),
            ]
            body, subresource = draw(st.sampled_from(changes))
            return of("patch", body, resource="applications", named="@APPLICATION@", subresource=subresource)
        case "stranger":
            made = tenants_job(name, name)["spec"]["template"]
            made["metadata"] = {
                "name": "@NEXT@",
                "labels": draw(labels),
                "annotations": {"sparkonce.dev/nonce": "@NONCE@"},
            }
            return of("create", made, resource="applications")
    gone = of("delete", resource=draw(st.sampled_from(["pods", "applications"])), named="@POD@")
    return gone if gone.resource == "pods" else replace(gone, name="@APPLICATION@")


acts: st.SearchStrategy[Act] = st.one_of(speaks(), speaks(), decides(), wanders(), objects(), objects())
