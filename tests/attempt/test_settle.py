"""Who settles an attempt: this process or settle runs that it starts. The process may die after any step, and any reply may be lost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from attempt.owned import Lossy, Owner, owner
from harness.arrow_stage import table_of
from sparkonce import failpoints
from sparkonce.attempt.decide import HALF_MADE
from sparkonce.attempt.drive import Drive, Ended
from sparkonce.attempt.settle import Settler, Settles
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.settle import settle_run
from sparkonce.errors import LaunchRefused, LaunchUnavailable, OutputUnavailable, OutputUnsupported, StoreUnavailable
from sparkonce.failpoints import FailpointError
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.record import Assignment, GatewayAddress, HeldReason, Outcome, Result, StopWanted, Why


@dataclass
class Runs:
    """Settle runs that finish when they are created, unless they are set up to be lost."""

    made: Owner
    lost: int = 0
    """Number of next settle runs that end without a report."""
    half_made: int = 0
    """Number of next settle runs that get no driver, because their submission failed half-way."""
    sent: list[tuple[int, int]] = field(default_factory=list)
    """(attempt, run) pairs, in the order in which they were created."""
    told: list[Assignment] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    by_name: dict[str, ApplicationState] = field(default_factory=dict)

    async def settle(self, assignment: Assignment) -> ApplicationState:
        if self.errors:
            raise self.errors.pop(0)
        name = assignment.settle_run_name
        if name not in self.by_name:
            assert assignment.run is not None
            self.sent.append((assignment.attempt, assignment.run))
            self.told.append(assignment)
            since = 1.0 if self.half_made else None  # long ago by the cluster's clock
            self.by_name[name] = ApplicationState(
                name=name, uid=f"uid of {name}", nonce=assignment.nonce, phase=self._run(assignment), half_made=since
            )
        return self.by_name[name]

    def _run(self, assignment: Assignment) -> Phase:
        if self.half_made:
            self.half_made -= 1
            return Phase.STARTING
        if self.lost:
            self.lost -= 1
            return Phase.FAILED_KNOWN
        settle_run(assignment, self.made.granted.sinks(), DirectChannel(self.made.store, assignment))
        return Phase.SUCCEEDED

    async def settled(self, assignment: Assignment) -> ApplicationState | None:
        return self.by_name.get(assignment.settle_run_name)


@dataclass
class Scene:
    made: Owner
    runs: Runs
    settles: Settles = Settles.RUN
    patience: float = 0.0
    clock: float = 0.0

    def drive(self, store: Any = None) -> Drive:
        drive = self.made.drive(store)
        drive.settler = Settler(
            store=drive.store,
            owner="the owner",
            runs=self.runs,
            settles=self.settles,
            patience=self.patience,
            now=lambda: self.clock,
        )
        return drive

    def run(self, store: Any = None) -> Ended:
        ended = run(self.drive(store).run(self.made.granted.record, self.made.granted.claim))
        assert isinstance(ended, Ended), ended
        return ended

    def result(self, store: Any = None) -> Result:
        ended = self.run(store)
        assert ended.result is not None, ended.record
        return ended.result


def scene(folder: Path, *outputs: str, phase: Phase = Phase.SUCCEEDED, writes: bool = True, **spec: Any) -> Scene:
    """A scene whose attempts write three rows to each output, or nothing, and end in `phase`."""
    made = owner(folder, *(outputs or ("orders",)), **spec)

    def play(assignment: Assignment) -> Phase:
        job = made.job(assignment)
        for output in job.outputs if writes else ():
            job.write(table_of(1, 2, 3), output)
        return phase

    made.applications.plays = [play]
    return Scene(made, Runs(made))


def test_a_settle_run_reports_what_the_owner_would_have_found(tmp_path: Path) -> None:
    """The result equals that of an owner that reaches the outputs: it does not depend on who settled."""
    told = []
    for settles in (Settles.OPERATOR, Settles.RUN):
        one = scene(tmp_path / settles, "a", "b")
        one.settles = settles
        result = one.result()
        told.append((result.outcome, result.evidence, [(each.name, each.rows, each.commit) for each in result.outputs]))
        assert [each.digest for each in result.outputs] == [
            digest(tmp_path / settles / each.name) for each in result.outputs
        ]
        assert one.runs.sent == ([(1, 1)] if settles is Settles.RUN else [])
    assert told[0] == told[1]


def digest(table: Path) -> str:
    """The digest of the only slot."""
    (slot,) = table.glob("_idem/*-g1/*.json")
    return hashlib.sha256(slot.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "point",
    [name for name in failpoints.NAMES if name.startswith(("engine.settling", "engine.settle-run", "engine.stop"))],
)
def test_an_owner_that_dies_at_any_step_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Attempt 1 fails, attempt 2 writes, and the owner dies once at each point: one effect, and no number of a settle run is used twice."""
    one = scene(tmp_path)
    one.made.applications.plays.insert(0, Phase.FAILED_KNOWN)
    monkeypatch.setenv("SPARKONCE_FAILPOINTS", f"{point}=1*raise")
    failpoints.reset()
    try:
        with pytest.raises(FailpointError):
            one.run()
    finally:
        monkeypatch.undo()
        failpoints.reset()
    one.made.dies()

    result = one.result()

    assert (result.outcome, result.attempts) == (Outcome.SUCCEEDED, 2)
    assert one.made.granted.slots("orders") == [(1, "closed"), (2, "committed")]
    assert one.made.granted.rows("orders") == [1, 2, 3]
    assert len(one.runs.sent) == len(set(one.runs.sent))


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("verb", ["update", "reports", "intent", "finalize"])
def test_a_lost_reply_costs_another_look(tmp_path: Path, verb: str, lands: bool) -> None:
    """The drive raises StoreUnavailable; driven again it ends with one settle run and one effect."""
    one = scene(tmp_path)
    store: Any = Lossy(one.made.store, verb, lands=lands)
    drive = one.drive(store)
    ended: object = None
    for _ in range(4):
        try:
            ended = run(drive.run(one.made.granted.now(), one.made.granted.claim))
            break
        except StoreUnavailable:
            continue
    assert isinstance(ended, Ended) and ended.result is not None
    assert (one.runs.sent, one.made.granted.rows("orders")) == ([(1, 1)], [1, 2, 3])


