"""Measures how much code a newcomer has to read: traces a real run and counts the functions entered between two points.

It measures two paths; `order` runs any command and writes when each function was first entered.

- `reservation`: `sparkonce run examples/quickstart/job.yaml` on an empty SQLite ledger, from the entry of the command line
  (`sparkonce.cli.app.main`) to the committed reservation (the failpoint `engine.reserve.after`). It ends there, before Spark starts.
- `launch`: the operator, from the watch event of a new IdempotentJob (`Trigger._event` in `kube/trigger.py`) to the created
  SparkApplication (the failpoint `engine.launch.after`). `tests/api/test_trace_launch.py` starts it against etcd and an API server.

What counts:

- A function entered between the two points counts once, however often it runs. Functions of other packages do not count.
- Its lines are the lines of code in its body, without signature, decorators, docstring, comments and blank lines. A function or lambda
  inside another one belongs to the outer one's body; entered alone, it counts with its own lines only. A line counts once.
- Code at module or class level is in no function and does not count, and neither do functions that run during imports: all modules are
  imported before the first point. A file counts if a function in it counts.
- In the operator, functions called from its background loops (lease, roster, sweep, watches) do not count, nor does a status that is
  written before the application exists.

The number measures reading effort, not speed. To make a path shorter, write less code, not longer lines.
"""

from __future__ import annotations

import argparse
import ast
import asyncio.events
import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import shutil
import sys
import tempfile
import threading
import time
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "operator" / "sparkonce"
EVENT_LOOP = (
    asyncio.events.__file__
)  # frames below these on the stack belong to whoever started the event loop, not to the creator of the task
FUNCTION = 0x1 | 0x2  # CO_OPTIMIZED and CO_NEWLOCALS: a function; bodies of modules and classes lack the first
BACKGROUND = (
    ("controller/lease_guard.py", "LeaseGuard.keep"),
    ("controller/controller.py", "Controller._forever"),
    ("kube/watch.py", ""),
    ("kube/events.py", ""),
    ("etcd/", ""),
    ("observe/", ""),
)
"""Background work of the operator (lease, roster, sweep, watches, events): prefixes of the file and name of its outermost function."""
BESIDE = ("controller/status_writer.py", "JobStatusWriter.publish")
"""Not counted: a status is written before the application exists only if creating it takes long."""


