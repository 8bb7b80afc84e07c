"""Help texts: each command has a sentence that a newcomer understands, and an example that works."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from harness.desk import TESTS, Desk
from sparkonce import __version__
from sparkonce.cli.app import main, program
from sparkonce.cli.exits import ExitCode

COMMANDS = ["run", "plan", "render", "send", "rerun", "cancel", "audit", "sweep", "doctor", "convert", "bind", "adopt"]
KEYS = ["list", "show", "history", "explain", "resolve", "forget", "purge"]
LANES = ["list", "show", "range", "retire"]
ALL = [[each] for each in COMMANDS] + [["keys", each] for each in KEYS] + [["lanes", each] for each in LANES]


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_a_command_explains_itself(desk: Desk, command: list[str]) -> None:
    """A command's help describes it, has an example of it, and explains every option."""
    said = desk.here(*command, "--help")
    assert said.code == 0
    usage, sentence, *_ = filter(None, (line.strip() for line in said.out.splitlines()))
    assert usage.startswith(f"Usage: sparkonce {' '.join(command)}")
    assert re.match(r"[A-Z].*[a-z,.]$", sentence)
    text = " ".join(said.out.split())
    example = text.split("Example: ")[1]
    assert example.startswith(f"sparkonce {' '.join(command)}")
    for option in re.findall(r"^  (?:-\w, )?(--[\w-]+)", said.out, re.MULTILINE):
        line = re.search(rf"^  (?:-\w, )?{option}.*?(?=^  -|\Z)", said.out, re.MULTILINE | re.DOTALL)
        assert line is not None
        assert re.search(r"[a-z]{3,}", re.sub(r"--[\w-]+|[A-Z|=]+", "", line[0])), f"{option} has no text"


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_the_example_is_accepted(desk: Desk, command: list[str]) -> None:
    """The command accepts all options and arguments of its example: it may only fail for missing files, in one sentence."""
    text = " ".join(desk.here(*command, "--help").out.split())
    example = re.split(r" (?:Arguments|Options): ", text.split("Example: ")[1])[0].split(" | ")[0]
    said = desk.here(*shlex.split(example)[1:])
    assert "--help` shows how" not in said.err
    assert said.code in (ExitCode.SUCCEEDED, ExitCode.INVALID, ExitCode.UNAVAILABLE)


def test_the_groups(desk: Desk) -> None:
    """`sparkonce` and `sparkonce keys` list their commands; the help of `sparkonce` lists the exit codes."""
    top = desk.here("--help")
    for name in [*COMMANDS, "keys"]:
        assert re.search(rf"^  {name} ", top.out, re.MULTILINE)
    for code in ExitCode:
        assert re.search(rf"[ ,]{int(code)} [a-z]", " ".join(top.out.split()))
    group = desk.here("keys", "--help")
    for name in KEYS:
        assert re.search(rf"^  {name} ", group.out, re.MULTILINE)
    assert desk.here("--version").out == f"sparkonce {__version__}\n"
    nothing = desk.here()
    assert (nothing.code, "Usage: sparkonce" in nothing.out + nothing.err) == (ExitCode.INVALID, True)
    assert "No such command" in desk.here("rum", "job.yaml").err


@pytest.mark.parametrize("columns", ["60", "400"])
def test_the_table_of_commands_says_what_each_command_says(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The help of the program, which imports no command, is that of all commands imported."""
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["--help"]) == 0
    short = capsys.readouterr().out
    assert main(["--help"], commands=program()) == 0
    assert short == capsys.readouterr().out
    named = typer.main.get_command(program()).commands  # type: ignore[attr-defined] # of a group
    assert named.keys() == {*COMMANDS, "accept-restore", "operator", "gateway", "proxy", "keys", "lanes"}


def test_the_exit_codes_are_documented() -> None:
    """docs/cli.md has one line for each exit code, and no others."""
    page = (TESTS.parent / "docs" / "cli.md").read_text()
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert codes == sorted(ExitCode)