def test_a_create_that_was_not_answered_is_made_again_under_its_number(tmp_path: Path) -> None:
    """After LaunchUnavailable it is unknown whether the settle run exists; the next pass creates it, or finds it, under the same number."""
    one = scene(tmp_path)
    one.runs.errors = [LaunchUnavailable("no answer")]
    with pytest.raises(LaunchUnavailable):
        one.run()
    assert one.made.granted.now().settle_runs == 1
    assert one.result().outcome is Outcome.SUCCEEDED
    assert one.runs.sent == [(1, 1)]


def test_a_settle_run_that_can_never_be_created_is_for_a_person(tmp_path: Path) -> None:
    """LaunchRefused: the key is Held(CannotSettle), with the launcher's sentence."""
    one = scene(tmp_path)
    one.runs.errors = [LaunchRefused("it does not fit into its environment")]
    record = one.run().record
    assert record.held is HeldReason.CANNOT_SETTLE
    assert "does not fit" in record.note


def test_three_lost_ones_are_for_a_person_and_two_are_not(tmp_path: Path) -> None:
    """After two lost settle runs the third reports; after three the key is held. The record has their number."""
    one = scene(tmp_path / "two")
    one.runs.lost = 2
    assert one.result().outcome is Outcome.SUCCEEDED
    assert one.runs.sent == [(1, 1), (1, 2), (1, 3)]
    other = scene(tmp_path / "three")
    other.runs.lost = 3
    record = other.run().record
    assert (record.held, record.settle_runs, other.runs.sent[-1]) == (HeldReason.CANNOT_SETTLE, 3, (1, 3))


