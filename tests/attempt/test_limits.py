"""Limits of what an operator does at outputs on behalf of tenants: it touches no output out of bounds, and still reads recorded jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import getmembers, isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attempt.test_settle import scene
from harness.jobs import job
from harness.slots import committing
from sparkonce.attempt.decide import Policy
from sparkonce.attempt.drive import DrivenJob, Ended
from sparkonce.attempt.limits import FRESH, SEVERAL, OutputLimits
from sparkonce.attempt.settle import Settles, out_of_reach, refuse_links
from sparkonce.blocking import run
from sparkonce.controller.desired import Desired
from sparkonce.errors import OutputUnavailable, OutputUnsupported
from sparkonce.model.record import Outcome
from sparkonce.sink.allowed import AllowedOutputs
from sparkonce.sink.open import Absent
from sparkonce.sink.protocol import Evidence, Sink, SinkKey

KEY = SinkKey(key_hash="0" * 64, output="rows", generation=1)


def desired(path: object, namespace: str = "team-a") -> Desired:
    body = job("load", key="load", outputs=[{"name": "rows", "slotLog": {"path": str(path)}}])
    body["metadata"] |= {"namespace": namespace, "uid": "u", "generation": 1}
    return Desired.of(body, realm=namespace)


def driven(wanted: Desired) -> DrivenJob:
    return DrivenJob(spec=wanted.spec_body(), policy=Policy.of(wanted.job.spec), sinks=wanted.sinks)


def refusal(made: OutputLimits, wanted: Desired) -> str:
    return made.refusal(wanted.job, wanted.sinks, wanted.ref.namespace)


def limits(
    settles: Settles = Settles.AUTO, *prefixes: str, namespaces: list[str] | None = None, **more: Any
) -> OutputLimits:
    listed = AllowedOutputs.of([{"namespace": "team-a", "prefixes": list(prefixes)}]) if prefixes else None

    async def labels(_: str) -> Mapping[str, str] | None:
        raise AssertionError("a list without selectors needs no labels")

    return OutputLimits.for_(settles, listed, namespaces=namespaces, **{"labels": labels} | more)


@pytest.mark.parametrize(
    ("settles", "namespaces", "touches"),
    [
        (Settles.AUTO, None, False),
        (Settles.AUTO, ["a", "b"], False),
        (Settles.AUTO, ["a"], True),
        (Settles.AUTO, ["a", "a"], True),
        (Settles.OPERATOR, None, True),
        (Settles.OPERATOR, ["a", "b"], True),
        (Settles.RUN, ["a"], False),
    ],
)
def test_without_a_list_an_operator_of_several_namespaces_touches_nothing(
    settles: Settles, namespaces: list[str] | None, touches: bool, tmp_path: Path
) -> None:
    """Without a list of allowed outputs an operator of several namespaces settles nothing itself, except with `--settle operator`, by which
    the administrator declares its credentials to be meant for every tenant."""
    made = limits(settles, namespaces=namespaces)
    (sink,) = made.limited(driven(desired(tmp_path))).sinks
    assert isinstance(sink, Absent) is not touches
    assert refusal(made, desired(tmp_path)) == ""  # drivers write with their own credentials
    if settles is Settles.AUTO and not touches:
        assert made.nothing == SEVERAL
        assert out_of_reach([sink], settles) == SEVERAL


@pytest.mark.parametrize("settles", list(Settles))
def test_what_is_out_of_bounds_is_refused_and_never_touched(settles: Settles, tmp_path: Path) -> None:
    """An output that is not on the list is refused even with `--settle operator`. Every method of its sink raises, except the probe, which
    says "not checked"."""
    made = limits(settles, f"{tmp_path}/team-a")
    assert refusal(made, desired(tmp_path / "team-a" / "t")) == ""
    wanted = desired(tmp_path / "team-b" / "t")
    assert refusal(made, wanted) == (
        f"spec.outputs[0].slotLog.path: {(tmp_path / 'team-b' / 't').as_uri()} is not among the outputs allowed for namespace team-a "
        f"({tmp_path}/team-a); write to one of them, or have the operator's administrator add it to outputs.allowed"
    )
    (sink,) = made.limited(driven(wanted)).sinks
    assert (sink.name, sink.kind, sink.uri) == ("rows", "slotLog", (tmp_path / "team-b" / "t").as_uri())
    assert out_of_reach([sink], settles)
    assert run(sink.probe(KEY, None)) is Evidence.NOT_CHECKED
    slot = committing(KEY, 1)
    frame: Any = None
    calls: dict[str, Callable[[], object]] = {
        "check": lambda: run(sink.check()),
        "fence": lambda: run(sink.fence(KEY, 2, fingerprint="f", by="me")),
        "stage": lambda: sink.stage(frame, KEY, 1, fingerprint="f"),
        "commit": lambda: run(sink.commit(KEY, slot)),
        "abort": lambda: run(sink.abort(KEY, slot)),
        "discard": lambda: run(sink.discard(KEY, slot)),
        "sweep": lambda: run(sink.sweep(KEY)),
        "find": lambda: run(sink.find(KEY)),
        "inventory": lambda: run(sink.inventory()),
    }
    assert {*calls, "probe"} == {name for name, _ in getmembers(Sink, isfunction) if not name.startswith("_")}
    for call in calls.values():
        with pytest.raises(OutputUnsupported):
            call()
    assert list(tmp_path.iterdir()) == []


def test_labels_are_read_once_in_a_while_and_count() -> None:
    """When a label is removed its outputs are no longer allowed, from the next look-up after 30 seconds; before the first look-up nothing
    is allowed."""
    clock, known, asked = [0.0], {"team-a": {"tier": "gold"}}, []

    async def labels(namespace: str) -> Mapping[str, str] | None:
        asked.append(namespace)
        return known.get(namespace)

    listed = AllowedOutputs.of([{"namespaceSelector": {"matchLabels": {"tier": "gold"}}, "prefixes": ["/data"]}])
    made = OutputLimits(allowed=listed, labels=labels, now=lambda: clock[0])
    wanted = desired("/data/t")
    assert refusal(made, wanted)
    run(made.look_up({"team-a"}))
    assert not refusal(made, wanted)
    known["team-a"] = {}
    before = made.version
    run(made.look_up({"team-a"}))
    assert not refusal(made, wanted)
    clock[0] += FRESH
    run(made.look_up({"team-a"}))
    assert refusal(made, wanted)
    assert made.version > before  # which makes running drives describe their jobs again
    assert asked == ["team-a"] * 2


@pytest.mark.parametrize("where", ["", "_idem", "_delta_log", "_sparkonce"])
def test_a_link_that_was_made_since_is_not_followed(where: str, tmp_path: Path) -> None:
    """A tenant replaces its table, or a folder in it, by a link into another team's: settling there is refused with one sentence."""
    own, other = tmp_path / "team-a" / "t", tmp_path / "team-b" / "t"
    other.mkdir(parents=True)
    own.parent.mkdir()
    sinks = desired(own).sinks
    refuse_links(sinks)
    (own / where).parent.mkdir(exist_ok=True)
    (own / where).symlink_to(other)
    with pytest.raises(OutputUnavailable, match=r"has become a symbolic link.*; put the folder itself there"):
        refuse_links(sinks)
    (own / where).unlink()
    (own / where).mkdir()
    refuse_links(sinks)


