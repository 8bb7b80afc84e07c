"""`sparkonce audit` compares the contents of outputs with themselves and with the ledger; `sparkonce sweep` deletes unreachable staging.

`audit` writes nothing but the requested reports, takes no lock, and may run beside running jobs. It exits with 0 only when everything
requested was read and no promise is broken: "could not read" is never reported as "clean".

`sweep` is safe beside running jobs and may be interrupted at any point: each folder is proven unreachable when it is deleted, not when it
was listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.view.terminal import tell

if TYPE_CHECKING:
    from sparkonce.audit.files import Reader
    from sparkonce.audit.findings import Finding
    from sparkonce.audit.report import AuditReport
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

Known = Annotated[
    Path | None,
    typer.Option(
        "--known",
        metavar="FILE",
        help="Removals of rows that are meant, in a YAML file (docs/audit.md): they are no defects.",
        show_default=False,
    ),
]
Every = Annotated[
    bool, typer.Option("--all", help="Print each finding by itself, also those of one kind in one table.")
]

SHOWN = 50
"""Groups of findings printed, and entries of --known without use; the report files hold all."""
LETTERS = 500
"""Letters printed of one finding; the report files hold all."""
MANY = 2000
"""Number of files from which starting Spark pays off."""
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
    known: Known = None,
    every: Every = False,
) -> ExitCode:
    """Prove from storage that every effect exists once, as it was committed.

    Compares commits, data files and staging of the tables with each other, and with the ledger's records (for named tables: of --store).
    Findings of one kind in one table are printed as one; --all and --json have each of them.

    Exits with 0 when no defect was found, 1 when there are defects, 3 when not everything could be read.

    Example: sparkonce audit --html audit.html
    """
    from sparkonce.audit import places
    from sparkonce.audit.inspection import LOCAL_PURGE, Audit
    from sparkonce.audit.known import read_file
    from sparkonce.cli.view import outcome

    meant = read_file(known) if known else ()
    named = places.named(tables, base=str(Path.cwd())) if tables else None
    with ledger(store, install, needed=named is None) as (opened, remote):
        purges = "operators remove it by themselves" if remote else LOCAL_PURGE
        with reader(deep=deep, spark=spark) as read:
            audit_ = Audit(places=named, store=opened, read_files=read, purges=purges, deep=deep, known=meant)
            report = audit_.run()
    if html is not None:
        from sparkonce.audit.page import page

        html.write_text(page(report), encoding="utf-8")
    if json_file == SENT_TO_STDOUT:
        tell(outcome.as_json({**report.dump(), "exitCode": int(code_of_report(report))}))
    else:
        if json_file is not None:
            Path(json_file).write_text(outcome.as_json(report.dump()) + "\n", encoding="utf-8")
        print_report(report, every=every)
    return code_of_report(report)


def code_of_report(report: AuditReport) -> ExitCode:
    if report.defects:
        return ExitCode.FAILED
    return ExitCode.SUCCEEDED if report.complete else ExitCode.UNAVAILABLE


@contextmanager
def ledger(url: str | None, install: str | None, *, needed: bool) -> Iterator[tuple[IdempotencyStore | None, bool]]:
    """The ledger, if one is named or needed, and whether it belongs to a cluster."""
    if url is None and not needed:
        yield None, False
        return
    from sparkonce.cli.session import session

    with session(url, install=install, named=False) as opened:
        yield opened.store, opened.remote


@contextmanager
def reader(*, deep: bool, spark: bool) -> Iterator[Reader]:
    """Reads with threads; with Spark for tables of many files, if requested."""
    from sparkonce.audit.files import with_spark, with_threads
    from sparkonce.audit.places import open_place

    threads = with_threads(open_place, deep=deep)
    if not spark:
        yield threads
        return
    from sparkonce.launch.submit import check_spark

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


def print_report(report: AuditReport, *, every: bool = False) -> None:
    """Prints the report for a person: findings of one cause as one, or each by itself. They are not a table: paths and keys are longer than
    any column."""
    from sparkonce.cli.view import words
    from sparkonce.cli.view.words import print_table

    if report.tables:
        rows = [
            (
                words.sentence(table.uri),
                table.kind,
                words.count(table.effects),
                words.count(table.rows),
                "not counted" if table.rows_seen is None else words.count(table.rows_seen),
                words.count(table.files),
                words.size(table.bytes),
                f"{table.staged} ({words.size(table.staged_bytes)})" if table.staged else "-",
            )
            for table in report.tables
        ]
        print_table(("TABLE", "KIND", "COMMITS", "ROWS", "READERS SEE", "FILES", "SIZE", "STAGED"), rows)
        tell("")
    if every:
        for found in report.findings:
            print_finding(found, report, whole=True)
    else:
        print_groups(report)
    if report.findings:
        tell("")
    for use in [each for each in report.known if not each.findings][:SHOWN]:
        said = use.entry.commit or f"{use.entry.rows} rows"
        tell(words.sentence(f"--known: nothing was found that {said} of {use.entry.table} would cover"))
    tell(words.sentence(report.verdict))
    tell(summary(report))
    if report.ledger is None:
        tell("records were not compared: no ledger was named (--store)")


def print_groups(report: AuditReport) -> None:
    from sparkonce.cli.view import words

    groups = report.groups
    for group in groups[:SHOWN]:
        first, count = group.first, len(group.findings)
        if count == 1:
            print_finding(first, report)
            continue
        at = f" in {first.table}" if first.table else f" in {group.realm}" if group.realm else ""
        tell(cut(f"{first.severity}: {first.kind}: {words.count(count)}{at}: {group.names(report.names)}"))
        tell(cut(f"  the first: {said_of(first, report)}"))
        if len(group.commits) > 1:
            tell(cut(f"  by {len(group.commits)} commits: {', '.join(group.commits)}"))
        tell(cut(f"  what to do: {first.todo}"))
    if left := groups[SHOWN:]:
        kinds = Counter(f"{each.first.severity}: {each.first.kind}" for each in left for _ in each.findings)
        for said, count in kinds.items():
            tell(f"{said}: {words.count(count)} more; --all prints them, --json FILE has them")


def print_finding(found: Finding, report: AuditReport, *, whole: bool = False) -> None:
    from sparkonce.cli.view import words

    for text in (
        f"{found.severity}: {found.kind}: {said_of(found, report)}",
        f"  {words.sentence(found.where)}",
        f"  what to do: {found.todo}",
    ):
        tell(text if whole else cut(text))


def said_of(found: Finding, report: AuditReport) -> str:
    """The finding's sentence, with keys beside hashes."""
    from sparkonce.audit.groups import with_keys
    from sparkonce.cli.view import words

    known = f" (known: {found.known})" if found.known else ""
    return words.sentence(with_keys(found.what, report.names) + known)


