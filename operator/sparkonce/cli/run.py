"""Commands about a job: run, plan, render, rerun, cancel.

Each command parses its arguments, opens the ledger and prints the runner's answer; it decides nothing else. `plan` prints what `run` would
do, from the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.attempt.request import Answer
from sparkonce.blocking import run as blocking
from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode, code_of, code_of_answer
from sparkonce.cli.options import JobArguments, is_file
from sparkonce.cli.session import Session, local_only, person, session
from sparkonce.cli.view import outcome
from sparkonce.cli.view.outcome import ending_lines, generation_line
from sparkonce.cli.view.terminal import tell, write_document
from sparkonce.errors import InvalidInput
from sparkonce.launch.submit import LocalTemplate, check_spark, check_text
from sparkonce.local.prepare import NotHere, Prepared
from sparkonce.local.prepare import unread as unread_key
from sparkonce.local.runner import BEGINNINGS, Ending

if TYPE_CHECKING:
    from sparkonce.model.identity import Key
    from sparkonce.model.record import Record

_WOULD = {
    Answer.NEW: "would run",
    Answer.REOPEN: "would run the next generation",
    Answer.SUPERSEDE: "would end the other job and run in its place",
    Answer.TAKE_OVER: "would continue it",
    Answer.FOLLOW: "would wait for it",
}


def plan_lines(ending: Ending, key: Key, *, attempts: Path) -> Iterator[str]:
    """What `run` would do; the first line begins with the outcome."""
    if ending.answer is Answer.REPLAY:
        yield f"would replay: {generation_line(ending.record, ending.result)}"
    elif would := _WOULD.get(ending.answer):
        yield f"{would}: {key.text}: {ending.reason}"
    else:
        first, *others = ending_lines(ending, attempts=attempts)
        yield f"would be refused: {first}"
        yield from others


Server = Annotated[
    bool,
    typer.Option(
        "--server", help="Ask the API server of a cluster whether it takes the job; reads no ledger and no script."
    ),
]

Follow = Annotated[
    bool,
    typer.Option(
        "--follow/--no-follow",
        help="When the job already runs elsewhere: wait for its result, or exit with 130 at once.",
    ),
]


AGAIN = "give the key to run its job as it was applied, or run the file with `kubectl sparkonce rerun -f FILE --reason TEXT`"
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

    Every later request for the same key, from any terminal, gets that result. Ctrl-C stops a job that runs here and settles what it wrote,
    or hands it over to a terminal that waits for it; when the job runs elsewhere, Ctrl-C only stops waiting.

    Example: sparkonce run load-month.yaml --param month=01
    """
    local_only(store, APPLY)
    prepared = _prepared(file, param, output, application)
    with session(store) as opened:
        view, said, evidence = blocking(opened.embedded.look(prepared))
        if said.answer not in BEGINNINGS:
            recorded = opened.embedded.ending(prepared, said, view.record, evidence, replayed=True)
            return _tell(blocking(recorded), opened, key=prepared.key, as_json=as_json)
        if said.answer in (Answer.NEW, Answer.REOPEN, Answer.SUPERSEDE):
            check_spark()
            check_text(prepared.job, application=prepared.application)
        ending = opened.interruptible(lambda: opened.embedded.submit(prepared, follow=follow))
        assert ending is not None  # a request is never cut off: it detaches by itself
        return _tell(ending, opened, key=prepared.key, as_json=as_json)


