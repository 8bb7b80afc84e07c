"""`sparkonce doctor accept-restore`: what it refuses before it touches the ledger."""

from __future__ import annotations

import io
import os

import pytest

from sparkonce.cli.app import main
from sparkonce.controller.restore import Accepted
from sparkonce.kube.operator import OperatorSettings

ETCD = ("--store", "etcd://127.0.0.1:1", "--install", "prod")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (ETCD, "say which namespaces the operator watches"),
        ((*ETCD, "--namespace", "a", "--all-namespaces"), "say which namespaces the operator watches"),
        ((*ETCD, "--namespace", "", "--yes"), "say which namespaces the operator watches"),
        ((*ETCD, "--namespace", ",", "--yes"), "say which namespaces the operator watches"),
        (("--store", "ledger.db", "--install", "prod", "-A", "--yes"), "ledger.db is not one"),
        (
            ("--store", "postgresql://me:secret@host/db", "--install", "local", "-A", "--yes"),
            "is the ledger of `sparkonce run`; give accept-restore another --install",
        ),
    ],
)
def test_what_it_refuses(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit code 2: no namespaces, or two ways to select them; a store that operators do not use."""
    assert main(["doctor", "accept-restore", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and says in said and "secret" not in said, said


def test_it_asks_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --yes, and without a terminal to ask, nothing is done."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["doctor", "accept-restore", *ETCD, "-A"]) == 2
    assert "nothing was changed" in capsys.readouterr().err


def test_namespaces_are_given_as_to_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--namespace` takes what `sparkonce operator` takes, whose setting a person copies: names between commas, and the option repeated."""
    asked: list[object] = []

    async def accept(*_: object, **given: object) -> Accepted:
        asked.append(given["namespaces"])
        return Accepted(epoch=2, rebuilt=(), kept=0)

    async def serve(settings: OperatorSettings, **_: object) -> int:
        asked.append(settings.namespaces)
        return 0

    monkeypatch.setattr("sparkonce.controller.restore.accept", accept)
    monkeypatch.setattr("sparkonce.kube.operator.serve", serve)
    monkeypatch.setattr("sparkonce.sink.objects.ambient.forbid", lambda _: None)  # it changes this process for good
    named = (*ETCD, "--namespace", "a,b,", "-n", "c")
    assert main(["doctor", "accept-restore", *named, "--yes"]) == 0
    assert main(["operator", *named]) == 0
    assert asked == [["a", "b", "c"]] * 2


def test_a_user_without_a_name_may_accept(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod may run as a uid that no passwd entry names; the ledger then says the uid."""
    by: list[str] = []

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    async def accept(*_: object, **given: object) -> Accepted:
        by.append(str(given["by"]))
        return Accepted(epoch=2, rebuilt=(), kept=0)

    monkeypatch.setattr("getpass.getuser", nobody)
    monkeypatch.setattr("sparkonce.controller.restore.accept", accept)
    assert main(["doctor", "accept-restore", *ETCD, "-A", "--yes"]) == 0
    assert (by, capsys.readouterr().err) == ([f"uid {os.getuid()}"], "")