def test_a_run_that_was_submitted_half_way_is_not_waited_for_long(tmp_path: Path) -> None:
    """Its driver may still come, so the process waits for two minutes since it first observed this; then it starts the next one."""
    one = scene(tmp_path)
    one.runs.half_made = 1
    drive = one.drive()

    async def later(_: float) -> None:
        assert one.runs.sent == [(1, 1)]
        one.clock += 10.0

    drive.wait = later
    ended = run(drive.run(one.made.granted.now(), one.made.granted.claim))
    assert isinstance(ended, Ended) and ended.result is not None
    assert (ended.result.outcome, one.runs.sent) == (Outcome.SUCCEEDED, [(1, 1), (1, 2)])
    assert HALF_MADE < one.clock <= HALF_MADE + 10.0


def test_each_attempt_counts_its_own(tmp_path: Path) -> None:
    """Lost settle runs of attempt 1 do not count against those of attempt 2."""
    one = scene(tmp_path)
    one.made.applications.plays.insert(0, Phase.FAILED_KNOWN)
    one.runs.lost = 2
    assert one.result().attempts == 2
    assert one.runs.sent == [(1, 1), (1, 2), (1, 3), (2, 1)]


def test_two_owners_send_one(tmp_path: Path) -> None:
    """A frozen owner thaws after its successor counted and started a settle run: its own write is refused, and it starts none."""
    one = scene(tmp_path)
    settling = one.drive()
    seen: list[int] = []
    late = Lossy(one.made.store, "update", times=0)
    write = settling.write

    async def frozen(*given: Any, **named: Any) -> Any:
        if len(seen) == 2:  # "noted" and "settling" are written; next it would count
            one.made.dies()
            assert one.result().outcome is Outcome.SUCCEEDED
        seen.append(1)
        return await write(*given, **named)

    settling.write = frozen  # type: ignore[method-assign]  # it freezes right before the write
    settling.store = late
    run(settling.run(one.made.granted.record, one.made.granted.claim))
    assert one.runs.sent == [(1, 1)]


@pytest.mark.parametrize("wish", [Why.CANCELLED, Why.SUPERSEDED, None])
def test_a_settle_run_is_told_why_the_attempt_ends(tmp_path: Path, wish: Why | None) -> None:
    """A cancellation request is passed on to the settle run, even if it came after the attempt ended by itself: a stream then ends at its
    last commit."""
    one = scene(tmp_path, phase=Phase.FAILED_KNOWN, writes=False)
    if wish is not None:
        run(one.made.store.request_stop(one.made.granted.now(), StopWanted(why=wish, by="ann")))
    one.run()
    assert one.runs.told[0].why is (wish or Why.EXITED)


# --- reports of drivers


def through_a_gateway(one: Scene) -> Drive:
    """An owner whose drivers reach a gateway and report their commits."""
    drive = one.drive()
    drive.gateway = GatewayAddress("https://gateway")
    return drive


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED_KNOWN])
def test_a_driver_that_reported_its_commits_needs_no_settle_run(tmp_path: Path, phase: Phase) -> None:
    """However the driver ended, the result is that of an owner that read the outputs, and no settle run was started."""
    one = scene(tmp_path, "a", "b", phase=phase)
    ended = run(through_a_gateway(one).run(one.made.granted.record, one.made.granted.claim))
    assert isinstance(ended, Ended) and ended.result is not None
    assert (ended.result.outcome, one.runs.sent) == (Outcome.SUCCEEDED, [])
    assert [(each.name, each.digest) for each in ended.result.outputs] == [
        (name, digest(tmp_path / name)) for name in ("a", "b")
    ]


def test_a_commit_that_was_not_reported_is_found_by_a_settle_run(tmp_path: Path) -> None:
    """The driver died between its commit and its report, or no gateway answered the report."""
    one = scene(tmp_path)
    drive = through_a_gateway(one)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DirectChannel, "report", lossy(DirectChannel.report))
        ended = run(drive.run(one.made.granted.record, one.made.granted.claim))
    assert isinstance(ended, Ended) and ended.result is not None
    assert (ended.result.outcome, one.runs.sent) == (Outcome.SUCCEEDED, [(1, 1)])
    assert one.made.granted.rows("orders") == [1, 2, 3]


