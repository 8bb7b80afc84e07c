"""Runs an audit as `python -m sparkonce.audit`, or as the main file of an IdempotentJob.

Inside a job it reads files on the executors and writes the findings to an output, exactly once like any other output; the counts are
the job's values, so that submitting the same job again replays the same answer without another audit. Give the job a revision (a date,
say) to get one audit per day. Outside a job it prints JSON and exits with 1 on defects.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.audit import places
from sparkonce.audit.files import with_spark, with_threads
from sparkonce.audit.inspection import Audit
from sparkonce.audit.known import read_file
from sparkonce.audit.page import page
from sparkonce.audit.report import AuditReport
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, SparkonceError
from sparkonce.model.record import ENVIRONMENT
from sparkonce.store.open import open_blocking
from sparkonce.store.protocol import IdempotencyStore

if TYPE_CHECKING:
    from sparkonce.driver.context import Job

FINDINGS = "started string, severity string, kind string, tableUri string, subject string, what string, todo string"
"""Schema of the findings table."""


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sparkonce.audit", description="Audit tables and ledger from storage."
    )
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help="paths or URLs; default: the outputs of all jobs in the ledger"
    )
    parser.add_argument("--store", metavar="URL", help="a ledger to compare with; default without TABLE: the job's own")
    parser.add_argument(
        "--install", metavar="ID", default="local", help="the install whose keys are read, on a cluster's ledger"
    )
    parser.add_argument("--deep", action="store_true", help="read every page of every file")
    parser.add_argument(
        "--output", metavar="NAME", default="findings", help="the job's output that receives the findings"
    )
    parser.add_argument("--known", type=Path, metavar="FILE", help="removals of rows that are meant")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the audit; returns the exit code: 0 clean, 1 defects, 3 incomplete. Inside a job: 0, with the counts as its values.

    Raises:
        InvalidInput: neither tables nor a ledger, or a table that cannot be parsed.
        SparkonceError: the ledger, or inside a job the output, cannot be used.
    """
    asked = options(arguments)
    if ENVIRONMENT not in os.environ:
        report = _audit(asked, asked.store, base=str(Path.cwd()))
        sys.stdout.write(json.dumps(report.dump(), ensure_ascii=False) + "\n")
        return 1 if report.defects else 0 if report.complete else 3
    from pyspark.sql import SparkSession

    from sparkonce.driver.current import current

    job, spark = current(), SparkSession.builder.getOrCreate()
    store = asked.store or (None if asked.tables else job.assignment.store)
    base = job.assignment.spec.base or str(Path.cwd())
    write(job, spark, _audit(asked, store, base=base, spark=spark), asked.output)
    return 0


def write(job: Job, spark: Any, report: AuditReport, output: str) -> None:
    """Writes the findings as rows and the counts as the job's values. Raises what `Job.write` raises."""
    started = report.dump()["started"]
    rows = [
        (started, str(each.severity), str(each.kind), each.table, each.subject, each.what, each.todo)
        for each in report.findings
    ]
    job.write(spark.createDataFrame(rows, FINDINGS), output)
    job.result(clean=report.clean, defects=len(report.defects), verdict=report.verdict, counts=report.counts())


def _audit(asked: argparse.Namespace, store: str | None, *, base: str, spark: Any = None) -> AuditReport:
    if store is None and not asked.tables:
        raise InvalidInput("nothing to audit; give a TABLE or --store URL")
    known = read_file(asked.known) if asked.known is not None else ()
    named = places.named(asked.tables, base=base) if asked.tables else None
    place = places.open_place
    reader = with_spark(spark, place, deep=asked.deep) if spark else with_threads(place, deep=asked.deep)
    with _opened(store, asked.install) as ledger:
        report = Audit(places=named, store=ledger, read_files=reader, deep=asked.deep, known=known).run()
    if asked.html is not None:
        try:
            asked.html.write_text(page(report), encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"--html {asked.html} cannot be written: {error.strerror}; name another file") from None
    return report


@contextlib.contextmanager
def _opened(url: str | None, install: str) -> Iterator[IdempotencyStore | None]:
    if url is None:
        yield None
        return
    store = open_blocking(url, install=install)
    try:
        yield store
    finally:
        run(store.close())


def leave(arguments: Sequence[str]) -> int:
    """Runs `main` and prints an error as one sentence; returns the exit code."""
    try:
        return main(arguments)
    except SparkonceError as error:
        sys.stderr.write(f"sparkonce: {error}\n")
        return 2 if isinstance(error, InvalidInput) else 3