@dataclass
class Trace:
    """The functions entered between `begin` and `end`."""

    begins: Callable[[FrameType], bool]
    ends: Callable[[FrameType], bool]
    finished: Callable[[Trace], None]
    package: str = f"{PACKAGE}{os.sep}"
    entered: dict[CodeType, int] = field(default_factory=dict)
    """When each function was first entered, in nanoseconds of the monotonic clock, which all processes share."""
    running: bool = False
    done: bool = False

    def install(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.done or event != "call" or not frame.f_code.co_filename.startswith(self.package):
            return
        if not self.running:
            self.running = self.begins(frame)
        if not self.running:
            return
        code = frame.f_code
        if code.co_flags & FUNCTION == FUNCTION and code not in self.entered and self.of_the_path(frame):
            self.entered[code] = time.monotonic_ns()
        if self.ends(frame):
            self.done = True
            sys.setprofile(None)
            threading.setprofile(None)
            self.finished(self)

    def of_the_path(self, frame: FrameType) -> bool:
        outermost, caller = frame.f_code, frame.f_back
        while caller is not None and caller.f_code.co_filename != EVENT_LOOP:
            if caller.f_code.co_filename.startswith(self.package):
                outermost = caller.f_code
                if self.place(outermost) == BESIDE:
                    return False
            caller = caller.f_back
        place, called = self.place(outermost)
        return not any(place.startswith(file) and called.startswith(name) for file, name in BACKGROUND)

    def place(self, code: CodeType) -> tuple[str, str]:
        """A function's file and qualified name."""
        return code.co_filename.removeprefix(self.package), code.co_qualname

    def order(self) -> dict[str, int]:
        """When each function was first entered: `file:name` to nanoseconds."""
        return {":".join(self.place(code)): at for code, at in self.entered.items()}

    def report(self) -> dict[str, Any]:
        """The lines by file and function."""
        lines: dict[str, set[int]] = defaultdict(set)
        functions: dict[str, dict[str, int]] = defaultdict(dict)
        for code in self.entered:
            body = body_lines(code.co_filename).get((code.co_firstlineno, code.co_name), frozenset())
            file = code.co_filename.removeprefix(self.package)
            lines[file] |= body
            functions[file][code.co_qualname] = len(body)
        return {
            "lines": sum(map(len, lines.values())),
            "files": len(lines),
            "functions": sum(map(len, functions.values())),
            "order": self.order(),
            "by_file": {file: {"lines": len(lines[file]), "functions": functions[file]} for file in sorted(lines)},
        }


@cache
def body_lines(path: str) -> Mapping[tuple[int, str], frozenset[int]]:
    """Lines of code in each function's body, by name and first line (that of a decorator, if it has one)."""
    with tokenize.open(path) as source:
        text = source.read()
    code = set(lines_of_code(text))
    found: dict[tuple[int, str], frozenset[int]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            spans = [(each.lineno, each.end_lineno) for each in body]
            found[first, node.name] = frozenset(
                line for begin, end in spans for line in range(begin, (end or begin) + 1) if line in code
            )
        elif isinstance(node, ast.Lambda):
            found[node.lineno, "<lambda>"] = frozenset(range(node.body.lineno, (node.body.end_lineno or 0) + 1))
        elif isinstance(node, ast.GeneratorExp):
            found[node.lineno, "<genexpr>"] = frozenset(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
            name = {ast.ListComp: "<listcomp>", ast.SetComp: "<setcomp>", ast.DictComp: "<dictcomp>"}[type(node)]
            found[node.lineno, name] = frozenset(range(node.lineno, (node.end_lineno or 0) + 1))
    return found


def lines_of_code(text: str) -> Iterator[int]:
    """Numbers of the lines that contain code."""
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type not in empty:
            yield from range(token.start[0], token.end[0] + 1)


def import_everything() -> None:
    import sparkonce

    for module in pkgutil.walk_packages(sparkonce.__path__, "sparkonce."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # a module of an extra that is not installed
                importlib.import_module(module.name)


def called(file: str, name: str) -> Callable[[FrameType], bool]:
    path = str(PACKAGE / file)
    return lambda frame: frame.f_code.co_qualname == name and frame.f_code.co_filename == path


def failpoint(name: str) -> Callable[[FrameType], bool]:
    hit = called("failpoints.py", "hit")
    return lambda frame: hit(frame) and name in frame.f_locals.values()


def trace_order(file: str, begins: Callable[[FrameType], bool] = lambda _: True) -> None:
    """Traces this process to its end, then writes to `file` when each function was first entered."""
    trace = Trace(begins, lambda _: False, lambda _: None)
    atexit.register(lambda: Path(file).write_text(json.dumps(trace.order())))
    trace.install()


def trace_reservation(finished: Callable[[Trace], None]) -> int:
    """Runs the quickstart's job in this process up to its reservation; `finished` must end the process."""
    import_everything()
    from sparkonce.cli.app import main

    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples" / "quickstart", folder, dirs_exist_ok=True)

        def leave(trace: Trace) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            finished(trace)

        Trace(called("cli/app.py", "main"), failpoint("engine.reserve.after"), leave).install()
        return main(["run", f"{folder}/job.yaml", "--store", f"sqlite:///{folder}/ledger.db"])


def trace_launch(arguments: list[str], finished: Callable[[Trace], None]) -> int:
    """Runs `sparkonce` with these arguments, which start an operator; it continues after the trace."""
    import_everything()
    from sparkonce.cli.app import main

    Trace(called("kube/trigger.py", "Trigger._event"), failpoint("engine.launch.after"), finished).install()
    return main(arguments)


def text_of(report: dict[str, Any]) -> str:
    head = f"{report['lines']} lines of {report['functions']} functions in {report['files']} files"
    rows = [f"{each['lines']:6} {file}" for file, each in report["by_file"].items()]
    return "\n".join([head, *rows])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("path", choices=["reservation", "launch", "order"])
    options.add_argument("--json", metavar="FILE", help="write the report there instead of printing it")
    options.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="sparkonce's arguments; after `order`, any command"
    )
    asked = options.parse_args()

    def tell(trace: Trace) -> None:
        report = trace.report()
        if asked.json:
            unfinished = Path(f"{asked.json}.part")
            unfinished.write_text(json.dumps(report))
            unfinished.replace(asked.json)
        else:
            print(text_of(report), flush=True)

    def tell_and_end(trace: Trace) -> None:
        tell(trace)
        os._exit(0)

    if asked.path == "reservation":
        return trace_reservation(tell_and_end)
    if asked.path == "order":
        from sparkonce.cli.app import main as command_line

        trace_order(asked.json, called("cli/app.py", "main"))
        return command_line(asked.arguments)
    return trace_launch(asked.arguments, tell)


if __name__ == "__main__":
    sys.exit(main())
