"""Carries out the acts of a random tenant (`acts.py`) with a tenant's rights, and checks each answer.

The tenant is an administrator of its own namespace and nothing elsewhere: it reads and writes its own objects, pods and statuses, and makes
tokens for its own service accounts, also bound to its pods. It sends raw bytes to the gateway, since a client library would refuse half of
the acts.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from pydantic import ValidationError

from harness import planted
from harness.gateways import ACCOUNT, Answer, GatewayProcess, bound_token
from harness.kube_api import Api, ApiError, Json, path_of
from harness.patience import stretched
from harness.stage import Stage
from harness.tenants import ADMINISTRATOR
from security.acts import Act, Http, Kube
from sparkonce.launch.kubernetes import JOBS, PODS, SPARK_APPLICATIONS
from sparkonce.model.record import ENVIRONMENT, Assignment, gateway_audience

RESOURCES = {"jobs": JOBS, "applications": SPARK_APPLICATIONS, "pods": PODS}
TIMEOUT = 30.0
"""Seconds for an answer: the gateway's own deadlines are shorter."""
ALIVE = 3
"""The number of drivers that the tenant keeps running, so that some of its acts concern a current attempt."""
LASTING = "own-"
"""Prefix of the keys whose drivers run until they are stopped."""
ODD_TOKENS = ("\xff\xfe", "a.b.c", "x" * 20_000, "eyJhbGciOiJub25lIn0.e30.", "\x00", "Bearer")


@dataclass(frozen=True)
class Own:
    """One driver of the tenant."""

    pod: Json
    assignment: Assignment

    @property
    def lasting(self) -> bool:
        return self.assignment.key.startswith(LASTING)

    @property
    def running(self) -> bool:
        return self.pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in self.pod["metadata"]


