"""README and docs/cli.md agree with the product: job files and scripts, commands and options, codes and fields.

Prose is not checked; everything that a reader would type or parse is. Lists that claim to be complete (commands, exit codes, fields of the
object) are checked in both directions, so that a new command without a line in docs/cli.md fails as well. tests/unit/test_hallway.py checks
the links of all pages.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sparkonce.attempt.request import Answer
from sparkonce.cli.exits import ExitCode
from sparkonce.local.runner import Ending
from sparkonce.model import manifest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
OUTCOMES = (ROOT / "docs" / "outcomes.md").read_text(encoding="utf-8")
PAGES = f"{README}\n{CLI}\n{OUTCOMES}"
"""The user documentation of commands."""
QUICKSTART = ROOT / "examples" / "quickstart"


def blocks(language: str, text: str = README) -> list[str]:
    """Fenced blocks of one language, without their fences."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def table(first: str) -> str:
    """The table of docs/cli.md whose first column has this heading."""
    found = re.search(rf"^\| {first} \|.*\n((?:\|.*\n)+)", CLI, re.MULTILINE)
    assert found is not None, f"docs/cli.md has no table of {first}"
    return found[1]


def commands() -> dict[str, Any]:
    """All commands of the command line by name: `run`, `keys list`."""
    from sparkonce.cli.app import program

    return dict(_leaves(typer.main.get_command(program()), ()))


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    # A group is recognised by its attributes: its class (click's, or typer's own copy) differs between versions of typer.
    if not (group := getattr(command, "commands", None)):
        yield " ".join(words), command
        return
    for name, each in group.items():
        yield from _leaves(each, (*words, name))


def named_commands(text: str) -> set[str]:
    """For example, "`sparkonce keys list`, `show`" names two commands; words in capitals and options are not commands."""
    names: set[str] = set()
    for line in text.splitlines():
        for first, others in re.findall(
            r"sparkonce ((?:(?:keys|lanes) )?[a-z]+(?:-[a-z]+)*)[^`\n]*((?:`, `[a-z]+)*)", line
        ):
            names.add(first)
            names |= {f"{first.partition(' ')[0]} {other}" for other in re.findall(r"`, `([a-z]+)", others)}
    return names


def test_job_file_is_the_quickstart() -> None:
    """The job file in the README is examples/quickstart/job.yaml, and is a valid job."""
    (shown,) = blocks("yaml")
    assert shown == (QUICKSTART / "job.yaml").read_text(encoding="utf-8")
    job = manifest.load(shown, params={}, source="README.md")
    assert job.spec.template.spec["mainApplicationFile"] == "job.py"


def test_script_is_the_quickstart() -> None:
    """The README's script is examples/quickstart/job.py without its docstring and its `__future__` line."""
    script = (QUICKSTART / "job.py").read_text(encoding="utf-8")
    _, _, body = script.partition("from __future__ import annotations\n\n")
    assert blocks("python")[0] == body


@pytest.mark.parametrize("code", blocks("python"))
def test_python_compiles(code: str) -> None:
    """Every Python block compiles."""
    compile(code, "README.md", "exec")


def test_exit_codes_are_those_of_the_command_line() -> None:
    """The table lists each code once, in order, under its name in the enum."""
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", table("code"), re.MULTILINE)
    assert [int(code) for code, _ in rows] == sorted(ExitCode)
    for code, meaning in rows:
        name = {ExitCode.BROKEN: "defect"}.get(ExitCode(int(code)), ExitCode(int(code)).name)
        assert name.lower().replace("_", " ") in meaning