def plan(
    file: options.File,
    *,
    store: options.Store = None,
    output: options.Outputs = None,
    param: options.Params = None,
    application: options.Application = None,
    server: Server = False,
    namespace: options.Namespace = None,
    kubeconfig: options.ClusterConfig = None,
    as_json: options.Json = False,
) -> ExitCode:
    """Print what `sparkonce run` would do now, and do nothing.

    Exits with 0 when the job would run, be followed or be replayed, else with the code that the run would have. For a job whose script is
    inside an image it prints that it was not checked, and exits with 0.

    With --server the cluster's API server checks the job and the application of its first attempt, of which nothing is stored.

    Example: sparkonce plan job.yaml
    """
    if server:
        if store is not None or application is not None:
            raise InvalidInput("--server asks a cluster's API server; leave out --store and --application")
        return _checked(JobArguments.of(file, params=param, outputs=output), namespace, kubeconfig, as_json=as_json)
    if namespace is not None:
        raise InvalidInput("--namespace is of a cluster; give --server, too")
    local_only(store, APPLY)
    try:
        prepared = _prepared(file, param, output, application)
    except NotHere as elsewhere:
        asked = JobArguments.of(file, params=param, outputs=output)
        return _not_checked(unread_key(asked.job(), base=asked.base), elsewhere, store, as_json=as_json)
    with session(store) as opened:
        embedded = opened.embedded
        view, said, evidence = blocking(embedded.look(prepared))
        if view.record is None:
            ending = Ending(said.answer, None, reason=said.evidence, unblock=said.unblock)
        else:
            ending = blocking(embedded.ending(prepared, said, view.record, evidence, replayed=False))
        code = code_of_answer(said.answer)
        if as_json:
            told = outcome.ending_object(
                ending, key=prepared.key, store=opened.store.url, attempts=opened.attempts, code=code
            )
            tell(outcome.as_json({"plan": str(said.answer), **told}))
        else:
            tell(*plan_lines(ending, prepared.key, attempts=opened.attempts))
        return code


def _checked(asked: JobArguments, namespace: str | None, kubeconfig: Path | None, *, as_json: bool) -> ExitCode:
    """What `plan --server` says of a job that the API server takes."""
    import asyncio

    from sparkonce.cli.send import check

    job = asked.job()
    where, key = asyncio.run(check(kubeconfig, job, namespace))
    said = f"the API server takes IdempotentJob {job.metadata.name} of namespace {where} and its application"
    if as_json:
        tell(outcome.as_json({"plan": "Admitted", "key": key.text, "namespace": where, "reason": said}))
    else:
        tell(f"would be admitted: {key.text}: {said}")
    return ExitCode.SUCCEEDED


def _not_checked(key: Key | None, why: NotHere, store: str | None, *, as_json: bool) -> ExitCode:
    """What `plan` prints for a job of a cluster: the file is valid, and the answer to a request for it is unknown here."""
    reason = f"{why.what}, so it is unknown here whether it is the job that was sent under this key"
    unblock = f"{APPLY}; to run it here, {why.remedy}"
    with session(store) as opened:
        if as_json:
            ending = Ending(Answer.NEW, None, reason=reason, unblock=unblock)
            told = outcome.ending_object(ending, key=key, store=opened.store.url, attempts=opened.attempts)
            tell(outcome.as_json({"plan": "NotChecked", **told}))
        else:
            named = key.text if key is not None else "the key is made from its content"
            tell(f"not checked: {named}: {reason}", f"  what to do: {unblock}")
    return ExitCode.SUCCEEDED


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

    asked = JobArguments.of(file, params=param, outputs=output)
    write_document(manifest.render(asked.text(), params=asked.params, outputs=asked.outputs, source=asked.source))
    return ExitCode.SUCCEEDED


