"""Which right each route and each command needs: the code, and what the pages say of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import typer

from harness.jobs import job as job_document
from harness.memory_store import MemoryStore
from harness.plugin_rights import DocumentedCommand, documented_commands
from sparkonce.blocking import run
from sparkonce.cli.app import main as command_line
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.kubectl import app as plugin
from sparkonce.cli.kubectl import gateway as client
from sparkonce.cli.kubectl.gateway import GatewayClient, GatewayRefused, Reach
from sparkonce.cli.local_keys import show_history
from sparkonce.cli.session import Session
from sparkonce.commands.callers import Authenticator, Authorizer, Caller, Lookup
from sparkonce.commands.remote import RemoteLauncher
from sparkonce.errors import InvalidInput
from sparkonce.gateway.app import Parts, create_app
from sparkonce.gateway.decisions import Decisions
from sparkonce.gateway.keys import RIGHTS, KeyRight
from sparkonce.local.runner import NOWHERE, LocalRunner
from sparkonce.model.identity import explicit
from sparkonce.model.record import Address, Event, Opener, Outcome, Result, SpecBody
from sparkonce.store.protocol import Owned, Request

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


class Open(Doorkeeper):
    """Allows everything."""

    async def allowed(self, caller: Caller, *, verb: str, namespace: str, subresource: str = "") -> bool:
        await super().allowed(caller, verb=verb, namespace=namespace, subresource=subresource)
        return True


class Scene:
    def __init__(self, door: Doorkeeper | None = None) -> None:
        self.door, store = door or Doorkeeper(), MemoryStore()
        self.store = store
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


def finished(scene: Scene) -> Address:
    """The address of key k, which has ended."""
    address = Address(realm="team-a", key_hash=explicit("k", "team-a").key_hash)
    request = Request(
        address=address, key="k", by=Opener(nonce="n"), nonce="n", fingerprints={1: "f"}, spec=SpecBody(job={})
    )
    lease = run(scene.store.open_lease(owner="t"))
    reserved = run(scene.store.reserve(request, lease=lease, floor=0))
    assert isinstance(reserved, Owned)
    result = Result(outcome=Outcome.SUCCEEDED, generation=1, attempts=1, evidence="exit code 0")
    run(scene.store.finalize(reserved.record, reserved.claim, result, retention=60.0))
    return address


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A gateway that allows everything, which the plugin reaches."""
    scene = Scene(Open())

    class Direct(GatewayClient):
        def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
            answer = scene.ask(method, path, body)
            if answer.is_error:
                raise GatewayRefused(answer.json()["detail"], status=answer.status_code)
            return answer.json()

    @contextmanager
    def reached(_: Reach) -> Iterator[GatewayClient]:
        yield Direct(url="", token=None, namespace="team-a")

    monkeypatch.setattr(client, "reached", reached)
    return scene


def call(*arguments: str) -> int:
    return command_line(plugin.hoisted(arguments), commands=plugin.app, name=plugin.NAME)


@pytest.mark.parametrize(
    "command",
    ["show", "history", "explain", "logs", "rerun", "cancel", "resolve --failed -y --reason r", "forget -y --reason r"],
)
def test_an_empty_key_is_refused(opened: Scene, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unset variable of a script names no key; the command that the sentence names lists them."""
    finished(opened)
    name, *more = command.split()
    assert call(name, "", *more) == ExitCode.INVALID
    said = capsys.readouterr().err
    assert said == "sparkonce: the key is empty; `kubectl sparkonce list -n team-a` shows keys\n"
    assert call(*re.findall("`kubectl sparkonce (.+)`", said)[0].split()) == ExitCode.SUCCEEDED
    assert "k " in capsys.readouterr().out


def test_the_history_of_a_forgotten_key_of_a_cluster(opened: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """No text says the namespace of a key without a record: on a cluster's ledger `sparkonce keys history` names the command that is told
    it."""
    address = finished(opened)
    record = run(opened.store.load(address)).record
    assert record is not None
    run(opened.store.forget(record, Event(what="Forgotten", by="ann", why="wrong", generation=1)))
    ledger = Session(LocalRunner(store=opened.store, attempts=NOWHERE, launcher=RemoteLauncher(), remote=True))
    with pytest.raises(InvalidInput, match="no record of") as refused:
        show_history(ledger, address.key_hash, as_json=False)
    [remedy] = re.findall("`kubectl sparkonce (.+)`", str(refused.value))
    words = remedy.replace("HASH", address.key_hash).replace("NAMESPACE", "team-a").split()
    assert call(*words) == ExitCode.SUCCEEDED
    assert "wrong" in capsys.readouterr().out


def test_a_rerun_follows_the_generation_that_it_names() -> None:
    """A rerun that names the newest generation opens the next one, and sent again it opens none. One that names a generation which is not
    there yet is refused: its sender took another key, or another number."""
    scene = Scene(Open())
    address = finished(scene)

    def rerun(generation: int) -> tuple[int, str]:
        answer = scene.ask("POST", KEYS.format(namespace="team-a") + "/k/rerun", {"generation": generation})
        return answer.status_code, answer.text

    def newest() -> int:
        record = run(scene.store.load(address)).record
        assert record is not None
        return record.generation

    status, said = rerun(10)
    assert (status, newest()) == (409, 1), said
    assert "k has no generation 10 to follow, its newest is 1; nothing was opened" in said
    assert (rerun(1)[0], newest()) == (200, 2)
    assert (rerun(1)[0], newest()) == (200, 2)


def test_a_file_with_parameters_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the refusal of a parameter that is missing says can be done: the job that kubectl is given has the value."""
    document = job_document("nightly", key="k", arguments=("${params.day}",))
    (tmp_path / "job.yaml").write_text(json.dumps(document))
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\nexec cat > {tmp_path}/applied\n")
    kubectl.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    again = ("rerun", "-f", str(tmp_path / "job.yaml"), "--reason", "r")
    assert call(*again) == ExitCode.INVALID
    [remedy] = re.findall("add (--param .+)", capsys.readouterr().err)
    assert call(*again, *remedy.replace("VALUE", "monday").split()) == ExitCode.SUCCEEDED
    assert json.loads((tmp_path / "applied").read_text())["spec"]["template"]["spec"]["arguments"] == ["monday"]
    assert call("rerun", "k", "--param", "day=monday") == ExitCode.INVALID
    assert "--param completes a job file" in capsys.readouterr().err
