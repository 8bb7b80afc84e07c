"""`sparkonce sweep`: deletes staging that nobody can commit any more, and says how much.

Safe beside running jobs, and to be ended at any point: each folder is proven unreachable when it is deleted, not when it was listed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkonce.cli import options
from sparkonce.cli.audit import Tables, ledger
from sparkonce.cli.exits import ExitCode

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")]


def sweep(
    tables: Tables = None,
    *,
    store: options.Store = None,
    install: options.Install = None,
    dry_run: DryRun = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Remove what attempts left behind and nobody can commit any more.

    What an attempt may still commit stays, however old it is: settle its key first (`sparkonce run FILE`, `sparkonce keys resolve KEY`).
    Exits with 3 when a table could not be looked at; the others are swept all the same.

    Example: sparkonce sweep --dry-run
    """
    from sparkonce.audit import ledger as ledgers
    from sparkonce.audit import places, sweeping
    from sparkonce.cli import show, words
    from sparkonce.cli.tables import print_table

    unseen: list[str] = []
    if tables:
        found = places.named(tables, base=str(Path.cwd()))
    else:
        with ledger(store, install, needed=True) as (opened, _):
            assert opened is not None  # it was needed
            found, not_seen = places.of_specs(ledgers.read(opened)[1])
            unseen = [each.what for each in not_seen]
    done = list(sweeping.sweep(found, dry_run=dry_run))
    problems = [*unseen, *(problem for each in done for problem in each.problems)]
    folders, size = sum(each.folders for each in done), sum(each.bytes for each in done)
    code = ExitCode.UNAVAILABLE if problems else ExitCode.SUCCEEDED
    if as_json:
        tables_ = [
            {"table": e.uri, "kind": e.kind, "folders": e.folders, "bytes": e.bytes, "left": e.left} for e in done
        ]
        told = {"dryRun": dry_run, "folders": folders, "bytes": size, "tables": tables_, "problems": problems}
        typer.echo(show.as_json({**told, "exitCode": int(code)}))
        return code
    rows = [(e.uri, str(e.folders), words.size(e.bytes), str(e.left)) for e in done if e.folders or e.left]
    if rows:
        removed = "WOULD REMOVE" if dry_run else "REMOVED"
        print_table(("TABLE", removed, "SIZE", "MAY BE IN USE"), rows)
    typer.echo(f"{'would remove' if dry_run else 'removed'} {folders} folder(s), {words.size(size)}")
    for problem in problems:
        typer.echo(f"sparkonce: {words.sentence(problem)}", err=True)
    return code