def test_object_has_the_fields_that_are_printed(tmp_path: Path) -> None:
    """The example of `--json` has exactly the fields of a real answer, in the result too."""
    from sparkonce.cli.view.outcome import ending_object
    from sparkonce.commands.describe import result_object
    from sparkonce.model.record import Outcome, OutputResult, Result
    from sparkonce.sink.protocol import Evidence

    (text,) = blocks("json", CLI)
    shown = json.loads(text)
    ending = Ending(Answer.NEW, None)
    told = ending_object(ending, key=None, store="", attempts=tmp_path, code=ExitCode.SUCCEEDED)
    assert list(shown) == list(told)
    output = OutputResult(name="flights", kind="slotLog", uri="", commit="", rows=0, bytes=0, files=0, digest="")
    result = Result(outcome=Outcome.SUCCEEDED, generation=1, attempts=1, outputs=(output,), evidence="")
    printed = result_object(result, {"flights": Evidence.PRESENT})
    assert list(shown["result"]) == list(printed)
    assert list(shown["result"]["outputs"][0]) == list(printed["outputs"][0])
    named = re.findall(r"`([a-zA-Z]+)`", "".join(re.findall(r"^\|([^|]+)\|", table("field"), re.MULTILINE)))
    assert sorted(named) == sorted(shown)


def test_commands_are_those_there_are() -> None:
    """The table lists all commands, and no sentence of the pages names a command that does not exist."""
    there = set(commands())
    assert named_commands(table("command")) == there
    assert named_commands("\n".join(re.findall(r"`[^`\n]+`", PAGES))) <= there


def test_the_table_of_commands_says_what_help_says() -> None:
    """The arguments in a row of the table (FILE, KEY|FILE, TABLE, options) are in the usage and options of that command's `--help`."""
    for row in table("command").splitlines():
        first = re.match(r"\| `sparkonce ([a-z-]+(?: [a-z]+)?)((?: [^`]+)?)`", row)
        if first is None or first[1] not in commands():
            continue
        command = commands()[first[1]]
        arguments = re.findall(r"(?<![-A-Z] )\b[A-Z|\\]{3,}", first[2].split(" --")[0])
        metavars = {
            str(each.metavar or each.name).upper() for each in command.params if each.param_type_name == "argument"
        }
        assert {each.replace("\\", "") for each in arguments} <= {each.strip("[].") for each in metavars}, first[1]
        options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", row)) <= options, first[1]


def test_options_exist() -> None:
    """Each `--option` that the pages name belongs to a command, or to the tool it is shown with."""
    others = {"--master", "--help"}  # spark-submit's; every command's
    there = {option for command in commands().values() for each in command.params for option in each.opts}
    there |= {option for command in commands().values() for each in command.params for option in each.secondary_opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGES)) - others <= there


def test_make_targets_exist() -> None:
    """Each `make` target that the README names is in the Makefile."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    shell = "\n".join(blocks("sh"))
    named = re.findall(r"^make ([a-z-]+)", shell, re.MULTILINE) + re.findall(r"`make ([a-z-]+)", README)
    assert {"demo", "test"} <= set(named) <= set(targets)


def test_documented_functions_are_public() -> None:
    """Functions that the README calls on `sparkonce` are public."""
    import sparkonce

    assert set(re.findall(r"\bsparkonce\.([a-z]+)\(", README)) <= set(sparkonce.__all__)


def test_the_readme_is_short() -> None:
    """The README has at most 200 lines; longer topics have a page of their own."""
    assert len(README.splitlines()) <= 200


def test_the_screenshot_is_what_the_command_prints(tmp_path: Path) -> None:
    """The picture of `keys explain` shows the rows and the key that the command prints today for such a job."""
    program = "import sys, screenshot as s, pathlib; sys.stdout.write(s.explained(pathlib.Path(sys.argv[1])))"
    printed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT / "tests")])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    picture = html.unescape((ROOT / "docs" / "images" / "keys-explain.svg").read_text(encoding="utf-8"))
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", picture))
    labels = [re.split(r" {2,}", line)[0] for line in printed.splitlines()]
    assert len(labels) == 7
    assert [label for label in labels if f" {label} " not in shown] == []
    assert "load-flights/flights/2013-01@1" in shown
    assert "Partial" in shown
    assert "Partial" in printed
