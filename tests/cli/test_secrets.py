"""No secret is in any output: the search itself, and commands that get one in the address of a ledger."""

from __future__ import annotations

import base64
import contextlib
import http.client
import signal
from pathlib import Path

import pytest

from harness import planted
from harness.child import free_port
from harness.desk import PATIENCE, Desk
from harness.eventually import assert_eventually
from harness.gateways import ask

PASSWORD = "planted-password-90ee41"


@pytest.mark.parametrize("name", planted.ENVIRONMENT)
@pytest.mark.parametrize("encoded", [False, True])
def test_the_search_finds_what_was_planted(desk: Desk, tmp_path: Path, name: str, encoded: bool) -> None:
    """It finds a secret in a text and in a file that a process wrote, plain or in base64; the finding names the place and not the
    secret."""
    value = planted.ENVIRONMENT[name]
    text = base64.b64encode(value.encode()).decode() if encoded else value
    log = planted.output(tmp_path / "operator.log")
    log.write_text("INFO ready\n")
    planted.said("/metrics", "sparkonce_keys 1\n")
    assert planted.leaks() == []
    log.write_text(f"INFO store {text}\n")
    planted.said("/v1/keys", f'{{"detail": "{text}"}}')
    assert planted.leaks() == [str(log), "/v1/keys"]
    planted.forget()


def test_a_command_that_prints_a_secret_is_found(desk: Desk) -> None:
    """A separate process prints its environment to a stream."""
    desk.job("raise SystemExit('no job')")
    terminal = desk.start("keys", "list", SPARKONCE_STORE="sqlite:///planted-aws-key-5f1d9c/ledger.db")
    terminal.end()
    assert [Path(found).suffix for found in planted.leaks()] == [".out"]  # standard output, which names the ledger
    planted.forget()


def test_a_token_that_was_sent_is_a_secret() -> None:
    """A token counts as a secret until its test ends; short words that tests use as tokens do not."""
    planted.secret("eyJhbGciOiJSUzI1NiJ9.eyJzdWIi.c2ln")
    planted.secret("t")
    planted.said("log", "tokens of a test: t; refused eyJhbGciOiJSUzI1NiJ9.eyJzdWIi.c2ln")
    assert planted.leaks() == ["log"]
    planted.forget()
    planted.said("log", "eyJhbGciOiJSUzI1NiJ9.eyJzdWIi.c2ln")
    assert planted.leaks() == []


@pytest.mark.parametrize("command", [("keys", "list"), ("keys", "show", "k"), ("doctor",), ("run", "job.yaml")])
@pytest.mark.parametrize(
    "store",
    [
        f"postgresql://ann:{PASSWORD}@127.0.0.1:1/ledger",
        f"postgresql://127.0.0.1:1/ledger?user=ann&password={PASSWORD}",
        f"postgresql://ann:{PASSWORD}@127.0.0.1:notaport/ledger",
        f"etcd://ann:{PASSWORD}@127.0.0.1:1",
        f"etcd://127.0.0.1:1?user=ann&password={PASSWORD}",
        f"mysql://ann:{PASSWORD}@127.0.0.1/ledger",
    ],
)
def test_a_password_in_the_address_of_a_ledger_is_never_told(
    desk: Desk, store: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the ledger does not answer or its address is invalid, the sentence names it without the password."""
    desk.job()
    planted.secret(PASSWORD)
    monkeypatch.setenv("SPARKONCE_STORE", store)
    monkeypatch.setenv("SPARKONCE_PATIENCE", "0.1")
    monkeypatch.setenv("SPARKONCE_INSTALL", "i")
    said = desk.here(*command)
    assert said.code != 0
    assert said.err + said.out
    assert planted.leaks() == []


@pytest.mark.parametrize(
    ("command", "ledger"),
    [
        ("gateway", {"SPARKONCE_STORE": "etcd://127.0.0.1:1?user=ann", "SPARKONCE_ETCD_PASSWORD": PASSWORD}),
        ("operator", {"SPARKONCE_STORE": f"postgresql://ann:{PASSWORD}@127.0.0.1:1/ledger"}),
    ],
    ids=["etcd", "postgresql"],
)
def test_a_process_of_a_cluster_tells_no_password_of_its_ledger(
    desk: Desk, command: str, ledger: dict[str, str]
) -> None:
    """Whether it ends because there can be no ledger, or serves while ledger and API server do not answer: neither its log nor /readyz and
    /metrics have a password, a key of an object store, or the token that it is sent."""
    planted.secret(PASSWORD)
    given = {"SPARKONCE_INSTALL": "i", "SPARKONCE_NAMESPACES": "a", "KUBECONFIG": str(desk.folder / "none")}
    ended = desk.start(command, SPARKONCE_STORE=f"postgresql://ann:{PASSWORD}@127.0.0.1:no/ledger", **given).end()
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    address = f"127.0.0.1:{free_port()}"
    listen = ("--listen", address, "--drain-seconds", "0") if command == "gateway" else ("--http", address)
    given |= ledger
    serving = desk.start(command, *listen, **given)
    paths = ["/readyz", "/metrics", *(["/v1/namespaces/a/keys"] if command == "gateway" else [])]
    assert_eventually(
        lambda: all(asked(address, path) for path in paths) or serving.process.poll() is not None, PATIENCE
    )
    assert serving.process.poll() is None
    serving.interrupt(signal.SIGTERM)
    assert serving.end().err
    assert planted.leaks() == []


def asked(address: str, path: str) -> bool:
    """Whether the gateway answers, with any status."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(address, "GET", path, token="eyJhbGciOiJSUzI1NiJ9.eyJzdWIi.c2ln")
        return True
    return False


TELLS = """
    import os, sys
    from pathlib import Path

    Path("seen").write_text(os.environ["API_TOKEN"])
    print("cannot log in with " + os.environ["API_TOKEN"], file=sys.stderr)
    print("cannot open " + os.environ["DB"], file=sys.stderr)
    sys.exit(3)
"""


def test_a_secret_of_a_job_runs_and_is_not_told(desk: Desk) -> None:
    """The driver gets the secret's value, and the same document is the same job; `keys show`, the result, the log's tail and the history
    hide it."""
    planted.secret(PASSWORD)
    env = [{"name": "API_TOKEN", "value": PASSWORD}, {"name": "DB", "value": f"postgresql://ann:{PASSWORD}@host/db"}]
    conf = {"spark.hadoop.fs.s3a.secret.key": PASSWORD}
    desk.job(TELLS, template={"driver": {"env": env}, "sparkConf": conf})
    failed = desk.here("run", "job.yaml")
    assert (desk.folder / "seen").read_text() == PASSWORD
    assert "cannot log in with ***" in failed.out
    assert "cannot open postgresql://***@host/db" in failed.out
    assert desk.here("run", "job.yaml", "--json").told["replayed"]
    shown = desk.here("keys", "show", "write/numbers@1", "--json").told
    template = shown["job"]["spec"]["template"]["spec"]
    assert template["driver"]["env"][0] == {"name": "API_TOKEN", "value": "***"}
    assert template["sparkConf"] == {"spark.hadoop.fs.s3a.secret.key": "***"}
    for command in (("show",), ("history",), ("explain",)):
        for options in ((), ("--json",)):
            assert desk.here("keys", *command, "write/numbers@1", *options).code == 0
    assert planted.leaks() == []
