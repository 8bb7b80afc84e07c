"""Finds the gateway of an installed release, and makes tokens for it.

The release is named by its namespace, and its gateway by a ConfigMap there that the chart makes: URL, audience, CA, and its address
outside the cluster if it has one. Nothing is searched for in other namespaces: a tenant can create a Service or ConfigMap with any name and
label in its own, and would be sent tokens. A user who may not list the Services there gets the one with the chart's default name.

A gateway is sent a token made for it (TokenRequest): of a service account, for ten minutes, with the gateway's audience. The user's own
credentials go to the API server and nowhere else, whatever they are: a token, a client certificate, a credential program's. A TokenRequest
is for a service account, so the gateway authorizes that account and the history names it: the user's own if the user is one, else an
account of the key's namespace, `sparkonce-user`, or `sparkonce-viewer` for users who may make tokens of that one only, which can only read.
The API server's audit log says who made a token.

Where the release takes client certificates, that of the kubeconfig is shown instead: a handshake proves that the user has the key and
reveals nothing that opens the API server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from sparkonce.errors import InvalidInput, SparkonceError

if TYPE_CHECKING:
    from sparkonce.kube.client import ApiClient
    from sparkonce.kube.login import KubeLogin

T = TypeVar("T")

COMPONENT = {"app.kubernetes.io/component": "gateway"}
AUDIENCES = "gateway.sparkonce.dev/"
"""How the audience of every gateway begins. A token of another one is never asked for, whatever a ConfigMap says."""
ACCOUNT = "sparkonce-user"
"""Service account whose tokens are sent for users who are not service accounts, unless they name one."""
READER = "sparkonce-viewer"
"""The same for users who may not make tokens of `ACCOUNT`: the chart gives it what the role `view` has."""
SERVICE = "sparkonce-gateway"
"""Name of the gateway's Service and ConfigMap in a release that is called sparkonce."""
FORBIDDEN = 403
SECONDS = 600
"""Lifetime of a token: the shortest that the API server grants."""
RENEWED = 0.8
"""Part of the lifetime after which another token is made."""
NAME_IT = "name the namespace of the sparkonce release with --gateway-namespace, or in SPARKONCE_GATEWAY_NAMESPACE"


class ApiServerUnavailable(SparkonceError):
    """The API server did not answer; nothing was sent to a gateway."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """How the user reaches the API server."""

    kubeconfig: Path | None = None
    context: str | None = None

    def ask(self, question: Callable[[ApiClient, KubeLogin], Awaitable[T]]) -> T:
        """Calls the API server as the user.

        Raises:
            InvalidInput: without `sparkonce[operator]`, or a usable kubeconfig.
        """
        try:
            from sparkonce.kube.client import ApiClient
            from sparkonce.kube.login import KubeLogin
        except ModuleNotFoundError as missing:
            raise InvalidInput(
                f"reading a kubeconfig needs {missing.name}, which is not installed; run `pip install 'sparkonce[operator]'`"
            ) from None

        async def asked() -> T:
            login = KubeLogin(self.kubeconfig, context=self.context)
            client = ApiClient(login)
            try:
                return await question(client, login)
            finally:
                await client.close()

        return asyncio.run(asked())


@dataclass(frozen=True, kw_only=True)
class ReleaseGateway:
    """The gateway, as its release describes it."""

    namespace: str
    service: str
    url: str
    """https://HOST:PORT inside the cluster; http where the release serves no TLS."""
    audience: str
    ca: str
    """PEM text; empty: the machine's own authorities."""
    public_url: str = ""
    """https://HOST outside the cluster (an Ingress or a route); empty: there is none, and a port-forward leads to the Service."""
    public_ca: str = ""
    """PEM text of the CA of the certificate there; empty: the machine's own authorities."""
    client_certificates: bool = False
    """Takes client certificates in place of tokens."""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or (443 if self.tls else 80)

    @property
    def tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


def checked_audience(text: str, source: str) -> str:
    """The audience, checked. Raises: InvalidInput: it is not a gateway's; a token of that audience could be valid elsewhere."""
    if not text.startswith(AUDIENCES) or text == AUDIENCES:
        raise InvalidInput(f"{source} is {text!r}, which is not a gateway's audience; that begins with {AUDIENCES}")
    return text


def found_gateway(credentials: Credentials, namespace: str | None, service: str | None) -> ReleaseGateway:
    """The gateway of the release in this namespace.

    Raises:
        InvalidInput: none, several, or they may not be read. ApiServerUnavailable.
    """
    if namespace is None:
        raise InvalidInput(
            f"{NAME_IT}: the gateway is not searched for, because every tenant can create a Service that looks like one"
        )
    return credentials.ask(lambda client, _: _found(client, namespace, service))


async def _found(client: ApiClient, namespace: str, service: str | None) -> ReleaseGateway:
    from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable, Resource

    config_maps = Resource("", "v1", "configmaps", "ConfigMap")
    try:
        if service is None:
            service = await _service(client, namespace)
        document = await client.get(config_maps, namespace, service)
    except ApiRefused as refused:
        raise InvalidInput(
            f"the gateway of namespace {namespace} cannot be read ({refused}); name its Service with --service, or ask "
            "for the right to read it"
        ) from None
    except ApiUnavailable as unavailable:
        raise ApiServerUnavailable(f"the gateway cannot be looked up now: {unavailable}") from None
    return _release(document, namespace, service)


