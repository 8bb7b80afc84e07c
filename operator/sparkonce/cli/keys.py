"""Commands about keys: what the ledger knows, and what a person decides.

Reading commands write nothing and need neither Java nor the job's files. Those that decide ask first, and never in a script: without a
terminal they want `--yes`, because a question nobody sees is a command that hangs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode, code_of
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.engine.operate import How
    from sparkonce.model.record import State

app = typer.Typer(no_args_is_help=True, help="Look at keys and decide about them.")

States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="Only these: InProgress, Held or Finalized.", show_default=False),
]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most so many.")]


@app.command("list")
def list_keys(
    store: options.Store = None,
    install: options.Install = None,
    state: States = None,
    limit: Limit = 1000,
    as_json: options.Json = False,
) -> ExitCode:
    """List the keys of the ledger with what became of them.

    Example: sparkonce keys list --state Held
    """
    from sparkonce.cli.records import list_records
    from sparkonce.cli.session import session

    states = _states(state or [])
    with session(store, install=install, named=False) as opened:
        list_records(opened, states=states, limit=limit, as_json=as_json)
    return ExitCode.SUCCEEDED


@app.command()
def show(
    key: options.KeyText,
    store: options.Store = None,
    install: options.Install = None,
    as_json: options.Json = False,
) -> ExitCode:
    """Show one key: its record, its outputs, its attempts and where their logs are.

    Example: sparkonce keys show load-flights/flights/2013-01@1
    """
    from sparkonce.cli.records import show_record
    from sparkonce.cli.session import session

    with session(store, install=install, named=False) as opened:
        show_record(opened, key, as_json=as_json)
    return ExitCode.SUCCEEDED


@app.command()
def history(
    key: options.KeyText,
    store: options.Store = None,
    install: options.Install = None,
    as_json: options.Json = False,
) -> ExitCode:
    """Show who did what to a key, and why; also of a key that was forgotten (by its whole hash).

    Example: sparkonce keys history load-flights/flights/2013-01@1
    """
    from sparkonce.cli.records import show_history
    from sparkonce.cli.session import session

    with session(store, install=install, named=False) as opened:
        show_history(opened, key, as_json=as_json)
    return ExitCode.SUCCEEDED


@app.command()
def explain(
    target: options.KeyOrFile,
    *,
    store: options.Store = None,
    install: options.Install = None,
    output: options.Outputs = None,
    param: options.Params = None,
    application: options.Application = None,
    as_json: options.Json = False,
) -> ExitCode:
    """Say why a key stands where it stands: the row that decides, the evidence, what it waits for, and what would unblock it.

    With the job file it also says whether that file is the job that the key stands for.

    Example: sparkonce keys explain load-flights/flights/2013-01@1
    """
    from sparkonce.cli.asked import Asked, is_file
    from sparkonce.cli.records import explain_key
    from sparkonce.cli.session import session

    prepared = None
    if is_file(target):
        prepared = Asked.of(target, params=param, outputs=output, application=application).prepared()
    with session(store, install=install, named=False) as opened:
        explain_key(opened, target, prepared, as_json=as_json)
    return ExitCode.SUCCEEDED


@app.command()
def resolve(
    key: options.KeyText,
    *,
    reason: options.Reason,
    succeeded: Annotated[bool, typer.Option("--succeeded", help="It took effect (a job without outputs).")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="It took no effect and is over; refused where an output has rows.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Grant another attempt; sending the job again runs it.")
    ] = False,
    store: options.Store = None,
    install: options.Install = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Decide a held key. The outputs are asked first, and what they say wins.

    Example: sparkonce keys resolve 3f9a --retry --reason "the disk is mended"
    """
    from sparkonce.blocking import run as blocking
    from sparkonce.cli.decisions import resolve_key
    from sparkonce.cli.session import session
    from sparkonce.engine import operate

    how = chosen(succeeded=succeeded, failed=failed, retry=retry)
    with session(store, install=install, named=False) as opened:
        record = blocking(operate.find(opened.store, key))
        ask(f"Resolve {record.key}, held for {record.held}, as {how}?", yes=yes)
        ending = resolve_key(opened, record, how, reason=reason, as_json=as_json)
        code = code_of(ending)
        return ExitCode.SUCCEEDED if how == "failed" and code is ExitCode.FAILED else code


@app.command()
def forget(
    key: options.KeyText,
    *,
    reason: options.Reason,
    store: options.Store = None,
    install: options.Install = None,
    kubeconfig: options.Kubeconfig = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Remove the record of a finished key, so that the job would run anew. Its tables stay.

    Its generation numbers stay used, its history stays, the logs of its attempts go.

    Example: sparkonce keys forget 3f9a --reason "loaded by mistake"
    """
    from sparkonce.blocking import run as blocking
    from sparkonce.cli.decisions import forget_key
    from sparkonce.cli.session import session
    from sparkonce.cli.told import check_told
    from sparkonce.engine import operate

    with session(store, install=install, named=False) as opened:
        record = blocking(operate.find(opened.store, key))
        ask(f"Forget {record.key} (generation {record.generation})?", yes=yes)
        if opened.remote:
            check_told(record, kubeconfig)
        forget_key(opened, record, reason=reason, as_json=as_json)
    return ExitCode.SUCCEEDED


@app.command()
def purge(store: options.Store = None, install: options.Install = None, as_json: options.Json = False) -> ExitCode:
    """Remove the records whose retention is over (spec.retention), with the logs of their attempts. Tables stay.

    Example: sparkonce keys purge
    """
    from sparkonce.cli.decisions import purge_keys
    from sparkonce.cli.session import local_only, session

    local_only(store, "they remove expired keys by themselves")
    with session(store, install=install, named=False) as opened:
        purge_keys(opened, as_json=as_json)
    return ExitCode.SUCCEEDED


def chosen(*, succeeded: bool, failed: bool, retry: bool) -> How:
    """InvalidInput: none of them, or several."""
    ways: list[How] = []
    if succeeded:
        ways.append("succeeded")
    if failed:
        ways.append("failed")
    if retry:
        ways.append("retry")
    if len(ways) != 1:
        raise InvalidInput("resolve wants exactly one of --succeeded, --failed and --retry")
    return ways[0]


def _states(texts: list[str]) -> list[State]:
    from sparkonce.model.record import State

    try:
        return [State(text) for text in texts]
    except ValueError:
        known = ", ".join(State)
        raise InvalidInput(f"--state {', '.join(texts)}: a key is in one of these states: {known}") from None


def ask(question: str, *, yes: bool) -> None:
    """InvalidInput: nobody can be asked, or the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput("this decides for good and there is no terminal to ask at; add --yes if it is meant")
    if not typer.confirm(question, err=True):
        raise InvalidInput("not confirmed; nothing was changed")
