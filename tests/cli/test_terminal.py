"""Text from others cannot control a terminal: paths, logs of drivers, answers of gateways, in sentences and in JSON."""

from __future__ import annotations

import ast
import json
import os
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparkonce
from harness.desk import FAILS, Desk, Said
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.view import keys as view
from sparkonce.cli.view import words
from sparkonce.cli.view.terminal import line, shown
from sparkonce.model import manifest

KEY = "write/numbers@1"
ESCAPES = "\x1b]52;c;ZWNobw==\x07\x1b[2J\x9b31m\u202etxt.exe\u2066\x7f\r"
"""These write to the clipboard, clear the screen, turn text red by a C1 control, reverse its direction, and overwrite the line."""
PRINTS = f"""
    import sys

    print({ESCAPES!a} + "the input is not there", file=sys.stderr)
    sys.exit(3)
"""


def harmless(text: str) -> bool:
    return all(character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs") for character in text) and not set(
        text
    ) & set("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # fmt: skip


def checked(said: Said) -> Said:
    assert harmless(said.out), ascii(said.out)
    assert harmless(said.err), ascii(said.err)
    return said


@pytest.mark.parametrize("command", [("run", "job.yaml"), ("run", "job.yaml", "--json"), ("plan", "job.yaml")])
def test_what_a_driver_prints(desk: Desk, command: tuple[str, ...]) -> None:
    """The last lines of a driver's log are escaped at the end of the run and in every replay."""
    desk.job(PRINTS)
    first = checked(desk.here("run", "job.yaml"))
    assert first.code == ExitCode.FAILED
    assert r"\u001b[2J" in first.out
    again = checked(desk.here(*command))
    assert again.code == (ExitCode.SUCCEEDED if command[0] == "plan" else ExitCode.FAILED)
    if "--json" in command:
        assert "\x1b[2J" in again.told["result"]["failure"]["logTail"]


@pytest.mark.parametrize("name", [f"{ESCAPES}.yaml", "a\nsucceeded: write.yaml", os.fsdecode(b"\xff\xfe.yaml")])
def test_a_path_with_escapes(desk: Desk, name: str) -> None:
    """A path with escapes, of a missing job file, an invalid one, or a script, is printed on one line, even if it is not UTF-8."""
    for _ in range(2):
        for options in ((), ("--json",)):
            said = checked(desk.here("plan", name, *options))
            assert said.code == ExitCode.INVALID
            assert len(said.err.splitlines()) == 1
        Path(name).write_text("a: [")
    script = f"{ESCAPES.replace('/', '')}.py"
    desk.job(template={"mainApplicationFile": script})
    assert script.encode("unicode_escape") != script.encode()
    said = checked(desk.here("plan", "job.yaml"))
    assert "spec.template.spec.mainApplicationFile" in said.err


def test_a_document_with_escapes_is_the_same_document(desk: Desk) -> None:
    """`render` prints them escaped in double quotes, which are read back unchanged."""
    environment = {ESCAPES.replace("=", ""): "v"}
    desk.job(template={"arguments": [ESCAPES], "driver": {"envVars": environment}})
    rendered = checked(desk.here("render", "job.yaml"))
    assert rendered.code == 0
    spec = manifest.load(rendered.out, params={}, source="").spec.template.spec
    assert (spec["arguments"], spec["driver"]) == ([ESCAPES], {"envVars": environment})


def test_an_answer_of_a_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    """Every text of the answer, in each table of the plugin, is escaped."""
    identity = {"key": f"k{ESCAPES}", "keyHash": "0" * 64, "generation": 1, "attempt": 1, "phase": f"Failed{ESCAPES}"}
    times = {"createdAt": "2026-11-21T10:00:00Z", "finalizedAt": None, "expiresAt": None}
    failure = {"class": ESCAPES, "message": ESCAPES, "logTail": ESCAPES}
    output = {"name": ESCAPES, "uri": f"s3://{ESCAPES}", "rows": 1, "bytes": 1}
    result = {"outputs": [output], "values": {ESCAPES: ESCAPES}, "failure": failure}
    described = {
        **identity,
        **times,
        "owner": ESCAPES,
        "held": None,
        "note": ESCAPES,
        "result": result,
        "job": {"spec": {"operation": ESCAPES, "resource": ESCAPES}},
        "attempts": [{"attempt": 1, "began": None, "ended": ESCAPES}],
    }
    source = view.Source("namespace x")
    view.print_key(described, source, now=0.0)
    unreadable = [{"keyHash": "1" * 64, "reason": ESCAPES}]
    view.print_keys({"keys": [{**identity, **times}], "unreadable": unreadable}, source, now=0.0, limit=None)
    event = {"at": "2026-11-21T10:00:00Z", "generation": 1, "what": ESCAPES, "by": ESCAPES, "why": ESCAPES}
    view.print_history({"key": ESCAPES, "events": [event]})
    explained = {
        "row": ESCAPES,
        "evidence": ESCAPES,
        "paths": [ESCAPES],
        "waitsFor": "",
        "owner": ESCAPES,
        "unblock": "",
    }
    view.print_explained({**identity, **explained})
    printed = capsys.readouterr().out
    assert harmless(printed), ascii(printed)
    assert r"\u001b[2J" in printed


@given(st.text(st.characters()))
def test_what_is_shown_is_harmless_and_json_stays_json(text: str) -> None:
    """For any text: one line stays one line, and JSON reads back as the same value."""
    assert harmless(shown(text))
    assert len(line(text).splitlines()) <= 1
    assert json.loads(shown(json.dumps({text: [text]}, ensure_ascii=False))) == {text: [text]}


def test_one_module_prints() -> None:
    """In the command line no other module calls print, typer.echo or a stream's write; tables and progress use `line`."""
    allowed = {
        "view/terminal.py": {"echo", "confirm"},
        "view/progress.py": {"print", "write"},
        "view/words.py": {"print"},
    }
    folder = Path(sparkonce.__file__).parent / "cli"
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            match node.func:
                case ast.Name("print") | ast.Attribute(attr="print" | "echo" | "confirm" | "secho"):
                    name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                case ast.Attribute(ast.Attribute(attr="stdout" | "stderr" | "_stream"), "write"):
                    name = "write"
                case _:
                    continue
            found.setdefault(str(path.relative_to(folder)), set()).add(name)
    assert found == allowed


def test_a_job_that_fails_harmlessly_reads_as_before(desk: Desk) -> None:
    """Lines, tabs and letters of any script are unchanged."""
    desk.job(FAILS.replace("the input is not there", "l'entrée\\tn'est pas là — 入力"))
    assert "    l'entrée\tn'est pas là — 入力" in desk.here("run", "job.yaml").out


@pytest.mark.parametrize("columns", ["20", "100"])
def test_a_pipe_cuts_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """Every cell of a table is complete and on its own row, however long other cells are; no row ends in blanks."""
    monkeypatch.setenv("COLUMNS", columns)
    desk.job()
    assert desk.here("run", "job.yaml").code == 0
    reason = "the source was corrected, " * 35
    assert desk.here("rerun", "job.yaml", "--reason", reason).code == 0
    events = desk.here("keys", "history", KEY, "--json").told["events"]
    printed = desk.here("keys", "history", KEY).out.splitlines()
    assert len(printed) == 1 + len(events)
    for row, event in zip(printed[1:], events, strict=True):
        assert re.match(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d +{event['generation']} ", row), row
        assert event["what"] in row
        assert words.sentence(event.get("why", "")) in row
        assert row == row.rstrip()
    assert any(len(event.get("why", "")) > 900 for event in events)
    assert KEY in desk.here("keys", "explain", KEY).out


def test_a_table_of_long_cells_is_whole_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """A cell of any length, in any column, is complete: what a script reads of a row does not depend on the table's other rows."""
    rows = [("2026-11-21 10:00:00", "x" * 5000, "y"), ("2026-11-21 10:00:01", "z", "入力" * 900)]
    words.print_table(("AT", "WHY", "BY"), rows)
    head, *printed = capsys.readouterr().out.splitlines()
    assert head.split() == ["AT", "WHY", "BY"]
    assert [tuple(row.split("  ")[:1]) + tuple(row.split()[-2:]) for row in printed] == [
        (moment, why, by) for moment, why, by in rows
    ]
