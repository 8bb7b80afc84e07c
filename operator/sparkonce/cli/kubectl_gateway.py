"""How `kubectl sparkonce` reaches a cluster's gateway: with the user's own token, through a port-forward of kubectl's.

The API server's service proxy was the shorter way and is none: it authenticates the caller and then takes the Authorization header off,
so that the gateway would not know who asks. A client certificate ends at the API server as well. What is left is a bearer token of the
kubeconfig (written there, or made by its credential program); who has none makes one with `kubectl create token`.

A port-forward ends inside the gateway's pod, which the API server and the node's kubelet vouch for; its certificate is therefore only
compared when `--gateway-ca` says with what. At a `--gateway-url` certificates are always checked, and plain HTTP is for loopback alone.

A request that was not answered is unknown, and is never repeated here unless it names what it is about (a rerun does, by its generation).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote, urlsplit

from sparkonce.errors import InvalidInput, SparkonceError

LABELS = {"app.kubernetes.io/component": "gateway"}
ANSWERS = 70.0
"""Seconds for an answer: a decision may take the gateway sixty."""
FORWARDS = 20.0
"""Seconds for kubectl to say where it forwards from: an exec plugin may run first."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")
_NAMED = "name it with --gateway-namespace and --service, or where it is reached with --gateway-url"


class GatewayUnavailable(SparkonceError):
    """No answer, or one that says to come back: what was asked may have been done."""


class GatewayRefused(InvalidInput):
    """The gateway answered no: nothing was done."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The options that say where the cluster and its gateway are."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    url: str | None = None
    gateway_namespace: str | None = None
    service: str | None = None
    ca: Path | None = None

    def kubectl(self, *arguments: str) -> list[str]:
        """A command of kubectl's for the same cluster and user. InvalidInput: there is none."""
        found = shutil.which("kubectl")
        if found is None:
            raise InvalidInput("kubectl is not on PATH, and this goes through it; install it, or name --gateway-url")
        same = ["--kubeconfig", str(self.kubeconfig)] if self.kubeconfig else []
        return [found, *same, *(["--context", self.context] if self.context else []), *arguments]


@dataclass(frozen=True, kw_only=True)
class Who:
    """What the kubeconfig says of the user."""

    token: str
    namespace: str


@dataclass(frozen=True, kw_only=True)
class Service:
    namespace: str
    name: str
    port: int
    tls: bool


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """One gateway, asked in the name of one user about the keys of one namespace."""

    url: str
    token: str = field(repr=False)
    namespace: str
    verify: ssl.SSLContext | bool = True
    server_name: str | None = None
    """That its certificate is for, where the address does not say it."""

    def get(self, key: str = "", rest: str = "") -> Any:
        """GatewayRefused, GatewayUnavailable."""
        return self._ask("GET", self._path(key, rest), None)

    def post(self, key: str, verb: str, body: Mapping[str, Any]) -> Any:
        """GatewayRefused, GatewayUnavailable."""
        return self._ask("POST", self._path(key, f"/{verb}"), body)

    def _path(self, key: str, rest: str) -> str:
        keys = f"/v1/namespaces/{quote(self.namespace, safe='')}/keys"
        return keys + (f"/{quote(key, safe='')}" if key else "") + rest

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        import httpx

        more = {"sni_hostname": self.server_name} if self.server_name else {}
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            with httpx.Client(verify=self.verify, timeout=ANSWERS, trust_env=False) as client:
                answer = client.request(method, self.url + path, headers=headers, json=body, extensions=more)
        except httpx.HTTPError as lost:
            done = "; whether it was done is not known, look at the key again" if method != "GET" else ""
            raise GatewayUnavailable(f"the gateway at {self.url} does not answer ({lost}){done}") from None
        try:
            said = answer.json()
        except ValueError:
            said = {}
        if answer.is_success and isinstance(said, dict):
            return said
        detail = said.get("detail") if isinstance(said, dict) else None
        sentence = str(detail or f"what answers at {self.url} is no gateway of sparkonce (HTTP {answer.status_code})")
        if answer.status_code >= 500:
            raise GatewayUnavailable(sentence)
        raise GatewayRefused(sentence, status=answer.status_code)


