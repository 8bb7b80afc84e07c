"""Which changes of an object make its key due: edits, deletion and the annotation that asks for a rerun, not its status."""

from __future__ import annotations

from typing import Any, cast

import pytest

from harness.jobs import job
from sparkonce.attempt.rerun import ANNOTATION
from sparkonce.controller.desired import Desired, DesiredReader
from sparkonce.controller.objects import ObjectView
from sparkonce.kube.events import EventRecorder
from sparkonce.kube.jobs import KnownJobs, Pages
from sparkonce.launch.kubernetes import Kubernetes

Json = dict[str, Any]


def body(version: int, *, generation: int = 1, status: Json | None = None, **metadata: Any) -> Json:
    made = job("job", key="key")
    identity = {"namespace": "etl", "uid": "uid-1", "generation": generation, "resourceVersion": str(version)}
    return {**made, "metadata": {**made["metadata"], **identity, **metadata}, "status": status or {}}


@pytest.mark.parametrize(
    ("later", "due"),
    [
        (body(2, status={"phase": "Running"}), False),
        (body(2, annotations={"team": "air"}), False),
        (body(2, generation=2), True),
        (body(2, deletionTimestamp="2026-11-25T12:00:00Z"), True),
        (body(2, annotations={ANNOTATION: "again"}), True),
    ],
)
def test_what_makes_a_key_due(later: Json, due: bool) -> None:
    """Edits, deletion and the rerun annotation make a key due, a status does not. Annotations count separately because they leave
    metadata.generation as it is."""
    found: list[bool] = []
    none = cast("Any", None)
    known = KnownJobs(
        cast("Kubernetes", none),
        cast("Pages", none),
        DesiredReader(),
        namespaces=None,
        recorder=cast("EventRecorder", none),
        listed=lambda: True,
        on_change=lambda _, asks: found.append(asks),
    )
    known.told(None, body(1))
    known.told(None, later)
    assert found == [True, due]


def test_a_status_is_written_for_the_annotation_that_was_read() -> None:
    """A status is not written to an object that was annotated after it was read, nor to one that was edited."""
    reader = DesiredReader()
    read = reader.read(body(1))
    assert isinstance(read, Desired)
    seen = ObjectView.of(body(1), read)
    assert seen.reread(body(2, status={"phase": "Running"})) is not None
    assert seen.reread(body(2, annotations={ANNOTATION: "again"})) is None
