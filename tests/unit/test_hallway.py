"""The first page for newcomers is true: the steps of docs/life-of-a-job.md exist and happen in that order, and the code path to read is
short."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from harness.patience import completed

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "sparkonce"
PAGE = (ROOT / "docs" / "life-of-a-job.md").read_text(encoding="utf-8")
TRACE = ROOT / "scripts" / "trace_path.py"
PATIENCE = 120.0
"""Seconds for two traced interpreters on a machine that other tests share."""

DRIVER = """
    from trace_path import trace_order

    trace_order("driver.json")

    from harness.arrow_stage import arrow_stage, table_of
    from sparkonce.driver.current import current

    current(stager=arrow_stage).write(table_of(1, 2, 3), "squares")
"""
"""The quickstart's script with rows that need no JVM."""


@dataclass(frozen=True)
class Step:
    number: int
    process: str
    file: str
    function: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.function}"


def steps(title: str) -> list[Step]:
    """The rows of the table below this heading."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/life-of-a-job.md has no section {title}"
    rows = re.findall(r"^\| (\d+) \| (\w+) \| `([\w/]+\.py)` \| `([\w.]+)` \| .+ \|$", section[1], re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| \d+ ", section[1], re.MULTILINE)), "a row that cannot be read"
    return [Step(int(number), process, file, function) for number, process, file, function in rows]


@cache
def functions_of(file: str) -> frozenset[str]:
    """Functions and methods that a file of the package defines, by qualified name."""
    found: set[str] = set()
    for node in ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{each.name}" for each in methods}
    return frozenset(found)


@pytest.mark.parametrize("title", ["On a laptop", "On Kubernetes"])
def test_every_step_names_a_function_that_exists(title: str) -> None:
    """Each row names a file and a function in it; the rows are numbered without a gap."""
    found = steps(title)
    assert [step.number for step in found] == list(range(1, len(found) + 1))
    assert len(found) > 20
    assert [step.name for step in found if step.function not in functions_of(step.file)] == []


def test_files_and_functions_in_the_text_exist() -> None:
    """Each `file.py` that the page or the design mentions exists, and each `Class.method` on the page is a method of some file."""
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    mentioned = set(re.findall(r"`([\w/]+\.py)`", PAGE + design)) | set(
        re.findall(r"`((?:tests|scripts)/\w+)/?`", design)
    )
    assert [name for name in mentioned if not (PACKAGE / name).exists() and not (ROOT / name).exists()] == []
    everything = {name for path in PACKAGE.rglob("*.py") for name in functions_of(str(path.relative_to(PACKAGE)))}
    assert set(re.findall(r"`([A-Z]\w+\.\w+)`", PAGE)) <= everything


def test_the_reading_paths_name_files_that_exist() -> None:
    """Each file of the two reading paths in CONTRIBUTING.md exists, and both paths include the core."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| on a (\w+) \|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert [where for where, _ in tables] == ["laptop", "cluster"]
    for _, rows in tables:
        files = re.findall(r"`([\w/]+\.py)`", rows)
        assert {"attempt/decide.py", "attempt/drive.py"} <= set(files)
        assert [file for file in files if not (PACKAGE / file).is_file()] == []


def traced(folder: Path, *arguments: str) -> dict[str, int]:
    """The first time that each function was entered in the command's own process."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(TRACE.parent)]),
        "SPARKONCE_SPARK_SUBMIT": str(ROOT / "tests" / "harness" / "fake_submit.py"),
        "SPARKONCE_STORE": str(folder / "ledger.db"),
    }
    done = completed(
        [sys.executable, str(TRACE), "--json", "runner.json", "order", *arguments],
        PATIENCE,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, int] = json.loads((folder / "runner.json").read_text())
    return found


@pytest.mark.slow
def test_a_real_run_takes_the_steps_of_the_page_in_order(tmp_path: Path) -> None:
    """Runner and driver enter the functions of the laptop's table in the page's order; when the job is sent again, no step after the answer
    runs."""
    shutil.copy(ROOT / "examples" / "quickstart" / "job.yaml", tmp_path)
    (tmp_path / "job.py").write_text(textwrap.dedent(DRIVER))
    first = {
        "runner": traced(tmp_path, "run", "job.yaml"),
        "driver": json.loads((tmp_path / "driver.json").read_text()),
    }
    table = steps("On a laptop")
    assert [step.name for step in table if step.name not in first[step.process]] == []
    # Both times are read from the machine's clock. The driver runs on while the runner records it, so the order across processes is checked
    # at the two ends only.
    for one, other in pairwise(table):
        if one.process == other.process or other.function == "Drive.begin_settling":
            assert first[one.process][one.name] < first[other.process][other.name], f"{other} comes before {one}"
    launched = next(step for step in table if step.function == "LocalLauncher.launch")
    begun = next(step for step in table if step.process == "driver")
    assert first["runner"][launched.name] < first["driver"][begun.name]

    again = traced(tmp_path, "run", "job.yaml")
    skipped = range(table[9].number, table[27].number)
    assert [
        step.name for step in table if step.process == "runner" and step.number in skipped and step.name in again
    ] == []
    assert {"attempt/probe.py:probe", table[27].name, table[28].name} <= set(again)


@pytest.mark.slow
def test_the_path_from_the_command_to_the_reservation_does_not_grow() -> None:
    """From `sparkonce run` to the committed reservation in SQLite, the path has at most this many lines of function bodies, in at most this
    many files."""
    done = subprocess.run([sys.executable, str(TRACE), "reservation"], capture_output=True, text=True, check=False)
    head = re.match(r"(\d+) lines of \d+ functions in (\d+) files\n", done.stdout)
    assert head is not None, done.stdout + done.stderr
    assert int(head[1]) <= 1680, done.stdout
    assert int(head[2]) <= 38, done.stdout
    assert "store/sqlite/database.py" in done.stdout


def test_links_of_the_pages_lead_somewhere() -> None:
    """Each relative link of README, CONTRIBUTING and docs/ names an existing file, and its anchor a heading of that file."""
    broken: list[str] = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            there = page if not path else page.parent / path
            if "://" not in target and not (there.exists() and (not anchor or anchor in anchors(there))):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_comments_cite_sections_that_the_design_has() -> None:
    """Each `docs/design.md, section N` in the code and the tests names a numbered section of that page."""
    sections = set(re.findall(r"^## (\d+)\. ", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.MULTILINE))
    cited: dict[str, set[str]] = {}
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for listed in re.findall(r"docs/design\.md, sections? ([\d, and to]+)", path.read_text(encoding="utf-8")):
            cited.setdefault(str(path.relative_to(ROOT)), set()).update(re.findall(r"\d+", listed))
    assert len(cited) > 10
    assert {path: numbers - sections for path, numbers in cited.items() if numbers - sections} == {}


def test_the_glossary_defines_each_word_once() -> None:
    """No word is defined twice, and the verbs and answers listed here are defined."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = [word for cell in re.findall(r"^\| \*\*(.+?)\*\*", text, re.MULTILINE) for word in cell.split(", ")]
    assert len(words) == len(set(words)) > 60
    assert {"reserve", "take over", "attach", "seal", "finalize", "reopen", "forget", "purge", "held", "replay"} <= set(
        words
    )
