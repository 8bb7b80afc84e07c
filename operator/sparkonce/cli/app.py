"""The commands of the command line, and the one place where errors become sentences and exit codes.

Commands print no errors. Every exception ends here: as one sentence on standard error, with `--json` also as one object on standard output,
and as an exit code. Tracebacks are for developers of sparkonce and go to a file that the sentence names. typer's error boxes were rejected:
they take several lines and do not look like our own refusals.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from sparkonce.cli import adopt, audit, convert, doctor, gateway, keys, operator, restore, run, send
from sparkonce.cli import audit as sweep
from sparkonce.cli.exits import ExitCode, code_of_error
from sparkonce.cli.view.terminal import tell
from sparkonce.errors import SparkonceError

HELP = """Run Spark jobs whose effects happen exactly once.

A job has a key. However often it is sent, it runs once, and every request gets the same result.

Exit codes: 0 succeeded or replayed, 1 failed, 2 invalid input, 3 ledger or output store unavailable, 4 mismatch, 5 held,
6 in progress and rejected, 7 result gone, 8 cancelled, 70 a defect of sparkonce, 130 detached.

Example: sparkonce run job.yaml
"""

app = typer.Typer(
    name="sparkonce",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, as of other tools: no boxes, nothing to import
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    run.run,
    run.plan,
    run.render,
    send.send,
    run.rerun,
    run.cancel,
    audit.audit,
    sweep.sweep,
    doctor.doctor,
    restore.accept_restore,
    operator.operator,
    gateway.gateway,
    convert.convert,
    convert.bind,
    adopt.adopt,
):
    app.command()(command)
app.add_typer(keys.app, name="keys")


def _version(wanted: bool) -> None:
    if wanted:
        from sparkonce import __version__

        tell(f"sparkonce {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Replaced by `HELP`."""


def main(arguments: Sequence[str], *, commands: typer.Typer = app, name: str = "sparkonce") -> int:
    """Runs a command and returns its exit code; raises nothing. name: of the program, as its user calls it."""
    told = _Told(as_json="--json" in arguments)
    # `doctor` takes a file argument, so this cannot be a subcommand of it.
    if commands is app and list(arguments[:2]) == ["doctor", "accept-restore"]:
        arguments = arguments[1:]
    try:
        code = int(commands(list(arguments), prog_name=name, standalone_mode=False) or 0)
        sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - the boundary: no traceback reaches a terminal
        return told.failure(error)
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
