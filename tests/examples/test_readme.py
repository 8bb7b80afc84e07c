"""What the README shows is what is there: its job files and scripts, its commands and options, codes and links.

Prose is not checked; everything that a reader would type or parse is. The check runs both ways where a list claims to be
whole (commands, exit codes, fields of the object), so that a new command without a line in the README fails as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sparkonce.cli.exits import ExitCode
from sparkonce.engine.embedded import Ending
from sparkonce.engine.request import Answer
from sparkonce.model import manifest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = ROOT / "examples" / "quickstart"


def blocks(language: str) -> list[str]:
    """Fenced blocks of one language, without their fences."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the README has no section {title}"
    return found[1]


def commands() -> dict[str, Any]:
    """Every command of the command line by its words: `run`, `keys list`."""
    from sparkonce.cli.app import app

    return dict(_leaves(typer.main.get_command(app), ()))


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    # A group is told by what it has: whose class it is (click's, or typer's own copy) differs between versions of typer.
    if not (group := getattr(command, "commands", None)):
        yield " ".join(words), command
        return
    for name, each in group.items():
        yield from _leaves(each, (*words, name))


def named_commands(text: str) -> set[str]:
    """`sparkonce keys list`, `show` names two commands; words in capitals and options are none."""
    names: set[str] = set()
    for line in text.splitlines():
        for first, others in re.findall(r"sparkonce ((?:keys )?[a-z]+(?:-[a-z]+)*)[^`\n]*((?:`, `[a-z]+)*)", line):
            names.add(first)
            names |= {f"keys {other}" for other in re.findall(r"`, `([a-z]+)", others)}
    return names


def test_job_file_is_the_quickstart() -> None:
    """The README's one job file is examples/quickstart/job.yaml, and is a valid job."""
    (shown,) = blocks("yaml")
    assert shown == (QUICKSTART / "job.yaml").read_text(encoding="utf-8")
    job = manifest.load(shown, params={}, source="README.md")
    assert job.spec.template.spec["mainApplicationFile"] == "job.py"


def test_script_is_the_quickstart() -> None:
    """The README's script is examples/quickstart/job.py but for its docstring and its `__future__` line."""
    script = (QUICKSTART / "job.py").read_text(encoding="utf-8")
    _, _, body = script.partition("from __future__ import annotations\n\n")
    assert blocks("python")[0] == body


@pytest.mark.parametrize("code", blocks("python"))
def test_python_compiles(code: str) -> None:
    """Every Python block is whole."""
    compile(code, "README.md", "exec")


def test_exit_codes_are_those_of_the_command_line() -> None:
    """The table has each code once, in order, under the enum's name for it."""
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", section("Exit codes"), re.MULTILINE)
    assert [int(code) for code, _ in rows] == sorted(ExitCode)
    for code, meaning in rows:
        name = {ExitCode.BROKEN: "defect"}.get(ExitCode(int(code)), ExitCode(int(code)).name)
        assert name.lower().replace("_", " ") in meaning


def test_object_has_the_fields_that_are_printed(tmp_path: Path) -> None:
    """The example of `--json` has exactly the fields of a real answer, inside the result too."""
    from sparkonce.cli.show import ending_object
    from sparkonce.engine.telling import result_object
    from sparkonce.model.record import Outcome
    from sparkonce.model.result import OutputResult, Result
    from sparkonce.sink.protocol import Evidence

    (text,) = blocks("json")
    shown = json.loads(text)
    ending = Ending(Answer.NEW, None)
    told = ending_object(ending, key=None, store="", attempts=tmp_path, code=ExitCode.SUCCEEDED)
    assert list(shown) == list(told)
    output = OutputResult(name="flights", kind="slotLog", uri="", commit="", rows=0, bytes=0, files=0, digest="")
    result = Result(outcome=Outcome.SUCCEEDED, generation=1, attempts=1, outputs=(output,), evidence="")
    printed = result_object(result, {"flights": Evidence.PRESENT})
    assert list(shown["result"]) == list(printed)
    assert list(shown["result"]["outputs"][0]) == list(printed["outputs"][0])


def test_commands_are_those_there_are() -> None:
    """The table of commands is whole, and no sentence names a command that does not exist."""
    there = set(commands())
    assert named_commands(section("Commands")) == there
    assert named_commands("\n".join(re.findall(r"`[^`\n]+`", README))) <= there


def test_options_exist() -> None:
    """Each `--option` that the README names belongs to a command, or to a tool it is shown with."""
    others = {"--master"}  # of spark-submit
    there = {option for command in commands().values() for each in command.params for option in each.opts}
    there |= {option for command in commands().values() for each in command.params for option in each.secondary_opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) - others <= there


def test_make_targets_exist() -> None:
    """Each `make` target that the README names is in the Makefile."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    shell = "\n".join(blocks("sh"))
    named = re.findall(r"^make ([a-z-]+)", shell, re.MULTILINE) + re.findall(r"`make ([a-z-]+)", README)
    assert {"demo", "test"} <= set(named) <= set(targets)


def test_links_lead_somewhere() -> None:
    """Relative links name files that are there, and anchors name headings."""
    headings = {title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", README, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("#"):
            assert target[1:] in headings
        else:
            assert (ROOT / target).exists(), target


def test_documented_functions_are_public() -> None:
    """What the README calls on `sparkonce` is part of its face."""
    import sparkonce

    assert set(re.findall(r"\bsparkonce\.([a-z]+)\(", README)) <= set(sparkonce.__all__)
