"""Probes outputs without owning the key, before a recorded result is replayed.

Writes nothing that could affect a commit. An output that does not answer is reported as not checked, never as gone: only an answer from its
store may withhold a recorded result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkonce.errors import InvalidInput, OutputUnavailable, OutputUnsupported
from sparkonce.model.record import Record, Result
from sparkonce.sink.protocol import Evidence, Found, Sink
from sparkonce.sink.transaction import sink_key


async def probe(
    record: Record, result: Result | None, sinks: Sequence[Sink], *, reaches: Callable[[Sink], bool] = lambda _: True
) -> dict[str, Found]:
    """Whether each output still holds what the recorded result names. An output that cannot be reached is NOT_CHECKED."""
    digests = {output.name: output.digest for output in result.outputs} if result else {}
    found: dict[str, Found] = {}
    for sink in sinks:
        if not reaches(sink):
            found[sink.name] = Evidence.NOT_CHECKED
            continue
        try:
            found[sink.name] = await sink.probe(
                sink_key(record.key_hash, record.generation, sink), digests.get(sink.name)
            )
        except (
            OutputUnavailable,
            OutputUnsupported,
            InvalidInput,
        ):  # InvalidInput: a catalog that is not configured here
            found[sink.name] = Evidence.NOT_CHECKED
    return found
