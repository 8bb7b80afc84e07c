"""Commands about a job: run, plan, render, rerun, cancel.

A command reads what it was asked for, opens the ledger, and lets the engine answer; it decides nothing but how that is told. Engine and
store are imported inside the commands, so that `--help` and a mistyped option need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.cli import options
from sparkonce.cli.asked import Asked, is_file
from sparkonce.cli.exits import ExitCode, code_of, code_of_answer
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.cli.session import Session
    from sparkonce.engine.embedded import Ending
    from sparkonce.engine.prepare import Prepared
    from sparkonce.model.key import Key
    from sparkonce.model.record import Record

Follow = Annotated[
    bool,
    typer.Option(
        "--follow/--no-follow",
        help="When the job runs elsewhere already: wait for its result, or say so and exit with 130.",
    ),
]


APPLY = "apply the job with `kubectl apply -f FILE`"


def run(
    file: options.File,
    *,
    store: options.Store = None,
    output: options.Outputs = None,
    param: options.Params = None,
    application: options.Application = None,
    as_json: options.Json = False,
    follow: Follow = True,
) -> ExitCode:
    """Run a job once, or give its recorded result.

    Whoever sends it again, from any terminal, gets the same result. Ctrl-C stops a job that runs here and settles what it wrote; where it
    runs elsewhere Ctrl-C only stops waiting.

    Example: sparkonce run load-month.yaml --param month=01
    """
    from sparkonce.cli.interrupt import interruptible
    from sparkonce.cli.session import local_only, session

    local_only(store, APPLY)
    prepared = _prepared(file, param, output, application)
    with session(store) as opened:
        embedded = opened.embedded

        async def work() -> Ending:
            from sparkonce.engine.request import Answer

            _, said, _ = await embedded.look(prepared)
            if said.answer in (Answer.NEW, Answer.REOPEN, Answer.SUPERSEDE):
                _check_machine()
            return await embedded.submit(prepared, follow=follow)

        ending = interruptible(embedded, work, progress=opened.progress)
        assert ending is not None  # a request is never cut off: it detaches by itself
        return _tell(ending, opened, key=prepared.key, as_json=as_json)


def plan(
    file: options.File,
    *,
    store: options.Store = None,
    output: options.Outputs = None,
    param: options.Params = None,
    application: options.Application = None,
    as_json: options.Json = False,
) -> ExitCode:
    """Say what `sparkonce run` would do now, and do nothing.

    Exits with 0 when the job would run, be followed or be replayed, else with the code that the run would have.

    Example: sparkonce plan job.yaml
    """
    from sparkonce.blocking import run as blocking
    from sparkonce.cli import show
    from sparkonce.cli.plan import plan_lines
    from sparkonce.cli.session import local_only, session
    from sparkonce.engine.embedded import Ending

    local_only(store, APPLY)
    prepared = _prepared(file, param, output, application)
    with session(store) as opened:
        embedded = opened.embedded
        view, said, evidence = blocking(embedded.look(prepared))
        if view.record is None:
            ending = Ending(said.answer, None, reason=said.evidence, unblock=said.unblock)
        else:
            ending = blocking(embedded.ending(prepared, said, view.record, evidence, replayed=False))
        code = code_of_answer(said.answer)
        if as_json:
            told = show.ending_object(
                ending, key=prepared.key, store=opened.store.url, attempts=opened.attempts, code=code
            )
            typer.echo(show.as_json({"plan": str(said.answer), **told}))
        else:
            typer.echo("\n".join(plan_lines(ending, prepared.key, attempts=opened.attempts)))
        return code


def render(
    file: options.File,
    *,
    output: options.Outputs = None,
    param: options.Params = None,
) -> ExitCode:
    """Print the job file with its parameters filled in, for kubectl.

    Example: sparkonce render load-month.yaml --param month=01 | kubectl apply -f -
    """
    from sparkonce.model import manifest

    asked = Asked.of(file, params=param, outputs=output)
    typer.echo(manifest.render(asked.text(), params=asked.params, outputs=asked.outputs, source=asked.source), nl=False)
    return ExitCode.SUCCEEDED


def rerun(
    target: options.KeyOrFile,
    *,
    store: options.Store = None,
    install: options.Install = None,
    output: options.Outputs = None,
    param: options.Params = None,
    application: options.Application = None,
    as_json: options.Json = False,
) -> ExitCode:
    """Run a job again on purpose: the next generation of its key.

    Give the job file to run what it says now, or the key to run what was run before. Readers then see the new rows in place of the old ones
    (onRerun: Replace), or both (Append).

    Example: sparkonce rerun load-month.yaml --param month=01
    """
    from sparkonce.cli.interrupt import interruptible
    from sparkonce.cli.session import session
    from sparkonce.engine import operate

    prepared = _prepared(target, param, output, application) if is_file(target) else None
    if prepared is None and (param or output):
        raise InvalidInput("--param and --output fill a job file; a key stands for the job as it was sent")
    with session(store, install=install) as opened:
        if opened.remote:
            return _rerun_elsewhere(opened, target, file=prepared is not None, as_json=as_json)
        again, record = _generation(opened, target, prepared, application)

        async def work() -> Ending:
            _check_machine()
            return await operate.rerun(opened.embedded, again, record)

        ending = interruptible(opened.embedded, work, progress=opened.progress)
        assert ending is not None  # see run
        return _tell(ending, opened, key=again.key, as_json=as_json)


def _rerun_elsewhere(opened: Session, target: str, *, file: bool, as_json: bool) -> ExitCode:
    """On a cluster: opened here, run by an operator."""
    from sparkonce.blocking import run as blocking
    from sparkonce.cli.interrupt import interruptible
    from sparkonce.engine import elsewhere, operate
    from sparkonce.engine.embedded import Ending
    from sparkonce.engine.request import Answer

    if file:
        raise InvalidInput("on a cluster's ledger give the key: what runs again is the job as it was applied")
    record = blocking(operate.find(opened.store, target))

    async def work() -> Ending:
        opened_now = await elsewhere.rerun(opened.embedded, record)
        said = f"generation {opened_now.generation} is opened, and an operator runs it"
        return Ending(Answer.TAKE_OVER, opened_now, reason=said, unblock=f"sparkonce keys show {opened_now.key}")

    ending = interruptible(opened.embedded, work, progress=opened.progress)
    assert ending is not None  # see run
    return _tell(ending, opened, key=None, as_json=as_json)


def cancel(
    target: options.KeyOrFile,
    *,
    store: options.Store = None,
    install: options.Install = None,
    param: options.Params = None,
    application: options.Application = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the key's history.", show_default=False)
    ] = "",
    as_json: options.Json = False,
) -> ExitCode:
    """Stop a running job and settle what it wrote.

    The truth wins: a job that had committed its outputs already ends as succeeded. Exits with 0 when nothing of the job runs any more.

    Example: sparkonce cancel load-flights/flights/2013-01@1 --reason "wrong input"
    """
    from sparkonce.cli.interrupt import interruptible, person
    from sparkonce.cli.session import session
    from sparkonce.engine import operate

    prepared = _prepared(target, param, None, application) if is_file(target) else None
    with session(store, install=install) as opened:
        if opened.remote and prepared is not None:
            raise InvalidInput("on a cluster's ledger give the key, as `sparkonce keys list` shows it")
        record = _record(opened, target, prepared)

        async def work() -> Ending:
            return await operate.cancel(opened.embedded, record, by=person(), reason=reason)

        ending = interruptible(opened.embedded, work, progress=opened.progress, detachable=True)
        if ending is None:
            ending = _waiting(record)
        code = code_of(ending)
        done = code in (ExitCode.FAILED, ExitCode.CANCELLED)  # it is over, as was asked
        return _tell(ending, opened, key=None, as_json=as_json, code=ExitCode.SUCCEEDED if done else code)


def _prepared(file: str, params: list[str] | None, outputs: list[str] | None, application: str | None) -> Prepared:
    """Also says which fields do nothing on this machine."""
    from sparkonce.model.local_template import LocalTemplate

    asked = Asked.of(file, params=params, outputs=outputs, application=application)
    prepared = asked.prepared()
    if skipped := LocalTemplate.of(prepared.job, source=asked.source).skipped:
        typer.echo(f"only for Kubernetes, not used here: {', '.join(skipped)}", err=True)
    return prepared


def _check_machine() -> None:
    from sparkonce.cli.machine import check_spark

    check_spark()


def _record(opened: Session, target: str, prepared: Prepared | None) -> Record:
    """InvalidInput: nothing is recorded for it."""
    from sparkonce.blocking import run as blocking
    from sparkonce.engine import operate

    if prepared is None:
        return blocking(operate.find(opened.store, target))
    record = blocking(opened.store.load(prepared.address)).record
    if record is None:
        raise InvalidInput(
            f"{prepared.key.text} was never sent to {opened.store.url}; `sparkonce run {target}` sends it"
        )
    return record


def _generation(
    opened: Session, target: str, prepared: Prepared | None, application: str | None
) -> tuple[Prepared, Record]:
    """What the next generation runs, and the record that it follows."""
    from sparkonce.blocking import run as blocking
    from sparkonce.engine import operate

    record = _record(opened, target, prepared)
    if prepared is None and application is None:
        prepared = blocking(operate.stored(opened.embedded, record))
    elif prepared is None:
        raise InvalidInput("--application replaces a file of a job file; give the job file instead of the key")
    return prepared, record


def _waiting(record: Record) -> Ending:
    from sparkonce.engine.embedded import Ending
    from sparkonce.engine.request import Answer

    said = "the wish to cancel is recorded, its owner carries it out"
    return Ending(Answer.FOLLOW, record, detached=True, reason=said, unblock=f"sparkonce keys show {record.key}")


def _tell(ending: Ending, opened: Session, *, key: Key | None, as_json: bool, code: ExitCode | None = None) -> ExitCode:
    """Prints the answer; the exit code that says the same."""
    from sparkonce.cli import show

    code = code_of(ending) if code is None else code
    if as_json:
        told = show.ending_object(ending, key=key, store=opened.store.url, attempts=opened.attempts, code=code)
        typer.echo(show.as_json(told))
    else:
        typer.echo("\n".join(show.ending_lines(ending, attempts=opened.attempts)))
    return code