def lossy(report: Callable[..., bool]) -> Callable[..., bool]:
    """An owner whose drivers reach no gateway, while settle runs do."""

    def lost(channel: DirectChannel, reporter: str, kind: str, body: Any, *, patience: float | None = None) -> bool:
        if kind != "verdict":
            raise StoreUnavailable("no answer")
        return report(channel, reporter, kind, body, patience=patience)

    return lost


# --- auto: this process settles as long as it can


def auto(folder: Path, **more: Any) -> Scene:
    one = scene(folder)
    one.settles, one.patience = Settles.AUTO, 30.0
    for name, value in more.items():
        setattr(one, name, value)
    return one


def test_a_table_that_stands_here_is_settled_here(tmp_path: Path) -> None:
    """The rows were written to a folder that this process sees, so no settle run is started."""
    one = auto(tmp_path)
    assert one.result().outcome is Outcome.SUCCEEDED
    assert one.runs.sent == []


def test_a_folder_without_a_table_proves_nothing_here(tmp_path: Path) -> None:
    """This process sees no rows; the attempt counts as failed only once a settle run reports the same."""
    one = auto(tmp_path)
    one.made.applications.plays = [Phase.SUCCEEDED]
    result = one.result()
    assert (result.outcome, one.runs.sent) == (Outcome.FAILED, [(1, 1)])


def silenced(one: Scene, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]) -> list[int]:
    """Makes this process's reads of outputs fail; returns a list with one entry per read."""
    asked: list[int] = []

    async def own(*_: Any, **__: Any) -> Any:
        asked.append(1)
        raise error()

    monkeypatch.setattr(Settler, "here", own)
    return asked


def test_an_output_that_does_not_answer_is_asked_again_before_anybody_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OutputUnavailable for as long as the process is patient, then a settle run; before it starts one, the process tries once more."""
    one = auto(tmp_path)
    asked = silenced(one, monkeypatch, lambda: OutputUnavailable("the store refuses these credentials"))
    drive = one.drive()
    for clock in (0.0, 10.0, 29.0):
        one.clock = clock
        with pytest.raises(OutputUnavailable):
            run(drive.run(one.made.granted.now(), one.made.granted.claim))
    assert one.runs.sent == []
    one.clock = 30.0
    ended = run(drive.run(one.made.granted.now(), one.made.granted.claim))
    assert isinstance(ended, Ended) and ended.result is not None
    assert (ended.result.outcome, one.runs.sent) == (Outcome.SUCCEEDED, [(1, 1)])
    assert len(asked) == 5, "three times, when it was counted, and when it was sent"


def test_what_cannot_be_read_here_at_all_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a library or a catalog is missing here, a settle run is started at once."""
    one = auto(tmp_path)
    silenced(one, monkeypatch, lambda: OutputUnsupported("pyiceberg is not installed"))
    assert one.result().outcome is Outcome.SUCCEEDED
    assert one.runs.sent == [(1, 1)]


def test_without_a_gateway_nobody_is_sent(tmp_path: Path) -> None:
    """A settle run could not report: the sentence says what to start, and the key is not held."""
    one = scene(tmp_path)
    drive = one.drive()
    drive.store_url = ""
    with pytest.raises(OutputUnavailable, match="--gateway-url"):
        run(drive.run(one.made.granted.now(), one.made.granted.claim))
    assert one.runs.sent == []


def test_without_anybody_to_send_the_owner_settles(tmp_path: Path) -> None:
    """Local mode has no settle runs: `sparkonce run` reaches what its jobs write."""
    one = scene(tmp_path)
    drive = one.drive()
    assert drive.settler is not None
    drive.settler = replace(drive.settler, runs=None)
    ended = run(drive.run(one.made.granted.record, one.made.granted.claim))
    assert isinstance(ended, Ended) and ended.result is not None
    assert (ended.result.outcome, one.runs.sent) == (Outcome.SUCCEEDED, [])
