"""Commands about keys: list, show, history and explain read the ledger; resolve, forget, repair and purge change it.

Commands that read write nothing and need neither Java nor the job's files. Commands that decide ask for confirmation; without a terminal
they require `--yes`, because a question that no user can see is a command that hangs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode, code_of
from sparkonce.cli.view.terminal import confirm, tell
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.cli.session import Session
    from sparkonce.commands.operate import How
    from sparkonce.model.record import Record, State


def resolve_key(opened: Session, record: Record, how: How, *, reason: str, as_json: bool) -> ExitCode:
    from sparkonce.attempt.request import Answer
    from sparkonce.cli.session import person
    from sparkonce.cli.view import outcome
    from sparkonce.commands import operate
    from sparkonce.local.runner import Ending

    async def work() -> Ending:
        return await operate.resolve(opened.embedded, record, how, by=person(), reason=reason)

    ending = opened.interruptible(work, detachable=True)
    if ending is None:
        ending = Ending(Answer.HELD, record, reason="nothing was decided", unblock=f"sparkonce keys show {record.key}")
    code = code_of(ending)
    if how == "failed" and code is ExitCode.FAILED:
        code = ExitCode.SUCCEEDED  # as was asked
    if as_json:
        told = outcome.ending_object(ending, key=None, store=opened.store.url, attempts=opened.attempts, code=code)
        tell(outcome.as_json(told))
    else:
        tell(*outcome.ending_lines(ending, attempts=opened.attempts))
    return code


def forget_key(opened: Session, record: Record, *, reason: str, as_json: bool) -> None:
    from sparkonce.blocking import run
    from sparkonce.cli.attempts import remove_logs
    from sparkonce.cli.session import person
    from sparkonce.cli.view import outcome
    from sparkonce.commands import operate

    floor = run(operate.forget(opened.store, record, by=person(), reason=reason))
    remove_logs(opened.attempts, record)
    if as_json:
        told = {
            "key": record.key,
            "keyHash": record.key_hash,
            "forgotten": True,
            "floor": floor,
            "store": opened.store.url,
        }
        tell(outcome.as_json(told))
    else:
        tell(forgotten(record.key, floor))


def forgotten(key: str, floor: int) -> str:
    """The answer to `forget`. floor: the newest generation number, which stays used."""
    return (
        f"forgotten: {key}; sent again it runs as generation {floor + 1}, and its tables still hold generation {floor}"
    )


def purge_keys(opened: Session, *, as_json: bool) -> None:
    from sparkonce.blocking import run
    from sparkonce.cli.attempts import remove_logs
    from sparkonce.cli.view import outcome
    from sparkonce.commands import operate
    from sparkonce.commands.describe import phase_of

    removed = run(operate.purge(opened.store, on_removed=lambda record: remove_logs(opened.attempts, record)))
    if as_json:
        keys = [{"key": r.key, "keyHash": r.key_hash, "generation": r.generation} for r in removed]
        tell(outcome.as_json({"purged": keys, "store": opened.store.url}))
        return
    for record in removed:
        tell(f"purged: {record.key}, generation {record.generation} ({phase_of(record)})")
    tell(f"{len(removed)} record{'' if len(removed) == 1 else 's'} removed")


app = typer.Typer(no_args_is_help=True, help="Inspect keys and decide about them.")

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
    """List the keys of the ledger and their states.

    Example: sparkonce keys list --state Held
    """
    from sparkonce.cli.local_keys import list_records
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
    from sparkonce.cli.local_keys import show_record
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
    from sparkonce.cli.local_keys import show_history
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
    """Explain the state of a key: the deciding row, the evidence, what the key waits for, and what would unblock it.

    With the job file it also says whether that file is the job that the key belongs to.

    Example: sparkonce keys explain load-flights/flights/2013-01@1
    """
    from sparkonce.cli.local_keys import explain_key
    from sparkonce.cli.options import JobArguments, is_file
    from sparkonce.cli.session import session

    prepared = None
    if is_file(target):
        prepared = JobArguments.of(target, params=param, outputs=output, application=application).prepared()
    else:
        options.only_of_a_file(param=param, output=output, application=application)
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
    """Decide a held key. The outputs are read first, and their evidence wins.

    Example: sparkonce keys resolve 3f9a --retry --reason "the disk was replaced"
    """
    from sparkonce.blocking import run as blocking
    from sparkonce.cli.session import session
    from sparkonce.commands import operate

    how = chosen(succeeded=succeeded, failed=failed, retry=retry)
    with session(store, install=install, named=False) as opened:
        record = blocking(operate.find(opened.store, key))
        ask(f"Resolve {record.key}, held for {record.held}, as {how}?", yes=yes)
        return resolve_key(opened, record, how, reason=reason, as_json=as_json)


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
    from sparkonce.cli.restore import check_reported
    from sparkonce.cli.session import session
    from sparkonce.commands import operate

    with session(store, install=install, named=False) as opened:
        record = blocking(operate.find(opened.store, key))
        ask(f"Forget {record.key} (generation {record.generation})?", yes=yes)
        if opened.remote:
            check_reported(record, kubeconfig)
        forget_key(opened, record, reason=reason, as_json=as_json)
    return ExitCode.SUCCEEDED


@app.command()
def repair(
    key: options.KeyText,
    *,
    reason: options.Reason,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Remove a record that cannot be rebuilt; end its application first."),
    ] = False,
    store: options.Store = None,
    install: options.Install = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Rebuild a record that cannot be read, from the key's history, job and result in the ledger.

    Without a result its outputs decide: the next owner settles the attempt, as after a crash. No number is used twice.

    Example: sparkonce keys repair 3f9a --reason "the disk lost a block"
    """
    from sparkonce.blocking import run as blocking
    from sparkonce.cli.session import person, session
    from sparkonce.cli.view import outcome
    from sparkonce.commands import repair as repairing

    with session(store, install=install, named=False) as opened:
        found = blocking(repairing.damaged(opened.store, key))
        record = blocking(repairing.decided(opened.store, found, forget=forget))
        what = f"as generation {found.generation}, attempt {found.attempt}"
        ask(f"{found.why}\nRebuild it {what}?" if record else f"{found.why}\nRemove what is left of it?", yes=yes)
        blocking(repairing.repair(opened.store, found, record, by=person(), reason=reason))
        said = repairing.describe(found, record, remote=opened.remote)
        tell(outcome.as_json({**said, "store": opened.store.url}) if as_json else str(said["said"]))
    return ExitCode.SUCCEEDED


@app.command()
def purge(store: options.Store = None, install: options.Install = None, as_json: options.Json = False) -> ExitCode:
    """Remove expired records (spec.retention) and the logs of their attempts. Tables stay.

    Example: sparkonce keys purge
    """
    from sparkonce.cli.session import local_only, session

    local_only(store, "they remove expired keys by themselves")
    with session(store, install=install, named=False) as opened:
        purge_keys(opened, as_json=as_json)
    return ExitCode.SUCCEEDED


def chosen(*, succeeded: bool, failed: bool, retry: bool) -> How:
    """The chosen way to resolve. Raises: InvalidInput unless exactly one is chosen."""
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
    """Asks for confirmation. Raises: InvalidInput when there is no terminal to ask at, or the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput("this cannot be undone and there is no terminal to confirm at; add --yes to go ahead")
    if not confirm(question):
        raise InvalidInput("not confirmed; nothing was changed")