def rerun(
    target: options.KeyOrFileIfAny = None,
    *,
    file: options.Filename = None,
    store: options.Store = None,
    install: options.Install = None,
    output: options.Outputs = None,
    param: options.Params = None,
    application: options.Application = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> ExitCode:
    """Run a job again on purpose: the next generation of its key.

    Give the job file to run what it says now, or the key to run what was run before. Readers then see the new rows in place of the old ones
    (onRerun: Replace), or both (Append).

    Example: sparkonce rerun -f load-month.yaml --param month=01 --reason "the source was corrected"
    """
    from sparkonce.commands import operate

    target = options.one_target(target, file)
    named = file is not None or is_file(target)
    if named:
        local_only(store, AGAIN)
    prepared = _prepared(target, param, output, application) if named else None
    if prepared is None:
        options.only_of_a_file(param=param, output=output, application=application)
    with session(store, install=install) as opened:
        if opened.remote:
            return _rerun_elsewhere(opened, target, reason=reason, as_json=as_json)
        again, record = _generation(opened, target, prepared)

        async def work() -> Ending:
            check_spark()
            check_text(again.job, application=again.application)
            return await operate.rerun(opened.embedded, again, record, by=person(), reason=reason)

        ending = opened.interruptible(work)
        assert ending is not None  # see run
        return _tell(ending, opened, key=again.key, as_json=as_json)


def _rerun_elsewhere(opened: Session, target: str, *, reason: str, as_json: bool) -> ExitCode:
    """On a cluster: opens the next generation, which an operator runs."""
    from sparkonce.commands import operate
    from sparkonce.commands import remote as elsewhere

    record = blocking(operate.find(opened.store, target))

    async def work() -> Ending:
        opened_now = await elsewhere.rerun(opened.embedded, record, by=person(), reason=reason)
        said = f"generation {opened_now.generation} is opened, and an operator runs it"
        return Ending(Answer.TAKE_OVER, opened_now, reason=said, unblock=f"sparkonce keys show {opened_now.key}")

    ending = opened.interruptible(work)
    assert ending is not None  # see run
    return _tell(ending, opened, key=None, as_json=as_json)


def cancel(
    target: options.KeyOrFile,
    *,
    store: options.Store = None,
    install: options.Install = None,
    param: options.Params = None,
    application: options.Application = None,
    reason: options.Reason = "",
    as_json: options.Json = False,
) -> ExitCode:
    """Stop a running job and settle what it wrote.

    A job that had already committed its outputs ends as succeeded. Exits with 0 when nothing of the job runs any more.

    Example: sparkonce cancel load-flights/flights/2013-01@1 --reason "wrong input"
    """
    from sparkonce.commands import operate

    prepared = _prepared(target, param, None, application) if is_file(target) else None
    if prepared is None:
        options.only_of_a_file(param=param, application=application)
    with session(store, install=install) as opened:
        if opened.remote and prepared is not None:
            raise InvalidInput("on a cluster's ledger give the key, as `sparkonce keys list` shows it")
        record = _record(opened, target, prepared)

        async def work() -> Ending:
            return await operate.cancel(opened.embedded, record, by=person(), reason=reason)

        ending = opened.interruptible(work, detachable=True)
        if ending is None:
            ending = _waiting(record)
        code = code_of(ending)
        done = code in (ExitCode.FAILED, ExitCode.CANCELLED)  # it is over, as was asked
        return _tell(ending, opened, key=None, as_json=as_json, code=ExitCode.SUCCEEDED if done else code)


def _prepared(file: str, params: list[str] | None, outputs: list[str] | None, application: str | None) -> Prepared:
    """Prints which fields have no effect on this machine."""
    asked = JobArguments.of(file, params=params, outputs=outputs, application=application)
    prepared = asked.prepared()
    if skipped := LocalTemplate.of(prepared.job, source=asked.source).skipped:
        tell(f"only for Kubernetes, not used here: {', '.join(skipped)}", err=True)
    return prepared


def _record(opened: Session, target: str, prepared: Prepared | None) -> Record:
    """The key's record. Raises: InvalidInput when there is none."""
    from sparkonce.commands import operate

    if prepared is None:
        return blocking(operate.find(opened.store, target))
    record = blocking(opened.store.load(prepared.address)).record
    if record is None:
        raise InvalidInput(
            f"{prepared.key.text} was never sent to {opened.store.url}; `sparkonce run {target}` sends it"
        )
    return record


def _generation(opened: Session, target: str, prepared: Prepared | None) -> tuple[Prepared, Record]:
    """The job that the next generation runs, and the record of the previous one."""
    from sparkonce.commands import operate

    record = _record(opened, target, prepared)
    if prepared is None:
        prepared = blocking(operate.stored(opened.embedded, record))
    return prepared, record


def _waiting(record: Record) -> Ending:
    said = "cancellation is requested, the key's owner carries it out"
    return Ending(Answer.FOLLOW, record, detached=True, reason=said, unblock=f"sparkonce keys show {record.key}")


def _tell(ending: Ending, opened: Session, *, key: Key | None, as_json: bool, code: ExitCode | None = None) -> ExitCode:
    """Prints the answer and returns its exit code."""
    code = code_of(ending) if code is None else code
    if as_json:
        told = outcome.ending_object(ending, key=key, store=opened.store.url, attempts=opened.attempts, code=code)
        tell(outcome.as_json(told))
    else:
        tell(*outcome.ending_lines(ending, attempts=opened.attempts))
    return code
