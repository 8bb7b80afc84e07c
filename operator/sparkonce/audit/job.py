"""An audit as a job of its own: `python -m sparkonce.audit`, or the main file of an IdempotentJob.

Inside a job it reads files on the executors and writes what it found to an output, exactly once like any other output; the counts
are the job's values, so that whoever sends the same job again gets the same answer without a second look. Give the job a revision (a
date, say) and each day's audit is a run of its own. Outside of a job it prints the JSON and exits with 1 on defects.
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
from sparkonce.audit.auditing import Audit
from sparkonce.audit.files import with_spark, with_threads
from sparkonce.audit.page import page
from sparkonce.audit.report import Report
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, SparkonceError
from sparkonce.model.assignment import ENVIRONMENT
from sparkonce.store.open import open_blocking
from sparkonce.store.protocol import IdempotencyStore

if TYPE_CHECKING:
    from sparkonce.driver.context import Job

FINDINGS = "started string, severity string, kind string, tableUri string, subject string, what string, todo string"
"""The columns of the findings' table."""


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sparkonce.audit", description="Prove from storage what stands there."
    )
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help="paths or URLs; without any: all of the ledger's jobs"
    )
    parser.add_argument(
        "--store", metavar="URL", help="a ledger to compare with; without TABLE: the job's own by default"
    )
    parser.add_argument("--install", metavar="ID", default="local", help="whose keys, on a cluster's ledger")
    parser.add_argument("--deep", action="store_true", help="read every page of every file")
    parser.add_argument("--output", metavar="NAME", default="findings", help="the job's output that gets the findings")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """0 clean, 1 defects, 3 not everything could be looked at. Inside a job: 0, and the counts are its values."""
    asked = options(arguments)
    if ENVIRONMENT not in os.environ:
        report = _audit(asked, asked.store, base=str(Path.cwd()))
        sys.stdout.write(json.dumps(report.dump(), ensure_ascii=False) + "\n")
        return 1 if report.defects else 0 if report.complete else 3
    from pyspark.sql import SparkSession

    from sparkonce.driver.attempt import current

    job, spark = current(), SparkSession.builder.getOrCreate()
    store = asked.store or (None if asked.tables else job.assignment.store)
    base = job.assignment.spec.base or str(Path.cwd())
    write(job, spark, _audit(asked, store, base=base, spark=spark), asked.output)
    return 0


def write(job: Job, spark: Any, report: Report, output: str) -> None:
    """The findings as rows, the counts as the job's values."""
    started = report.dump()["started"]
    rows = [
        (started, str(each.severity), str(each.kind), each.table, each.subject, each.what, each.todo)
        for each in report.findings
    ]
    job.write(spark.createDataFrame(rows, FINDINGS), output)
    job.result(clean=report.clean, defects=len(report.defects), verdict=report.verdict, counts=report.counts())


def _audit(asked: argparse.Namespace, store: str | None, *, base: str, spark: Any = None) -> Report:
    if store is None and not asked.tables:
        raise InvalidInput("an audit needs tables or a ledger; name a TABLE, or --store URL")
    named = places.named(asked.tables, base=base) if asked.tables else None
    place = places.open_place
    reader = with_spark(spark, place, deep=asked.deep) if spark else with_threads(place, deep=asked.deep)
    with _opened(store, asked.install) as ledger:
        report = Audit(places=named, store=ledger, read_files=reader, deep=asked.deep).run()
    if asked.html is not None:
        asked.html.write_text(page(report), encoding="utf-8")
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
    """`main`, with errors as one sentence."""
    try:
        return main(arguments)
    except SparkonceError as error:
        sys.stderr.write(f"sparkonce: {error}\n")
        return 2 if isinstance(error, InvalidInput) else 3
