"""Looks at outputs without a claim: before anything is reserved, and before a recorded result is told to somebody new."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkonce.errors import InvalidInput, OutputUnavailable, OutputUnsupported
from sparkonce.model.record import Record
from sparkonce.model.result import Result
from sparkonce.sink.protocol import Evidence, Sink
from sparkonce.sink.transaction import sink_key


async def check(sinks: Sequence[Sink]) -> None:
    """Start-up probe of every output, before anything is reserved."""
    for sink in sinks:
        await sink.check()


async def probe(
    record: Record, result: Result | None, sinks: Sequence[Sink], *, reaches: Callable[[Sink], bool] = lambda _: True
) -> dict[str, Evidence]:
    """Whether a recorded result still stands; an output that cannot be reached is not checked."""
    digests = {output.name: output.digest for output in result.outputs} if result else {}
    found: dict[str, Evidence] = {}
    for sink in sinks:
        if not reaches(sink):
            found[sink.name] = Evidence.NOT_CHECKED
            continue
        try:
            found[sink.name] = await sink.probe(
                sink_key(record.key_hash, record.generation, sink), digests.get(sink.name)
            )
        except (OutputUnavailable, OutputUnsupported, InvalidInput):  # also a catalog that is not configured here
            found[sink.name] = Evidence.NOT_CHECKED
    return found
