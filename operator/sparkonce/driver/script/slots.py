# ruff: noqa: SLF001 - capturing is part of Job, in a module of its own
"""Parquet that a captured script writes to slot logs: staged while it runs, one commit per output when it has ended.

A script may append to a folder in a loop, overwrite it first, and read it in between. All of that is one effect: the rows are staged as
they come, into the files of one slot, and the script reads them back as if they were committed; readers see them when the script has ended
by itself. So an attempt that dies before leaves nothing, and the next one begins anew. One that dies between two commits is repeated as a
whole, with the tables as they were without it, and adds what is missing.

An overwrite drops what the script has written to the output before. An overwrite of partitions stands alone: the slot replaces those
partitions that it has rows of, and further rows would make them more.

Where the job has a Delta output, too, each slot log is committed with its one write, as that table's statements are. The next attempt skips
these, and would compute rows from the table as it is after all of them: what was read from it in between must be in its output by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput
from sparkonce.model.spec import WriteMode
from sparkonce.sink.protocol import SinkKey, Slot, WriteOptions
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.sink.slotlog.snapshot import StagedWrites, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkonce.driver.context import Job


class ScriptSlots:
    """The slot logs of one script."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._staged: dict[str, StagedWrites] = {}
        self._idle = set[str]()
        """Outputs to which the script has written, where nothing of it runs."""
        self._complete: bool | None = None

    def written(self, output: str) -> bool:
        """Whether the script has written to the output."""
        return output in self._staged or output in self._idle

    def table(self, output: str) -> Table:
        """The table as the script sees it: with the rows that it has written so far. What an earlier attempt committed there is left out
        until all is committed: this attempt computes the rows of other outputs from what that one saw."""
        sink, key = self._of(output)
        final = output in self._job._committed_slots or self._is_complete()
        return Table(sink.uri, without="" if final else str(key), staged=self._staged.get(output))

    def write(self, frame: DataFrame, output: str, mode: WriteMode, partition_by: Sequence[str]) -> None:
        """Stages the rows of one write; nothing runs if all outputs of the job are committed.

        Raises:
            InvalidInput: they cannot be in one slot with what was written before. Otherwise as `Job.write`.
        """
        if not self.written(output):
            self._job._sink(output)  # raises if it may not be written
        if self._is_complete():
            self._idle.add(output)
        else:
            self._stage(output, frame, WriteOptions(partition_by=tuple(partition_by), mode=mode))
        self._job._outputs_written.add(output)

    def _is_complete(self) -> bool:
        """Whether an earlier driver has committed all outputs. Looked up once."""
        if self._complete is None:
            sinks = self._job._sinks.values()
            self._complete = all(run(sink.find(self._job._key(sink))) is not None for sink in sinks)
        return self._complete

    def _of(self, output: str) -> tuple[SlotLogSink, SinkKey]:
        sink = self._job._sinks[output]
        assert isinstance(sink, SlotLogSink)  # the caller asks for no others
        return sink, self._job._key(sink)

    def _stage(self, output: str, frame: DataFrame, options: WriteOptions) -> None:
        job = self._job
        sink, key = self._of(output)
        before = None if options.mode is WriteMode.OVERWRITE else self._staged.get(output)
        if before is not None:
            _refuse_unlike(output, before.slot, options)
        job._expect_columns(sink, frame)
        failpoints.hit("driver.stage.before")
        if before is None:
            fingerprint = job.assignment.fingerprint
            staged = sink.stage_first(frame, key, job.attempt, fingerprint=fingerprint, options=options)
        else:
            staged = sink.stage_more(frame, key, before)
        failpoints.hit("driver.stage.after")
        self._staged[output] = staged

    def commit(self) -> None:
        """Commits what was written to each output. Iceberg tables that the script has written are to be published later: until then an
        attempt can be repeated from its beginning, on branches that begin anew. Raises: as `Job.write`."""
        for output in self._idle:
            self._job._committed(*self._of(output))
            self._job._report_progress()
        for output in list(self._staged):
            self._commit(output)

    def _commit(self, output: str) -> None:
        job = self._job
        sink, key = self._of(output)
        slot = run(sink.together(self._staged.pop(output)))
        job._expect_rows(sink, key, slot)
        job._written(sink, job._commit(sink, key, slot))
        job._report_progress()
        failpoints.hit("driver.write.done")


def _refuse_unlike(output: str, before: Slot, options: WriteOptions) -> None:
    dynamic = WriteMode.OVERWRITE_PARTITIONS
    if dynamic in (before.mode, options.mode):
        raise InvalidInput(
            f"the script overwrites partitions of output {output} and writes other rows there, too, and one job has one effect on it, so "
            "that all of them together would say which partitions are replaced; make it one write of all rows, or two jobs"
        )
    if (before.partition_by or ()) != options.partition_by:
        first, now = (", ".join(each) or "no column" for each in (before.partition_by or (), options.partition_by))
        raise InvalidInput(
            f"the script writes output {output} partitioned by {first} and then by {now}; partition all of its writes alike"
        )
