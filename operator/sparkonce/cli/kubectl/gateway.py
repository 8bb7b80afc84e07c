"""Client of a cluster's gateway for `kubectl sparkonce`: sends tokens made for it (`release.py`), through kubectl's port-forward.

The API server's service proxy was rejected: it authenticates the caller and then strips the Authorization header, so that the gateway would
not know the user.

The gateway's certificate is verified before anything is sent, through a port-forward too, which ends inside the pod that a Service selects:
against the CA that the release names, `--gateway-ca`, or the machine's own authorities. Plain HTTP is for loopback alone: a port-forward to
a release that serves no TLS, or a `--gateway-url` of this machine. Where the release has an address outside the cluster, it is used in
place of the port-forward, which needs rights in the release's namespace that teams do not have.

The outcome of an unanswered request is unknown. It is repeated only if it is idempotent, as a rerun is by its generation.

`kubectl sparkonce logs` prints the log of the current attempt's driver, read by kubectl with the user's own rights. The gateway only names
the attempt, so a user who may not read the pods of a namespace cannot read their logs here either. When the pod is gone, the kept end of a
failed attempt's log is printed instead. `--follow` ends when the key is finished or held: it moves on from a lost attempt to the next one,
and reconnects after a broken stream.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote, urlsplit

from sparkonce.attempt.request import for_kubectl
from sparkonce.cli.kubectl.release import (
    Credentials,
    GatewayTokens,
    ReleaseGateway,
    checked_audience,
    found_gateway,
    keys_namespace,
    own_certificate,
)
from sparkonce.cli.view import words
from sparkonce.cli.view.keys import Described, failure_lines
from sparkonce.cli.view.terminal import tell
from sparkonce.errors import InvalidInput, SparkonceError
from sparkonce.launch.kubeflow.labels import DRIVER_CONTAINER, driver_pod_name
from sparkonce.model.record import Address, application_name

ANSWERS = 70.0
"""Seconds for an answer: a decision may take the gateway sixty."""
FORWARDS = 20.0
"""Seconds for kubectl to print its local port: an exec plugin may run first."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_LISTING = re.compile(r"GET /v1/namespaces/([^/\s]+)/keys(?=\s|$)")
"""The remedy in answers of an older gateway: an HTTP request, which is replaced by the kubectl command."""
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")


class GatewayUnavailable(SparkonceError):
    """No answer, or one that asks to retry: the request may have been carried out."""


