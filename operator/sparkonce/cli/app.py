"""The commands of the command line, and the one place where errors become sentences and exit codes.

Commands print no errors. Every exception ends here: as one sentence on standard error, with `--json` also as one object on standard output,
and as an exit code. Tracebacks are for developers of sparkonce and go to a file that the sentence names. typer's error boxes were rejected:
they take several lines and do not look like our own refusals.

Only the module of the command that was given is imported, since most of a short command's time is the import of what it needs. So the help
of the whole program is written from the table here.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sparkonce import __version__
from sparkonce.cli.exits import ExitCode, code_of_error
from sparkonce.cli.view.terminal import tell
from sparkonce.errors import SparkonceError

HELP = """Run Spark jobs whose effects happen exactly once.

A job has a key. However often it is sent, it runs once, and every request gets the same result.

Exit codes: 0 succeeded or replayed, 1 failed, 2 invalid input, 3 ledger or output store unavailable, 4 mismatch, 5 held,
6 in progress and rejected, 7 result gone, 8 cancelled, 70 a defect of sparkonce, 130 detached.

Example: sparkonce run job.yaml
"""

SETTINGS: dict[str, Any] = {
    "name": "sparkonce",
    "help": HELP,
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # plain help, as of other tools: no boxes, nothing to import
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


@dataclass(frozen=True)
class CommandEntry:
    """Where a command is, below `sparkonce.cli`, and the first line of its help."""

    module: str
    function: str
    summary: str

    def imported(self) -> Any:
        """The command's function, or the `typer.Typer` of a group."""
        return getattr(importlib.import_module(f"sparkonce.cli.{self.module}"), self.function)


COMMANDS = {
    "run": CommandEntry("run", "run", "Run a job once, or give its recorded result."),
    "plan": CommandEntry("run", "plan", "Print what `sparkonce run` would do now, and do nothing."),
    "render": CommandEntry("run", "render", "Print the job file with its parameters filled in, for kubectl."),
    "send": CommandEntry("send", "send", "Create the job of a file in a cluster, where the operator runs it."),
    "rerun": CommandEntry("run", "rerun", "Run a job again on purpose: the next generation of its key."),
    "cancel": CommandEntry("run", "cancel", "Stop a running job and settle what it wrote."),
    "audit": CommandEntry("audit", "audit", "Prove from storage that every effect exists once, as it was committed."),
    "sweep": CommandEntry("audit", "sweep", "Remove staged files that no attempt can commit any more."),
    "doctor": CommandEntry("doctor", "doctor", "Report what is wrong on this machine, and what to do about it."),
    "accept-restore": CommandEntry(
        "restore", "accept_restore", "Continue with a ledger that was restored from a backup, or is empty."
    ),
    "operator": CommandEntry(
        "serve.operator",
        "operator",
        "Run the operator: watch IdempotentJobs, run each once, write the outcome to its status.",
    ),
    "gateway": CommandEntry(
        "serve.gateway",
        "gateway",
        "Run the HTTP gateway, through which drivers reach the ledger, and people and programs their keys.",
    ),
    "proxy": CommandEntry(
        "serve.proxy",
        "proxy",
        "Carry out a request with an Idempotency-Key once, and answer its repetitions, before any HTTP service.",
    ),
    "convert": CommandEntry("convert", "convert", "Write the IdempotentJob that runs a plain SparkApplication once."),
    "bind": CommandEntry(
        "convert", "bind", "Write the IdempotentJob that follows a SparkApplication which runs already, or has ended."
    ),
    "adopt": CommandEntry(
        "adopt",
        "adopt",
        "Bind every plain SparkApplication of a namespace that has not ended, as `sparkonce bind` does one.",
    ),
    "keys": CommandEntry("keys", "app", "Inspect keys and decide about them."),
    "lanes": CommandEntry("lanes", "app", "Inspect the lanes of a table or topic, trim one, and end one."),
}


def program(wanted: Collection[str] = COMMANDS.keys()) -> typer.Typer:
    """The command line. wanted: the commands that can be called; of all others there are only the names and summaries."""
    app = typer.Typer(callback=root, **SETTINGS)
    for name, command in COMMANDS.items():
        if name not in wanted:
            app.command(name, help=command.summary)(_not_called)
        elif isinstance(found := command.imported(), typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _not_called() -> None:
    """Stands in the table of commands for one that was not called."""


def _version(wanted: bool) -> None:
    if wanted:
        tell(f"sparkonce {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Replaced by `HELP`."""


def main(arguments: Sequence[str], *, commands: typer.Typer | None = None, name: str = "sparkonce") -> int:
    """Runs a command and returns its exit code; raises nothing. commands: of another program; name: as its user calls it."""
    # `doctor` takes a file argument, so this cannot be a subcommand of it.
    if commands is None and list(arguments[:2]) == ["doctor", "accept-restore"]:
        arguments = arguments[1:]
    try:
        # No option of the program itself has a value: the first argument that is not an option names the command.
        commands = commands or program([each for each in arguments if not each.startswith("-")][:1])
        code = int(commands(list(arguments), prog_name=name, standalone_mode=False) or 0)
        sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - the boundary: no traceback reaches a terminal
        return _Told(as_json="--json" in arguments).failure(error)
    return code


class _Told:
    """Prints this command's errors."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def failure(self, error: Exception) -> ExitCode:
        """Prints what ended the command as one sentence."""
        match error:
            case SparkonceError():
                return self.error(str(error), code_of_error(error))
            case BrokenPipeError():
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of the pipe has gone
                return ExitCode.SUCCEEDED
            case OSError():
                where = f"{error.filename}: " if error.filename else ""
                said = f"{where}{error.strerror or error}; nothing is lost, fix that and try again"
                return self.error(said, code_of_error(error))
            case typer.Abort():
                return self.error("not confirmed; nothing was changed", ExitCode.INVALID)
        if (usage := getattr(error, "format_message", None)) is not None:  # typer's usage errors, in any version
            return self.usage(usage(), error)
        from sparkonce.cli.exits import defect_sentence

        return self.error(defect_sentence(error), ExitCode.BROKEN)

    def error(self, reason: str, code: ExitCode) -> ExitCode:
        from sparkonce.cli.view import words

        reason = words.sentence(reason)
        tell(f"sparkonce: {reason}", err=True)
        if self.as_json:
            from sparkonce.cli.view.outcome import as_json, blank

            tell(as_json(blank(reason, code)))
        return code

    def usage(self, message: str, error: Exception) -> ExitCode:
        if not message:  # typer has printed the help instead: no command was given
            return ExitCode.INVALID
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "sparkonce"
        return self.error(f"{message.rstrip('.')}; `{command} --help` shows how", ExitCode.INVALID)
