"""A streaming DataFrame without a JVM: exactly what Structured Streaming promises to `foreachBatch`.

A checkpoint is a folder: `metadata` holds the query's id, `offsets/<n>` the plan of a batch (written before the batch is delivered, never
changed), `commits/<n>` marks it as done. After a crash the last planned batch is delivered again, with the same rows. The source is a list
of lists of numbers, one list per batch. From the call of the function on, the code is that which Spark calls.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.arrow_stage import table_of
from sparkonce.driver import stream, stream_output
from sparkonce.sink.protocol import StreamSource


class Source:
    """Takes the place of a streaming DataFrame.

    endless: the query waits for more data when all is delivered. reads: the folder that it streams."""

    isStreaming = True  # noqa: N815 - Spark's name
    columns = ("n",)

    def __init__(
        self, batches: Sequence[Sequence[int]], *, endless: bool = False, reads: str = "file:/landing"
    ) -> None:
        self.batches, self.endless = batches, endless
        self.sources = (StreamSource(at=reads),)
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(applicationId="arrow"))
        field = {"name": "n", "type": "long", "nullable": True, "metadata": {}}
        self.schema = SimpleNamespace(json=lambda: json.dumps({"type": "struct", "fields": [field]}))
        self.queries: list[Query] = []

    @property
    def writeStream(self) -> Writer:  # noqa: N802 - Spark's name
        return Writer(self)


class Writer:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._function: Callable[[Any, int], None] = lambda *_: None
        self._checkpoint = Path()

    def foreachBatch(self, function: Callable[[Any, int], None]) -> Writer:  # noqa: N802 - Spark's name
        self._function = function
        return self

    def option(self, name: str, value: str) -> Writer:
        assert name == "checkpointLocation"
        self._checkpoint = folder_of(value)
        return self

    def trigger(self, **_: object) -> Writer:
        return self

    def start(self) -> Query:
        query = Query(self._source, self._function, self._checkpoint)
        self._source.queries.append(query)
        query.start()
        return query


class Query:
    """One run of a query, in its own thread."""

    def __init__(self, source: Source, function: Callable[[Any, int], None], checkpoint: Path) -> None:
        self._source, self._function, self._checkpoint = source, function, checkpoint
        self._stop, self._error = threading.Event(), list[BaseException]()
        once(checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}))
        self.id = json.loads((checkpoint / "metadata").read_text())["id"]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's name
        self._thread.join(timeout)
        if self._error:
            raise RuntimeError(f"the query ended with {self._error[0]}")
        return not self._thread.is_alive()

    def _run(self) -> None:
        done = [int(path.name) for path in (self._checkpoint / "commits").glob("[0-9]*")]  # not temporary files
        try:
            for number in range(max(done, default=-1) + 1, len(self._source.batches)):
                if self._stop.is_set():
                    return
                rows = self._source.batches[number]
                once(self._checkpoint / "offsets" / str(number), json.dumps([number, *rows, str(uuid.uuid4())]))
                planned = json.loads((self._checkpoint / "offsets" / str(number)).read_text())[1:-1]
                self._function(table_of(*planned), number)
                once(self._checkpoint / "commits" / str(number), "")
            if self._source.endless:
                self._stop.wait()
        except BaseException as error:  # as in Spark: a batch's error is the query's
            self._error.append(error)


def once(path: Path, text: str) -> None:
    """Creates the complete file unless it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    temporary.write_text(text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def folder_of(checkpoint: str) -> Path:
    return Path(checkpoint.removeprefix("file://"))


def plan_of(_: object, checkpoint: str, number: int) -> str:
    return hashlib.sha256((folder_of(checkpoint) / "offsets" / str(number)).read_bytes()).hexdigest()


def done_in(_: object, checkpoint: str) -> int | None:
    return max((int(done.name) for done in (folder_of(checkpoint) / "commits").glob("[0-9]*")), default=None)


def installed(patch: pytest.MonkeyPatch) -> None:
    """Makes streams read these checkpoints instead of Spark's from here on."""
    patch.setattr(stream, "plan_of", plan_of)
    patch.setattr(stream, "done_in", done_in)
    patch.setattr(stream_output, "sources_of", lambda source: source.sources)
    patch.setattr(stream, "stopped", lambda _: False)