@dataclass
class Attacker:
    stage: Stage
    gateway: GatewayProcess
    api: Api
    """Authenticated with the tenant's own token."""
    facts: Mapping[str, str]
    """Placeholders with the same value for all acts: @OWN@, @OTHER@, @OTHERHASH@, @LAKE@, @OTHERTABLE@."""
    unknown: str
    """A text in the other team's keys that no act contains, so that no answer may contain it."""
    answers: Counter[str] = field(default_factory=Counter)
    drivers: list[Own] = field(default_factory=list)
    _tokens: dict[str, str] = field(default_factory=dict, repr=False)

    def does(self, act: Act) -> int | None:
        """Carries out an act. Returns the status of the answer, or None without one. Raises AssertionError for an answer that a tenant must
        not get."""
        own = self.drivers[act.attempt % len(self.drivers)]
        facts = self._facts(own)
        if isinstance(act, Kube):
            return self._change(act, facts)
        return self._ask(act, own, facts)

    def refresh(self) -> int:
        """Finds the tenant's drivers again. Returns the number of running drivers that do not end by themselves."""
        found = []
        for pod in self.api.list(PODS, self.stage.namespace):
            said = next((each.get("value", "") for each in _environment(pod) if each.get("name") == ENVIRONMENT), "")
            with contextlib.suppress(ValidationError):
                found.append(Own(pod, Assignment.model_validate_json(said)))
        found.sort(key=lambda each: not each.lasting)
        running = [each for each in found if each.running]
        self.drivers = (
            running + [each for each in found if not each.running][: max(1, len(running) // 2)] or self.drivers
        )
        return sum(each.lasting for each in running)

    def token(self, kind: str, own: Own) -> str | None:
        """A token of the kind that the act names."""
        audience = gateway_audience(self.gateway.install)
        match kind:
            case "driver":
                return self._bound(own.pod, audience)
            case "twin":
                other = self.drivers[-1] if own is not self.drivers[-1] else self.drivers[0]
                return self._bound(other.pod, audience)
            case "api":
                return self._bound(own.pod, "https://kubernetes.default.svc")
            case "person" | "unbound":
                account = ADMINISTRATOR if kind == "person" else ACCOUNT
                return self._kept(account, lambda: self._made(None, audience, account))
            case "garbage":
                return "garbage"
        return None

    def _bound(self, pod: Json, audience: str) -> str:
        return self._kept(f"{pod['metadata']['uid']} {audience}", lambda: self._made(pod, audience, ACCOUNT))

    def _made(self, pod: Json | None, audience: str, account: str) -> str:
        try:
            return bound_token(self.api, self.stage.namespace, account, [audience], pod)
        except ApiError as refused:
            if refused.code not in (404, 409):
                raise
            return "gone"  # because its pod is

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        if name not in self._tokens:
            self._tokens[name] = make()
        return self._tokens[name]

    def _facts(self, own: Own) -> Mapping[str, str]:
        told = own.assignment
        second = self.drivers[-1].assignment
        name = own.pod["metadata"]["name"]
        application = name.removesuffix("-driver")
        return {
            **self.facts,
            "HASH": told.key_hash,
            "HASH2": second.key_hash,
            "SHORT": told.key_hash[:12],
            "KEY": quote(told.key, safe=""),
            "GENERATION": str(told.generation),
            "ATTEMPT": str(told.attempt),
            "NONCE": told.nonce,
            "FINGERPRINT": told.fingerprint,
            "POD": name,
            "APPLICATION": application,
            "NEXT": f"{application.rpartition('-a')[0]}-a{told.attempt + 1}",
            "JOB": told.spec.job["metadata"]["name"],
        }

    # the API server

    def _change(self, act: Kube, facts: Mapping[str, str]) -> int:
        namespace = facts["OTHER"] if act.foreign else facts["OWN"]
        path = path_of(
            RESOURCES[act.resource],
            namespace,
            *([] if act.verb == "create" else [filled(act.name, facts), act.subresource]),
        )
        method, kind = {
            "create": ("POST", "application/json"),
            "patch": ("PATCH", "application/merge-patch+json"),
            "delete": ("DELETE", "application/json"),
        }[act.verb]
        body = json.loads(filled(act.body, facts)) if act.body else None
        code = 200
        try:
            self.api.request(method, path, body, content_type=kind)
        except ApiError as refused:
            code = refused.code
        self.answers[f"API server {code}"] += 1
        assert not act.foreign or code == 403, f"the API server answered {code} about the other team's namespace"
        return code

    # the gateway

    def _ask(self, act: Http, own: Own, facts: Mapping[str, str]) -> int | None:
        token = ODD_TOKENS[act.attempt % len(ODD_TOKENS)] if act.token == "odd" else self.token(act.token, own)
        path = filled(act.path, facts)
        answer = self.send(act, path, token, filled_bytes(act.body, facts))
        self.answers[f"gateway {answer.status if answer else None}"] += 1
        if answer is None:
            return None  # it closed the connection before it had read everything, so its answer may be lost
        said = f"{answer.status} {str(answer.body)[:500]}"
        waits = answer.status == 503 and "retry-after" in answer.headers
        uncoded = answer.status == 501 and any(
            each.startswith("Transfer-Encoding") for each in act.headers
        )  # RFC 9112, 6.1
        assert 200 <= answer.status < 500 or waits or uncoded, said
        assert "Traceback" not in str(answer.body), said
        assert self.unknown not in str(answer.body), said
        assert answer.status >= 300 or facts["OTHER"] not in path.partition("?")[0] or act.method == "OPTIONS", said
        if answer.status >= 400 and isinstance(answer.body, dict):
            assert "\n" not in answer.detail, said
        return answer.status

    def send(self, act: Http, path: str, token: str | None, body: bytes) -> Answer | None:
        """The gateway's answer; None if it closed the connection without one."""
        planted.secret(token)
        lines = [
            f"{act.method} {path} HTTP/1.1",
            "Host: gateway",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        lines += [] if token is None else [f"Authorization: Bearer {token}"]
        lines += [filled(each, self.facts) for each in act.headers]
        whole = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        with socket.create_connection(("127.0.0.1", self.gateway.port), timeout=stretched(TIMEOUT)) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has read all
                connection.sendall(whole)
            reply = http.client.HTTPResponse(connection, method=act.method)
            try:
                reply.begin()
                text = planted.said(f"gateway {act.method}", reply.read().decode())
            except (http.client.HTTPException, ConnectionResetError):
                return None
        kind = reply.headers.get_content_type()
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return Answer(reply.status, json.loads(text) if "json" in kind and text else text, headers)


def filled(text: str, facts: Mapping[str, str]) -> str:
    """The text with its placeholders replaced."""
    return filled_bytes(text.encode(errors="surrogatepass"), facts).decode(errors="surrogatepass")


def filled_bytes(text: bytes, facts: Mapping[str, str]) -> bytes:
    def value(found: re.Match[bytes]) -> bytes:
        return facts.get(found[1].decode(), found[0].decode()).encode()

    return re.sub(rb"@([A-Z0-9]+)@", value, re.sub(rb'"@#([A-Z0-9]+)@"', value, text))


def _environment(pod: Json) -> list[Json]:
    return [each for container in pod["spec"]["containers"] for each in container.get("env") or ()]