@contextmanager
def reached(reach: Reach) -> Iterator[Gateway]:
    """Until the block ends. InvalidInput: there is no token, or no gateway is found; GatewayUnavailable."""
    who, service = asyncio.run(_looked_up(reach))
    if reach.url is not None:
        yield Gateway(
            url=_address(reach.url),
            token=who.token,
            namespace=who.namespace,
            verify=ssl.create_default_context(cafile=str(reach.ca)) if reach.ca else True,
        )
        return
    assert service is not None
    verify = ssl.create_default_context(cafile=str(reach.ca)) if reach.ca else False
    with _forwarded(reach, service) as port:
        yield Gateway(
            url=f"http{'s' if service.tls else ''}://127.0.0.1:{port}",
            token=who.token,
            namespace=who.namespace,
            verify=verify,
            server_name=f"{service.name}.{service.namespace}.svc" if service.tls else None,
        )


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidInput(f"--gateway-url {url}: write https://HOST:PORT")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise InvalidInput(f"--gateway-url {url} would send your token in plain text; use https")
    return url.rstrip("/")


async def _looked_up(reach: Reach) -> tuple[Who, Service | None]:
    try:
        from sparkonce.kube.client import ApiClient
        from sparkonce.kube.login import Login
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"reading a kubeconfig needs {missing.name}, which is not installed; install sparkonce[operator]"
        ) from None
    login = Login(reach.kubeconfig, context=reach.context)
    access = await login.access()
    namespace = reach.namespace or await login.namespace()
    kind, _, token = (access.authorization or "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise InvalidInput(
            "your kubeconfig has no token (a client certificate cannot be passed on to the gateway); make one with "
            "`kubectl create token SERVICEACCOUNT` and add it with `kubectl config set-credentials NAME --token=...`"
        )
    who = Who(token=token.strip(), namespace=namespace)
    if reach.url is not None:
        return who, None
    client = ApiClient(login)
    try:
        return who, await _found(client, reach)
    finally:
        await client.close()


async def _found(client: Any, reach: Reach) -> Service:
    """The one Service of a gateway. InvalidInput: none, several, or they may not be listed."""
    from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable, Resource

    services = Resource("", "v1", "services", "Service")
    where = f"in namespace {reach.gateway_namespace}" if reach.gateway_namespace else "in any namespace"
    try:
        if reach.gateway_namespace and reach.service:
            named = await client.get(services, reach.gateway_namespace, reach.service)
            found = [named] if named is not None else []
        else:
            found = list(await client.list(services, reach.gateway_namespace, labels=LABELS))
    except ApiRefused as refused:
        raise InvalidInput(f"the gateway cannot be looked for {where} ({refused}); {_NAMED}") from None
    except ApiUnavailable as unavailable:
        raise GatewayUnavailable(f"the gateway cannot be looked for now: {unavailable}") from None
    if reach.service:
        found = [each for each in found if each["metadata"]["name"] == reach.service]
    if len(found) != 1:
        names = ", ".join(f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in found)
        said = f"there are several gateways {where} ({names})" if found else f"there is no gateway {where}"
        raise InvalidInput(f"{said}; {_NAMED}")
    return _service(found[0])


def _service(document: Mapping[str, Any]) -> Service:
    metadata, ports = document["metadata"], document.get("spec", {}).get("ports") or []
    port = next((each for each in ports if each.get("name") in {"http", "https"}), ports[0] if ports else None)
    name = f"{metadata['namespace']}/{metadata['name']}"
    if port is None:
        raise InvalidInput(f"the service {name} has no port; {_NAMED}")
    tls = port.get("name") == "https"
    return Service(namespace=metadata["namespace"], name=metadata["name"], port=int(port["port"]), tls=tls)


@contextmanager
def _forwarded(reach: Reach, service: Service) -> Iterator[int]:
    """The port on loopback, for as long as the block lasts; the child is gone afterwards, whatever ends us."""
    place = ["-n", service.namespace, f"svc/{service.name}", f":{service.port}"]
    command = reach.kubectl("port-forward", "--address", "127.0.0.1", *place)
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def leave(number: int, _: FrameType | None) -> None:
        process.kill()
        os._exit(128 + number)

    before = {each: signal.signal(each, leave) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield _port(process, service)
    finally:
        process.kill()
        process.communicate()
        for number, handler in before.items():
            signal.signal(number, handler)


def _port(process: subprocess.Popen[str], service: Service) -> int:
    """From the first line that kubectl prints."""
    previous = signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.setitimer(signal.ITIMER_REAL, FORWARDS)
    try:
        assert process.stdout is not None
        found = _FORWARDING.match(process.stdout.readline())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    if found is not None:
        return int(found[1])
    process.kill()
    _, said = process.communicate()
    why = " ".join(said.split()) or f"kubectl said nothing within {FORWARDS:g} s"
    raise GatewayUnavailable(f"no port-forward to {service.namespace}/{service.name}: {why}")


def run_kubectl(command: Sequence[str]) -> tuple[int, str]:
    """Its output goes where ours goes. The exit code, and what it said on standard error."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, " ".join(done.stderr.split())
