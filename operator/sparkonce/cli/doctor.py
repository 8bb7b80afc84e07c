"""`sparkonce doctor`: reports what this machine has, what is missing, and what to do about it.

Checks are independent and all reported, so that one run names every problem. It repairs nothing. With a job file it also checks what that
job needs: the script, and the stores of its outputs.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode, code_of_error
from sparkonce.cli.view.terminal import tell
from sparkonce.errors import SparkonceError
from sparkonce.launch.submit import JAVA, java, spark_submit

if TYPE_CHECKING:
    from sparkonce.cli.session import Session

OptionalFile = Annotated[
    str | None,
    typer.Argument(metavar="[FILE]", help="A job file, to check what it needs as well.", show_default=False),
]


@dataclass(frozen=True, kw_only=True)
class Check:
    what: str
    ok: bool
    said: str
    todo: str = ""
    code: ExitCode = ExitCode.INVALID
    """The exit code of a command that needs it."""


def doctor(
    file: OptionalFile = None,
    *,
    store: options.Store = None,
    output: options.Outputs = None,
    param: options.Params = None,
    application: options.Application = None,
    as_json: options.Json = False,
) -> ExitCode:
    """Report what is wrong on this machine, and what to do about it.

    Checks Python, Java, Spark and the ledger; with a job file also its script and its outputs' stores.
    Exits with 0 when nothing is wrong, 2 when something is missing, 3 when the ledger or an output's store cannot be used.

    Example: sparkonce doctor job.yaml
    """
    from sparkonce.cli.view import outcome
    from sparkonce.cli.view.words import print_table

    checks = [*_machine(), *_ledger(store)]
    if file is not None:
        checks += _job(file, output, param, application)
    wrong = [check for check in checks if not check.ok]
    code = max((check.code for check in wrong), default=ExitCode.SUCCEEDED)
    if as_json:
        told = [{**asdict(check), "code": int(check.code)} for check in checks]
        tell(outcome.as_json({"ok": not wrong, "checks": told, "exitCode": int(code)}))
    else:
        rows = [(c.what, "ok" if c.ok else "WRONG", c.said + (f"\n-> {c.todo}" if c.todo else "")) for c in checks]
        print_table(("WHAT", "", "FOUND"), rows)
    return code


def _machine() -> Iterator[Check]:
    yield Check(what="Python", ok=True, said=platform.python_version())  # the package does not install on an older one
    yield _pyspark()
    yield _submit()
    yield _java()


def _pyspark() -> Check:
    from importlib import metadata

    try:
        return Check(what="PySpark", ok=True, said=metadata.version("pyspark"))
    except metadata.PackageNotFoundError:
        return Check(what="PySpark", ok=False, said="not installed", todo="pip install 'sparkonce[local]'")


def _submit() -> Check:
    import os

    try:
        path = spark_submit()
    except SparkonceError as error:
        return Check(what="spark-submit", ok=False, said=str(error))
    if os.access(path, os.X_OK):
        return Check(what="spark-submit", ok=True, said=path)
    return Check(
        what="spark-submit",
        ok=False,
        said=f"{path} cannot be executed",
        todo="correct SPARKONCE_SPARK_SUBMIT or SPARK_HOME",
    )


def _java() -> Check:

    found = java()
    todo = (
        ""
        if found.fits
        else f"install Java {JAVA} or later (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME to one"
    )
    return Check(what="Java", ok=found.fits, said=found.said, todo=todo)


def _ledger(url: str | None) -> list[Check]:
    from sparkonce.cli.session import session

    try:
        with session(url, named=False) as opened:
            return [_contents(opened), *_left_over(opened)]
    except SparkonceError as error:
        return [Check(what="ledger", ok=False, said=str(error), code=code_of_error(error))]


def _contents(opened: Session) -> Check:
    from sparkonce.blocking import run
    from sparkonce.store.protocol import Query
    from sparkonce.store.sqlite.store import SqliteStore

    store = opened.store
    where = store.url
    if isinstance(store, SqliteStore) and (damage := store.damage()):
        todo = "restore it from a backup, or name another file with --store"
        return Check(what="ledger", ok=False, said=f"{where}: {damage}", todo=todo, code=ExitCode.UNAVAILABLE)
    unreadable, after = 0, ""
    while True:
        page = run(store.list(Query(after=after)))
        unreadable += len(page.unreadable)
        if page.after is None:
            break
        after = page.after
    number = run(store.count())
    said = f"{where}: {number} key{'' if number == 1 else 's'}, not damaged"
    if unreadable:
        todo = "`sparkonce keys list` names them, each with its remedy"
        return Check(
            what="ledger", ok=False, said=f"{said}, {unreadable} cannot be read", todo=todo, code=ExitCode.UNAVAILABLE
        )
    return Check(what="ledger", ok=True, said=said)


def _left_over(opened: Session) -> Iterator[Check]:
    """Attempts that run although the ledger has no record of them, or records their end."""
    from sparkonce.cli.attempts import attempt_folders

    found = list(attempt_folders(opened))
    stray = [each for each in found if each.runs and not each.wanted]
    unowned = [each for each in found if each.runs and each.wanted and not each.owned]
    for each in stray:
        todo = "it can no longer commit; end it: " + (
            f"kill -- -{each.group}" if each.group else "find it by its folder"
        )
        yield Check(
            what="attempt", ok=False, said=f"{each.folder} still runs, and its record says {each.record}", todo=todo
        )
    for each in unowned:
        todo = "send the job again: it is adopted, not started twice"
        yield Check(what="attempt", ok=True, said=f"{each.folder} runs and its key has no owner", todo=todo)
    if not stray:
        logs = sum(1 for each in found if not each.runs)
        said = f"{len(found) - logs} running, logs of {logs} ended ones in {opened.attempts}"
        yield Check(what="attempts", ok=True, said=said)


def _job(file: str, outputs: list[str] | None, params: list[str] | None, application: str | None) -> Iterator[Check]:
    from sparkonce.blocking import run
    from sparkonce.cli.options import JobArguments

    try:
        prepared = JobArguments.of(file, params=params, outputs=outputs, application=application).prepared()
    except SparkonceError as error:
        yield Check(what="job", ok=False, said=str(error), code=code_of_error(error))
        return
    yield Check(what="job", ok=True, said=f"{file}: key {prepared.key.text}, runs {', '.join(prepared.contents)}")
    for sink in prepared.sinks:
        what = f"output {sink.name}"
        try:
            run(sink.check())
        except SparkonceError as error:
            yield Check(what=what, ok=False, said=str(error), code=ExitCode.UNAVAILABLE)
        else:
            yield Check(what=what, ok=True, said=_place(sink.uri))


def _place(uri: str) -> str:
    folder = Path(uri.removeprefix("file://"))
    return f"{uri} can be written" + ("" if folder.exists() else " (not there yet)")
