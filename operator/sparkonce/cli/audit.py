"""`sparkonce audit`: what stands in the outputs, compared with itself and with the ledger.

Writes nothing but the reports that it is asked for, takes no lock, and may run beside running jobs. It exits with 0 only when everything
that was asked for was looked at and no promise is broken: "could not look" is never told as "clean".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode

if TYPE_CHECKING:
    from sparkonce.audit.files import Reader
    from sparkonce.audit.report import Report
    from sparkonce.store.protocol import IdempotencyStore

Tables = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE]...",
        help="Paths or URLs of tables (slotLog:PATH, delta:PATH or iceberg:CATALOG.TABLE where the kind does not show). "
        "Without any: all outputs of the ledger's jobs.",
        show_default=False,
    ),
]
JsonFile = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the report as JSON; `-` is standard output.", show_default=False
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Write the report as one page that opens anywhere.", show_default=False
    ),
]
Deep = Annotated[bool, typer.Option("--deep", help="Read every page of every file, not only the footers.")]
WithSpark = Annotated[bool, typer.Option("--spark", help="Read the files by a local Spark, if they are many.")]

SHOWN = 50
"""Findings printed; the files have all."""
MANY = 2000
"""Files from which on starting Spark is worth its seconds."""
SENT_TO_STDOUT = "-"


def audit(
    tables: Tables = None,
    *,
    store: options.Store = None,
    install: options.Install = None,
    json_file: JsonFile = None,
    html: Html = None,
    deep: Deep = False,
    spark: WithSpark = False,
) -> ExitCode:
    """Prove from storage that every effect is there once, as it was committed.

    Compares commits, data files and staging of the tables with each other, and with the ledger's records (for named tables: of --store).
    Exits with 0 when no defect was found, 1 when there are defects, 3 when not everything could be looked at.

    Example: sparkonce audit --html audit.html
    """
    from sparkonce.audit import places
    from sparkonce.audit.auditing import LOCAL_PURGE, Audit
    from sparkonce.cli import show

    named = places.named(tables, base=str(Path.cwd())) if tables else None
    with ledger(store, install, needed=named is None) as (opened, remote):
        purges = "operators remove it by themselves" if remote else LOCAL_PURGE
        with reader(deep=deep, spark=spark) as read:
            report = Audit(places=named, store=opened, read_files=read, purges=purges, deep=deep).run()
    if html is not None:
        from sparkonce.audit.page import page

        html.write_text(page(report), encoding="utf-8")
    if json_file == SENT_TO_STDOUT:
        typer.echo(show.as_json({**report.dump(), "exitCode": int(code_of_report(report))}))
    else:
        if json_file is not None:
            Path(json_file).write_text(show.as_json(report.dump()) + "\n", encoding="utf-8")
        tell(report)
    return code_of_report(report)


def code_of_report(report: Report) -> ExitCode:
    if report.defects:
        return ExitCode.FAILED
    return ExitCode.SUCCEEDED if report.complete else ExitCode.UNAVAILABLE


@contextmanager
def ledger(url: str | None, install: str | None, *, needed: bool) -> Iterator[tuple[IdempotencyStore | None, bool]]:
    """The ledger, if one is named or needed, and whether it is a cluster's."""
    if url is None and not needed:
        yield None, False
        return
    from sparkonce.cli.session import session

    with session(url, install=install, named=False) as opened:
        yield opened.store, opened.remote


@contextmanager
def reader(*, deep: bool, spark: bool) -> Iterator[Reader]:
    """Threads; Spark for tables with many files where it is asked for."""
    from sparkonce.audit.files import with_spark, with_threads
    from sparkonce.audit.places import open_place

    threads = with_threads(open_place, deep=deep)
    if not spark:
        yield threads
        return
    from sparkonce.cli.machine import check_spark

    check_spark()
    sessions: list[Any] = []

    def read(uri: str, files: Any) -> Any:
        if len(files) < MANY:
            return threads(uri, files)
        if not sessions:
            sessions.append(_spark())
        return with_spark(sessions[0], open_place, deep=deep)(uri, files)

    try:
        yield read
    finally:
        for each in sessions:
            each.stop()


def _spark() -> Any:
    from sparkonce.audit.session import local_session

    return local_session()


def tell(report: Report) -> None:
    """For a person. Findings are no table: places and names of keys are longer than any column."""
    from sparkonce.cli import words
    from sparkonce.cli.tables import print_table

    if report.tables:
        rows = [
            (
                words.sentence(table.uri),
                table.kind,
                words.count(table.effects),
                words.count(table.rows),
                words.count(table.files),
                words.size(table.bytes),
                f"{table.staged} ({words.size(table.staged_bytes)})" if table.staged else "-",
            )
            for table in report.tables
        ]
        print_table(("TABLE", "KIND", "COMMITS", "ROWS", "FILES", "SIZE", "STAGED"), rows)
        typer.echo()
    for found in report.findings[:SHOWN]:
        typer.echo(f"{found.severity}: {found.kind}: {words.sentence(found.what)}")
        typer.echo(f"  {words.sentence(found.where)}")
        typer.echo(f"  what to do: {found.todo}")
    if len(report.findings) > SHOWN:
        typer.echo(f"and {len(report.findings) - SHOWN} more; --json FILE has all")
    if report.findings:
        typer.echo()
    typer.echo(words.sentence(report.verdict))
    typer.echo(summary(report))
    if report.ledger is None:
        typer.echo("records were not compared: no ledger was named (--store)")


def summary(report: Report) -> str:
    """What it cost, and what more would."""
    from sparkonce.cli import words

    cost = report.cost
    said = (
        f"{cost.seconds:.2f} s (listing {cost.listing_seconds:.2f} s, reading {words.count(cost.files)} files "
        f"{cost.reading_seconds:.2f} s: {cost.files_per_second:.0f} files/s), peak memory {words.size(cost.peak_bytes)}"
    )
    if cost.seconds_per_million is not None and cost.bytes_per_million is not None:
        said += f"; at this slope 1 000 000 files: {words.span(cost.seconds_per_million)}, {words.size(int(cost.bytes_per_million))}"
    return said