class GatewayRefused(InvalidInput):
    """The gateway refused: nothing was done."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The options that locate the cluster and its gateway."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    url: str | None = None
    gateway_namespace: str | None = None
    service: str | None = None
    ca: Path | None = None
    account: str | None = None
    audience: str | None = None
    certificate: Path | None = None
    """Client certificate to show in place of a token."""
    key: Path | None = None

    @property
    def credentials(self) -> Credentials:
        return Credentials(kubeconfig=self.kubeconfig, context=self.context)

    def kubectl(self, *arguments: str) -> list[str]:
        """A kubectl command for the same cluster and user. Raises: InvalidInput when kubectl is not on PATH."""
        found = shutil.which("kubectl")
        if found is None:
            raise InvalidInput("kubectl is not on PATH, and this goes through it; install it, or name --gateway-url")
        same = ["--kubeconfig", str(self.kubeconfig)] if self.kubeconfig else []
        return [found, *same, *(["--context", self.context] if self.context else []), *arguments]


@dataclass(frozen=True, kw_only=True)
class GatewayClient:
    """Calls one gateway in the name of one user, for the keys of one namespace."""

    url: str
    token: Callable[[], str] | None = field(repr=False)
    """Makes one when it is called, or returns one that is still valid. None: the client certificate in `verify` says who the user is."""
    namespace: str
    verify: ssl.SSLContext | bool = True
    server_name: str | None = None
    """Name on its certificate, if it differs from the address."""

    def get(self, key: str | None = None, rest: str = "") -> Any:
        """The answer to a GET, without a key of the list. Raises: InvalidInput: the key is empty. GatewayRefused, GatewayUnavailable."""
        return self._ask("GET", self._path(key, rest), None)

    def post(self, key: str, verb: str, body: Mapping[str, Any]) -> Any:
        """The answer to a POST. Raises: as `get`."""
        return self._ask("POST", self._path(key, f"/{verb}"), body)

    def _path(self, key: str | None, rest: str) -> str:
        if key == "":
            raise InvalidInput(f"the key is empty; `kubectl sparkonce list -n {self.namespace}` shows keys")
        keys = f"/v1/namespaces/{quote(self.namespace, safe='')}/keys"
        return keys + (f"/{quote(key, safe='')}" if key is not None else "") + rest

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        import httpx

        more = {"sni_hostname": self.server_name} if self.server_name else {}
        headers = {"Authorization": f"Bearer {self.token()}"} if self.token is not None else {}
        try:
            with httpx.Client(verify=self.verify, timeout=ANSWERS, trust_env=False) as client:
                answer = client.request(method, self.url + path, headers=headers, json=body, extensions=more)
        except httpx.HTTPError as lost:
            done = "; whether it was carried out is unknown, look at the key again" if method != "GET" else ""
            untrusted = isinstance(lost.__cause__, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(
                lost
            )
            if untrusted:
                raise InvalidInput(
                    f"what answers at {self.url} has no certificate that is trusted for the gateway ({lost}), and was sent "
                    "nothing; name the CA that signs the gateway's with --gateway-ca"
                ) from None
            # A server that does not trust a certificate ends the connection, and no program can tell that from one that died.
            shown = (
                "; if it never does, it refuses the client certificate (another CA's, expired, or a server's): name another with "
                "--client-certificate and --client-key, or send a token with --service-account"
            )
            done += shown if self.token is None else ""
            raise GatewayUnavailable(f"the gateway at {self.url} does not answer ({lost}){done}") from None
        try:
            said = answer.json()
        except ValueError:
            said = {}
        if answer.is_success and isinstance(said, dict):
            return said
        detail = said.get("detail") if isinstance(said, dict) else None
        foreign = f"what answers at {self.url} is not a sparkonce gateway (HTTP {answer.status_code})"
        sentence = _LISTING.sub(r"`kubectl sparkonce list -n \1`", for_kubectl(str(detail))) if detail else foreign
        if answer.status_code >= 500:
            raise GatewayUnavailable(sentence)
        raise GatewayRefused(sentence, status=answer.status_code)


@contextmanager
def reached(reach: Reach) -> Iterator[GatewayClient]:
    """A client of the gateway, until the block ends.

    Raises:
        InvalidInput: no gateway is named or found, or no token for it can be made. GatewayUnavailable, ApiServerUnavailable.
    """
    namespace = keys_namespace(reach.credentials, reach.namespace)
    if reach.url is not None and reach.audience is not None:
        release, audience = None, checked_audience(reach.audience, "--audience")
    else:
        release = found_gateway(reach.credentials, reach.gateway_namespace, reach.service)
        audience = release.audience
    tokens = GatewayTokens(credentials=reach.credentials, audience=audience, namespace=namespace, account=reach.account)
    certificate = _certificate(reach, release)

    def client(url: str, ca: str, *, server_name: str | None = None) -> GatewayClient:
        secure = url.startswith("https://")
        shows = secure and certificate is not None
        verify = _trust(reach, ca, certificate) if secure else True
        token = None if shows else tokens
        return GatewayClient(url=url, token=token, namespace=namespace, verify=verify, server_name=server_name)

    if reach.url is not None:
        yield client(_address(reach.url), release.ca if release is not None else "")
        return
    assert release is not None
    if release.public_url:
        yield client(release.public_url, release.public_ca)
        return
    with _forwarded(reach, release) as port:
        name = release.host if release.tls else None
        yield client(f"http{'s' if release.tls else ''}://127.0.0.1:{port}", release.ca, server_name=name)


def _certificate(reach: Reach, release: ReleaseGateway | None) -> tuple[Path, Path] | None:
    """The client certificate to show and its key: the one that is named, or the kubeconfig's where the release takes them. None: a token
    is sent. Raises: InvalidInput: one file without the other, or beside an account."""
    if (reach.certificate is None) != (reach.key is None):
        raise InvalidInput("--client-certificate and --client-key belong together; give both PEM files")
    if reach.certificate is not None and reach.key is not None:
        if reach.account is not None:
            raise InvalidInput("--client-certificate and --service-account each say who you are; give one of them")
        return reach.certificate, reach.key
    if release is None or not release.client_certificates or reach.account is not None:
        return None
    return own_certificate(reach.credentials)


def _trust(reach: Reach, ca: str, certificate: tuple[Path, Path] | None) -> ssl.SSLContext:
    """Trusts --gateway-ca, else this CA (PEM text), else the machine's own authorities; shows the certificate, if there is one."""
    try:
        if reach.ca is not None:
            context = ssl.create_default_context(cafile=str(reach.ca))
        else:
            context = ssl.create_default_context(cadata=ca or None)
    except (OSError, ssl.SSLError, ValueError) as problem:
        place = f"--gateway-ca {reach.ca}" if reach.ca is not None else "the CA that the release names"
        raise InvalidInput(f"{place} cannot be used ({problem}); name a PEM file with --gateway-ca") from None
    if certificate is not None:
        try:
            context.load_cert_chain(*certificate, password=_no_password)
        except (OSError, ssl.SSLError) as problem:
            raise InvalidInput(
                f"the client certificate {certificate[0]} cannot be used with its key {certificate[1]} ({problem}); name PEM "
                "files of the same pair with --client-certificate and --client-key"
            ) from None
    return context


