"""Which right each route and each command needs: the code, and what the pages say of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import typer

from harness.memory_store import MemoryStore
from harness.plugin_rights import DocumentedCommand, documented_commands
from sparkonce.cli.app import main as command_line
from sparkonce.cli.kubectl import app as plugin
from sparkonce.cli.kubectl import gateway as client
from sparkonce.cli.kubectl.gateway import Reach
from sparkonce.commands.callers import Authenticator, Authorizer, Caller, Lookup
from sparkonce.gateway.app import Parts, create_app
from sparkonce.gateway.decisions import Decisions
from sparkonce.gateway.keys import RIGHTS, KeyRight

GATEWAY_PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateway.md"
KEYS = "/v1/namespaces/{namespace}/keys"
BODIES = {"forget": {"reason": "r"}, "resolve": {"reason": "r", "outcome": "retry"}}


class Doorkeeper:
    """Knows every token as ann's, and refuses every right, which it records."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, KeyRight]] = []

    async def caller(self, token: str) -> Caller:
        del token
        return Caller(name="ann", for_gateway=True)

    async def allowed(self, caller: Caller, *, verb: str, namespace: str, subresource: str = "") -> bool:
        assert caller.name == "ann"
        self.asked.append((namespace, KeyRight(verb, subresource)))
        return False


class Scene:
    def __init__(self) -> None:
        self.door, store = Doorkeeper(), MemoryStore()
        self.app = create_app(
            Parts(
                store=store,
                authenticator=cast("Authenticator", self.door),
                authorizer=cast("Authorizer", self.door),
                objects=cast("Lookup", None),
                decisions=Decisions(lambda: store, install="i"),
                audience="gateway.sparkonce.dev/tests",
            )
        )

    def routes(self) -> dict[str, tuple[str, str]]:
        """Method and path of each route of keys, by its name."""
        found = {}
        for path, methods in self.app.openapi()["paths"].items():
            if path.startswith(KEYS):
                [(method, operation)] = methods.items()
                found[operation["summary"].lower()] = method.upper(), path
        return found

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
                return await http.request(method, path, headers={"Authorization": "Bearer t"}, json=body)

        return asyncio.run(asked())


def test_each_route_needs_the_right_of_its_name() -> None:
    """One review per request, before anything is read; who lacks the right is told which one, in one sentence."""
    scene = Scene()
    routes = scene.routes()
    assert routes.keys() == RIGHTS.keys()
    for name, (method, path) in routes.items():
        scene.door.asked.clear()
        body = BODIES.get(name, {}) if method == "POST" else None
        answer = scene.ask(method, path.format(namespace="team-a", key="k"), body)
        assert answer.status_code == 403, (name, answer.text)
        assert scene.door.asked == [("team-a", RIGHTS[name])], name
        assert answer.json()["detail"] == (
            f"ann may not {RIGHTS[name].verb} {RIGHTS[name].resource} in namespace team-a; ask for a role that allows it"
        )


def test_the_gateways_page_has_the_rights_of_the_routes() -> None:
    """Each route with its right, and none that is not there."""
    [table] = re.findall(r"^\| route \| right \|\n\| ---.*\n((?:\|.*\n)+)", GATEWAY_PAGE.read_text(), re.MULTILINE)
    told: dict[str, tuple[str, str]] = {}
    for line in table.splitlines():
        names, right = (cell.strip() for cell in line.strip("|").split("|"))
        [(verb, resource)] = re.findall(r"`(\w+)` `(\S+)`", right)
        told |= {name.strip(): (verb, resource) for name in names.split(",")}
    assert told == {name: (right.verb, right.resource) for name, right in RIGHTS.items()}


class Recording:
    """In the gateway's place: answers everything, and notes which routes are asked."""

    namespace = "team-a"

    def __init__(self) -> None:
        self.routes: set[str] = set()

    def get(self, key: str = "", rest: str = "") -> Any:
        self.routes.add(rest.strip("/") if rest.startswith("/") else "show" if key else "list")
        shown = {"key": "k", "keyHash": "ab" * 32, "phase": "Held", "held": "Unknown", "generation": 1, "attempt": 1}
        listed: dict[str, Any] = {"keys": [], "unreadable": [], "after": None}
        return shown | (listed if not key else {"finalizedAt": None, "result": None})

    def post(self, key: str, verb: str, body: Mapping[str, Any]) -> Any:
        del body
        self.routes.add(verb)
        return {**self.get("", "/" + verb), "reason": "", "unblock": "", "floor": 1, "key": key}


def words(command: DocumentedCommand) -> list[str]:
    """A call of a documented command that asks for no confirmation."""
    options = {"resolve": ["--failed", "-y"], "forget": ["-y"]}
    filled = {"KEY": "k", "TEXT": "r"}
    text = command.text.replace("[-f] ", "").split()
    return [filled.get(word, word) for word in text] + options.get(command.name, [])


def of_the_plugin() -> set[str]:
    return set(typer.main.get_command(plugin.app).commands)  # type: ignore[attr-defined] # of a group


def test_the_page_names_each_command_of_the_plugin() -> None:
    """The table of docs/kubernetes-cli.md has every command, and no other."""
    assert {each.name for each in documented_commands()} == of_the_plugin()


@pytest.mark.parametrize("command", documented_commands(), ids=lambda each: each.text)
def test_a_command_needs_the_rights_of_the_page(command: DocumentedCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly those of the routes that it asks; `rerun -f` asks none."""
    gateway = Recording()

    @contextmanager
    def reached(_: Reach) -> Iterator[Recording]:
        yield gateway

    monkeypatch.setattr(client, "reached", reached)
    monkeypatch.setenv("PATH", "/nowhere")  # logs and rerun -f go on to kubectl, which is not there
    command_line(plugin.hoisted(words(command)), commands=plugin.app, name=plugin.NAME)
    assert {RIGHTS[route] for route in gateway.routes} == command.rights
    assert bool(command.rights) is not command.by_file