async def _service(client: ApiClient, namespace: str) -> str:
    """The name of the only gateway's Service there; the default name for a user who may not list them, since teams have no such right."""
    from sparkonce.launch.kubernetes import ApiRefused, Resource

    services = Resource("", "v1", "services", "Service")
    try:
        names = [each["metadata"]["name"] for each in await client.list(services, namespace, labels=COMPONENT)]
    except ApiRefused as refused:
        if refused.code != FORBIDDEN:
            raise
        return SERVICE
    if len(names) != 1:
        several = f"several gateways in namespace {namespace} ({', '.join(names)})"
        said = f"there are {several}" if names else f"there is no gateway in namespace {namespace}"
        raise InvalidInput(f"{said}; name its Service with --service, and the release's with --gateway-namespace")
    return str(names[0])


def _release(document: Any, namespace: str, service: str) -> ReleaseGateway:
    data = (document or {}).get("data") or {}
    url, audience = str(data.get("url", "")), str(data.get("audience", ""))
    where = f"the ConfigMap {namespace}/{service}"
    if not url or not audience:
        raise InvalidInput(
            f"{where} does not say where the gateway is; name another with --service, or upgrade the release: earlier "
            "charts made none"
        )
    if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
        raise InvalidInput(f"{where}: url is {url!r}, not https://HOST:PORT")
    public = str(data.get("publicUrl", ""))
    if public and (urlsplit(public).scheme != "https" or not urlsplit(public).hostname):
        raise InvalidInput(f"{where}: publicUrl is {public!r}, not https://HOST")
    return ReleaseGateway(
        namespace=namespace,
        service=service,
        url=url,
        audience=checked_audience(audience, f"{where}: audience"),
        ca=str(data.get("ca.crt", "")),
        public_url=public.rstrip("/"),
        public_ca=str(data.get("public-ca.crt", "")),
        client_certificates=data.get("clientCertificates") == "true",
    )


def keys_namespace(credentials: Credentials, given: str | None) -> str:
    """The namespace given, or the context's."""

    async def context(_: ApiClient, login: KubeLogin) -> str:
        return await login.namespace()

    return given or credentials.ask(context)


def own_certificate(credentials: Credentials) -> tuple[Path, Path] | None:
    """The client certificate of the kubeconfig's user and its key, PEM files; None: the user has none."""

    async def files(_: ApiClient, login: KubeLogin) -> tuple[Path, Path] | None:
        return await login.certificate()

    return credentials.ask(files)


@dataclass
class GatewayTokens:
    """Tokens for one gateway, made when they are needed and kept only in memory. Calling it returns a valid one."""

    credentials: Credentials
    audience: str
    namespace: str
    """Namespace of the account, unless `account` names one."""
    account: str | None = None
    """NAME or NAMESPACE/NAME; None: the user, if a service account, or else `ACCOUNT`, or `READER` if tokens of that one are refused."""
    monotonic: Callable[[], float] = time.monotonic
    _token: str = field(default="", repr=False)
    _until: float = 0.0

    def __call__(self) -> str:
        """A valid token. Raises: InvalidInput: there is no such account, or its tokens may not be made. ApiServerUnavailable."""
        if not self._token or self.monotonic() >= self._until:
            began = self.monotonic()
            self._token = self.credentials.ask(lambda client, _: self._made(client))
            self._until = began + RENEWED * SECONDS
        return self._token

    async def _made(self, client: ApiClient) -> str:
        from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable

        try:
            namespace, name = await self._account(client)
            try:
                token = await self._token_of(client, namespace, name)
            except ApiRefused as refused:
                usual = (namespace, name, self.account) == (self.namespace, ACCOUNT, None)
                reads = await self._reads(client) if usual and refused.code == FORBIDDEN else None
                if reads is None:
                    raise
                return reads
        except ApiRefused as refused:
            raise InvalidInput(
                f"no token for the gateway can be made ({refused}); it needs `create` on serviceaccounts/token, or another "
                "account that is named with --service-account"
            ) from None
        except ApiUnavailable as unavailable:
            raise ApiServerUnavailable(f"no token for the gateway can be made now: {unavailable}") from None
        if token is None:
            raise InvalidInput(
                f"there is no service account {namespace}/{name}, whose token would be sent to the gateway; make it with "
                f"`kubectl create serviceaccount {name} -n {namespace}`, or name another with --service-account"
            )
        return token

    async def _token_of(self, client: ApiClient, namespace: str, name: str) -> str | None:
        return await client.token(namespace, name, audience=self.audience, seconds=SECONDS)

    async def _reads(self, client: ApiClient) -> str | None:
        """A token that can only read; None: there is no such account, or its tokens are refused as well."""
        from sparkonce.launch.kubernetes import ApiRefused

        try:
            return await self._token_of(client, self.namespace, READER)
        except ApiRefused:
            return None

    async def _account(self, client: ApiClient) -> tuple[str, str]:
        if self.account is not None:
            namespace, _, name = self.account.rpartition("/")
            if not name or "/" in namespace:
                raise InvalidInput(f"--service-account {self.account}: write NAME or NAMESPACE/NAME")
            return namespace or self.namespace, name
        prefix, user = "system:serviceaccount:", await client.user_name()
        own, _, name = user.removeprefix(prefix).partition(":")
        return (own, name) if user.startswith(prefix) and name else (self.namespace, ACCOUNT)