def _no_password() -> str:
    """In place of OpenSSL's prompt, which would wait for ever in a pipe: an encrypted key is refused."""
    return ""


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidInput(f"--gateway-url {url}: write https://HOST:PORT")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise InvalidInput(f"--gateway-url {url} would send a token in plain text; use https")
    return url.rstrip("/")


@contextmanager
def _forwarded(reach: Reach, service: ReleaseGateway) -> Iterator[int]:
    """The local port, for the duration of the block; the child process has ended afterwards, also after a signal."""
    place = ["-n", service.namespace, f"svc/{service.service}", f":{service.port}"]
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


def _port(process: subprocess.Popen[str], service: ReleaseGateway) -> int:
    """The local port, from the first line that kubectl prints."""
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
    why = " ".join(said.split()) or f"kubectl printed nothing within {FORWARDS:g} s"
    raise GatewayUnavailable(f"no port-forward to {service.namespace}/{service.service}: {why}")


def run_kubectl(command: Sequence[str]) -> tuple[int, str]:
    """Runs a command and prints its output line by line. Returns the exit code and its standard error."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None  # a pipe
            for each in process.stdout:
                tell(each.removesuffix("\n"))
        said.seek(0)
        return process.returncode, " ".join(said.read().split())


LOOKS = 2.0
"""Seconds between two reads of a key whose driver has not started."""


def print_logs(gateway: GatewayClient, reach: Reach, key: str, *, follow: bool) -> None:
    """Prints the log of the current attempt's driver. Raises: InvalidInput when no part of it can be read."""
    read: tuple[int, int] | None = None
    waiting = False
    while True:
        told = gateway.get(key)
        attempt = told["generation"], told["attempt"]
        if attempt != read:
            pod = driver_of(told, gateway.namespace)
            follows = ["-f"] if follow else []
            command = reach.kubectl("logs", *follows, "-n", gateway.namespace, pod, "-c", DRIVER_CONTAINER)
            sys.stdout.flush()
            code, why = run_kubectl(command)
            if code == 0:
                read, waiting = attempt, False
                if not follow:
                    _point_at(told)
                    return
                continue
            if _over(told) or not follow:
                _kept(told, why)
                return
            if not waiting:
                waiting = True
                tell(f"{told['key']} is {told['phase']}: {why or 'its driver has no log yet'}", err=True)
        elif _over(told):
            tell(f"{told['key']}, generation {told['generation']}: {told['phase']}", err=True)
            _point_at(told)
            return
        time.sleep(LOOKS)


def driver_of(told: Described, namespace: str) -> str:
    """The name of the current attempt's driver pod."""
    address = Address(realm=namespace, key_hash=told["keyHash"])
    return driver_pod_name(application_name(address, told["generation"], told["attempt"]))


def _over(told: Described) -> bool:
    return bool(told["finalizedAt"] or told["held"])


def _point_at(told: Described) -> None:
    """Prints, below a log, the line that matters in it: readers look there first."""
    if reason := next(failure_lines(told["result"] or {}), ""):
        tell(f"{told['key']}: {reason}", err=True)


def _kept(told: Described, why: str) -> None:
    lines = list(failure_lines(told["result"] or {}))
    if not lines:
        raise InvalidInput(
            f"{told['key']} is {told['phase']}, and its driver's log cannot be read: {words.sentence(why)}"
        )
    tell(f"{told['key']}: the driver's pod is gone; this was kept of it", err=True)
    tell(*lines)