def cut(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 3]}..."


def summary(report: AuditReport) -> str:
    """What the audit cost, and what a million files would cost."""
    from sparkonce.cli.view import words

    cost = report.cost
    said = (
        f"{cost.seconds:.2f} s (listing {cost.listing_seconds:.2f} s, reading {words.count(cost.files)} files "
        f"{cost.reading_seconds:.2f} s: {cost.files_per_second:.0f} files/s), peak memory {words.size(cost.peak_bytes)}"
    )
    if cost.seconds_per_million is not None and cost.bytes_per_million is not None:
        said += f"; at this slope 1 000 000 files: {words.span(cost.seconds_per_million)}, {words.size(int(cost.bytes_per_million))}"
    return said


DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")]


def sweep(
    tables: Tables = None,
    *,
    store: options.Store = None,
    install: options.Install = None,
    dry_run: DryRun = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Remove staged files that no attempt can commit any more.

    Files that an attempt may still commit stay, however old: settle the key first (`sparkonce run FILE`, `sparkonce keys resolve KEY`).
    Exits with 3 when a table could not be read; the others are swept all the same.

    Example: sparkonce sweep --dry-run
    """
    from sparkonce.audit import cleanup as sweeping
    from sparkonce.audit import ledger as ledgers
    from sparkonce.audit import places
    from sparkonce.cli.view import outcome, words
    from sparkonce.cli.view.words import print_table

    unseen: list[str] = []
    if tables:
        found = places.named(tables, base=str(Path.cwd()))
    else:
        with ledger(store, install, needed=True) as (opened, _):
            assert opened is not None  # it was needed
            read, specs = ledgers.read(opened)
            found, not_seen = places.of_specs(specs)
            unseen = [*(each.what for each in not_seen), *read.unreadable.values(), *read.damaged.values()]
    done = list(sweeping.sweep(found, dry_run=dry_run))
    problems = [*unseen, *(problem for each in done for problem in each.problems)]
    folders, size = sum(each.folders for each in done), sum(each.bytes for each in done)
    code = ExitCode.UNAVAILABLE if problems else ExitCode.SUCCEEDED
    if as_json:
        tables_ = [
            {"table": e.uri, "kind": e.kind, "folders": e.folders, "bytes": e.bytes, "left": e.left} for e in done
        ]
        told = {"dryRun": dry_run, "folders": folders, "bytes": size, "tables": tables_, "problems": problems}
        tell(outcome.as_json({**told, "exitCode": int(code)}))
        return code
    rows = [(e.uri, str(e.folders), words.size(e.bytes), str(e.left)) for e in done if e.folders or e.left]
    if rows:
        removed = "WOULD REMOVE" if dry_run else "REMOVED"
        print_table(("TABLE", removed, "SIZE", "MAY BE IN USE"), rows)
    tell(f"{'would remove' if dry_run else 'removed'} {folders} folder(s), {words.size(size)}")
    for problem in problems:
        tell(f"sparkonce: {words.sentence(problem)}", err=True)
    return code