@pytest.mark.parametrize("listed", [True, False])
def test_without_a_gateway_the_remedy_is_the_list(listed: bool, tmp_path: Path) -> None:
    """Without a gateway a settle run could not report. Each sentence names a remedy that fits, and after it this operator settles by
    itself."""
    one = scene(tmp_path)
    one.settles = Settles.AUTO
    drive = one.drive()
    drive.store_url, described = "", drive.describe
    made = limits(Settles.AUTO, *(["/elsewhere"] if listed else []), namespaces=["team-a", "team-b"])
    drive.describe = lambda record, spec: made.limited(described(record, spec))
    remedy = "add the output to that list" if listed else "give it that list"
    with pytest.raises(
        OutputUnavailable, match=rf"there is no gateway: start the operator with --gateway-url, or {remedy}$"
    ):
        run(drive.run(one.made.granted.now(), one.made.granted.claim))
    assert one.runs.sent == []
    own = AllowedOutputs.of([{"prefixes": [str(tmp_path)]}])
    made = OutputLimits.for_(Settles.AUTO, own, namespaces=["team-a", "team-b"], labels=made.labels)
    drive = one.drive()
    drive.store_url, drive.describe = "", lambda record, spec: made.limited(described(record, spec))
    ended = run(drive.run(one.made.granted.now(), one.made.granted.claim))
    assert isinstance(ended, Ended) and ended.result is not None
    assert (ended.result.outcome, one.runs.sent) == (Outcome.SUCCEEDED, [])


def test_a_folder_that_cannot_be_looked_at_is_no_answer() -> None:
    """The file system's error is not an error of the operator."""
    sink: Any = SimpleNamespace(name="orders", uri=f"file:///{'x' * 300}")
    with pytest.raises(
        OutputUnavailable, match=r"output orders: the folder /x+ cannot be looked at: File name too long"
    ):
        refuse_links([sink])
