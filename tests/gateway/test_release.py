"""How the plugin finds a release's gateway and whose token it sends, with an API server that refuses what a role does not allow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from sparkonce.cli.kubectl.release import (
    ACCOUNT,
    READER,
    SERVICE,
    Credentials,
    GatewayTokens,
    ReleaseGateway,
    found_gateway,
)
from sparkonce.errors import InvalidInput
from sparkonce.kube.client import ApiClient
from sparkonce.kube.login import KubeLogin
from sparkonce.launch.kubernetes import ApiRefused, Json, Resource

AUDIENCE = "gateway.sparkonce.dev/i"
DATA = {"url": "https://g:8080", "audience": AUDIENCE, "ca.crt": "PEM"}


def forbidden(what: str) -> ApiRefused:
    return ApiRefused(f"{what} is forbidden", code=403, reason="Forbidden")


@dataclass
class Server:
    """Answers as an API server whose user may do only this."""

    tokens: tuple[str, ...] = ()
    """Accounts whose tokens may be made."""
    accounts: tuple[str, ...] = (ACCOUNT, READER)
    """Accounts that exist."""
    user: str = "ann"
    services: tuple[str, ...] | None = None
    """None: the user may not list them."""
    config_maps: dict[str, Json] = field(default_factory=dict)
    made: list[tuple[str, str]] = field(default_factory=list)

    async def list(self, resource: Resource, namespace: str, *, labels: object) -> list[Json]:
        del namespace, labels
        if self.services is None:
            raise forbidden(f"list {resource.plural}")
        return [{"metadata": {"name": name}} for name in self.services]

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        del resource, namespace
        data = self.config_maps.get(name)
        return None if data is None else {"data": data}

    async def user_name(self) -> str:
        return self.user

    async def token(self, namespace: str, account: str, *, audience: str, seconds: int) -> str | None:
        assert (audience, seconds) == (AUDIENCE, 600)
        if account not in self.tokens:
            raise forbidden(f"create serviceaccounts/token {account}")
        if account not in self.accounts:
            return None
        self.made.append((namespace, account))
        return f"token of {account}"


class Login(Credentials):
    """A user of that server."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        object.__setattr__(self, "server", server)

    def ask(self, question: Callable[[ApiClient, KubeLogin], Awaitable[Any]]) -> Any:
        server: Server = getattr(self, "server")  # noqa: B009 - mypy knows no such field of a frozen class
        return asyncio.run(cast("Any", question)(server, None))


def sent(server: Server, account: str | None = None) -> str:
    return GatewayTokens(credentials=Login(server), audience=AUDIENCE, namespace="team-a", account=account)()


def test_who_may_only_read_sends_the_viewers_token() -> None:
    """An editor sends that of `sparkonce-user`, a viewer that of `sparkonce-viewer`, and a service account its own."""
    assert sent(Server(tokens=(ACCOUNT, READER))) == f"token of {ACCOUNT}"
    assert sent(Server(tokens=(READER,))) == f"token of {READER}"
    assert sent(Server(tokens=("ci",), accounts=("ci",), user="system:serviceaccount:team-a:ci")) == "token of ci"


def test_nobody_becomes_a_viewer_who_named_an_account() -> None:
    """An account that is named, or is the user's own, has no other in its place: its refusal is the answer."""
    for server, account in (
        (Server(tokens=(READER,)), "ci"),
        (Server(tokens=(READER,)), ACCOUNT),
        (Server(tokens=(READER,), user="system:serviceaccount:team-b:ci"), None),
    ):
        with pytest.raises(InvalidInput, match="needs `create` on serviceaccounts/token"):
            sent(server, account)
        assert server.made == []


def test_the_refusal_is_that_of_the_usual_account() -> None:
    """Whether the viewers' account may not be used either or does not exist. A missing `sparkonce-user` is no refusal: it is to be made."""
    for server in (Server(), Server(tokens=(READER,), accounts=())):
        with pytest.raises(InvalidInput, match=f"create serviceaccounts/token {ACCOUNT} is forbidden"):
            sent(server)
    with pytest.raises(InvalidInput, match=f"kubectl create serviceaccount {ACCOUNT} -n team-a"):
        sent(Server(tokens=(ACCOUNT, READER), accounts=(READER,)))


def found(server: Server, service: str | None = None) -> ReleaseGateway:
    return found_gateway(Login(server), "sparkonce", service)


def test_who_may_not_list_services_gets_the_usual_one() -> None:
    """A team has no right in the release's namespace but to read that ConfigMap. Where it has another name, the sentence says how to name
    it, and that works."""
    assert found(Server(config_maps={SERVICE: DATA})).service == SERVICE
    other = Server(config_maps={"so-gateway": DATA})
    with pytest.raises(InvalidInput, match="name another with --service"):
        found(other)
    assert found(other, "so-gateway").service == "so-gateway"
    assert (
        found(Server(services=("so-gateway",), config_maps={"so-gateway": DATA, SERVICE: {}})).service == "so-gateway"
    )


def test_what_a_release_of_before_does_not_say_is_not_there() -> None:
    """No address outside the cluster and no client certificates, unless the ConfigMap says exactly so."""
    release = found(Server(config_maps={SERVICE: DATA}))
    assert (release.public_url, release.public_ca, release.client_certificates) == ("", "", False)
    assert not found(Server(config_maps={SERVICE: {**DATA, "clientCertificates": "false"}})).client_certificates
    public = {"publicUrl": "https://so.example/", "public-ca.crt": "P", "clientCertificates": "true"}
    release = found(Server(config_maps={SERVICE: {**DATA, **public}}))
    assert (release.public_url, release.public_ca, release.client_certificates) == ("https://so.example", "P", True)


@pytest.mark.parametrize("url", ["http://so.example", "so.example", "https://", "http://127.0.0.1:80"])
def test_an_address_outside_the_cluster_is_for_tls(url: str) -> None:
    """No token goes to another one, whatever the ConfigMap says."""
    with pytest.raises(InvalidInput, match="not https://HOST"):
        found(Server(config_maps={SERVICE: {**DATA, "publicUrl": url}}))
