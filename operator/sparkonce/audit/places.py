"""Selects the tables to audit: those named by the user, or all outputs of the ledger's jobs.

A table that cannot be opened here (unsupported kind, missing credentials, a path of another machine) is reported as not seen: an audit
that silently skipped a table would call it clean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparkonce.audit.findings import Finding, Kind
from sparkonce.audit.ledger import one_line
from sparkonce.blocking import run
from sparkonce.errors import SparkonceError
from sparkonce.model.record import SpecBody
from sparkonce.model.spec import OUTPUT_KINDS, IdempotentJob, kind_and_place
from sparkonce.sink.delta.log import LOG as DELTA_LOG
from sparkonce.sink.objects.location import objects_at
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.open import open_sink, sinks_of
from sparkonce.sink.protocol import Declared, Sink


@dataclass(frozen=True)
class AuditedTable:
    """A table opened for auditing."""

    sink: Sink
    named: bool = False
    """True if a user named it, and so expects it to contain something."""


def named(tables: Sequence[str], *, base: str) -> list[AuditedTable]:
    """Opens tables given as paths or URLs, prefixed with `slotLog:`, `delta:` or `iceberg:` where the kind cannot be inferred.

    base: the folder that relative paths start from.

    Raises:
        InvalidInput, OutputUnsupported: a table cannot be opened as written.
        OutputUnavailable: its store did not answer.
    """
    places: dict[tuple[str, str], AuditedTable] = {}
    for text in tables:
        kind, location = kind_and_place(text)
        if kind not in OUTPUT_KINDS or not location:
            kind, location = _kind_of(text, base), text
        sink = open_sink(Declared(name="table", kind=kind, location=location), base=base)
        places[sink.kind, sink.uri] = AuditedTable(sink, named=True)
    return list(places.values())


def _kind_of(location: str, base: str) -> str:
    """Infers the kind: Delta if there is a Delta log, else a slot log."""
    folders = run(objects_at(location, base=base, field="table").folders(""))
    return "delta" if DELTA_LOG in folders else "slotLog"


def of_specs(specs: Mapping[str, SpecBody]) -> tuple[list[AuditedTable], list[Finding]]:
    """All outputs of these jobs, each table once, and a finding for each job whose outputs cannot be opened."""
    places: dict[tuple[str, str], AuditedTable] = {}
    unseen = []
    for text, spec in specs.items():
        try:
            sinks: Iterable[Sink] = sinks_of(IdempotentJob.of(spec.job), spec.base).values()
        except SparkonceError as error:
            unseen.append(not_seen(text, one_line(error)))
            continue
        for sink in sinks:
            places.setdefault((sink.kind, sink.uri), AuditedTable(sink))
    return list(places.values()), unseen


def not_seen(subject: str, why: str) -> Finding:
    """The finding for a table that could not be audited."""
    return Finding(
        kind=Kind.NOT_SEEN,
        subject=subject,
        what=f"not audited: {why}",
        todo="fix the cause, or audit it from where it can be reached",
    )


def open_place(uri: str) -> TableObjects:
    """The objects of a table, by its URI. Also runs on executors.

    Raises:
        OutputUnsupported: unsupported scheme.
    """
    return objects_at(uri, base=None, field="table")
