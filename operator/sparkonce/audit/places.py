"""Which tables an audit looks at: those that are named, or all that the jobs of a ledger write.

A table that cannot be opened here (its kind, its credentials, a path that means something else on another machine) is told of and counts
as not seen: an audit that leaves a table out in silence would call it clean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparkonce.audit.findings import Finding, Kind
from sparkonce.audit.ledger import told
from sparkonce.blocking import run
from sparkonce.driver.attempt import sinks_of
from sparkonce.errors import SparkonceError
from sparkonce.model.record import SpecBody
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.location import objects_at
from sparkonce.sink.objects import Objects
from sparkonce.sink.open import Declared, open_sink
from sparkonce.sink.protocol import Sink

DELTA_LOG = "_delta_log"
_KIND = re.compile(r"(slotLog|delta|iceberg):(.+)$")


@dataclass(frozen=True)
class Place:
    """One table, opened."""

    sink: Sink
    named: bool = False
    """By a person, who expects something to be there."""


def named(tables: Sequence[str], *, base: str) -> list[Place]:
    """From what a person wrote: a path or URL, with `slotLog:`, `delta:` or `iceberg:` before it where that does not show.

    base: the folder that relative paths are relative to. InvalidInput, OutputUnsupported, OutputUnavailable."""
    places: dict[tuple[str, str], Place] = {}
    for text in tables:
        match = _KIND.match(text)
        location = match[2] if match else text
        kind = match[1] if match else _kind_of(location, base)
        sink = open_sink(Declared(name="table", kind=kind, location=location), base=base)
        places[sink.kind, sink.uri] = Place(sink, named=True)
    return list(places.values())


def _kind_of(location: str, base: str) -> str:
    """By what lies there; a slot log where nothing says otherwise."""
    folders = run(objects_at(location, base=base, field="table").folders(""))
    return "delta" if DELTA_LOG in folders else "slotLog"


def of_specs(specs: Mapping[str, SpecBody]) -> tuple[list[Place], list[Finding]]:
    """All outputs of these jobs, each table once, and what could not be opened."""
    places: dict[tuple[str, str], Place] = {}
    unseen = []
    for text, spec in specs.items():
        try:
            sinks: Iterable[Sink] = sinks_of(IdempotentJob.of(spec.job), spec.base).values()
        except SparkonceError as error:
            unseen.append(not_seen(text, told(error)))
            continue
        for sink in sinks:
            places.setdefault((sink.kind, sink.uri), Place(sink))
    return list(places.values()), unseen


def not_seen(subject: str, why: str) -> Finding:
    return Finding(
        kind=Kind.NOT_SEEN,
        subject=subject,
        what=f"not looked at: {why}",
        todo="audit it where it can be reached, or mend that",
    )


def open_place(uri: str) -> Objects:
    """The files of a table, by its URI; also on an executor."""
    return objects_at(uri, base=None, field="table")
