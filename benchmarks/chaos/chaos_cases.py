"""Lists the faults of `make chaos`: each has a name, a sentence that describes it, and a strike per arm.

The names appear in the table and in its file of runs: a renamed fault loses its earlier runs. "B" and a letter name the group in section 2
of the baseline's measurements to which a case belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import chaos_faults as both
from chaos_faults import Blow
from chaos_runs import TOGETHER_WITH, Arm
from harness.node import faults as ours
from harness.node.faults import COMMIT, SILENT

Strike = Callable[[Blow], None]
ANSWERED = TOGETHER_WITH.join(("Mismatch", "Succeeded"))
"""Final states of the edited object, which no longer matches its key, and of the one with the original manifest, which gets the result."""


@dataclass(frozen=True, kw_only=True)
class Case:
    what: str
    ours: Strike | None = None
    plain: Strike | None = None
    job: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for the scene's `job`."""
    at_once: bool = False
    """Strikes as soon as the job is submitted, otherwise when its driver waits at the gate."""
    sends: bool = False
    """Whether the strike itself submits the job."""
    alone: bool = False
    """Whether it hits everything on the cluster, so that no other run may happen at the same time."""
    together: bool = False
    """Whether one strike hits a job of each arm at once."""
    expected: str = "Succeeded"
    """The required final states of our objects."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        plain = (Arm.NEVER, Arm.ON_FAILURE) if self.plain else ()
        return (Arm.SPARKONCE, *plain) if self.ours else plain

    def strike(self, arm: Arm) -> Strike:
        found = self.ours if arm is Arm.SPARKONCE else self.plain
        assert found is not None, f"this fault has no arm {arm}"
        return found


def every_arm(strike: Strike, what: str, **more: Any) -> Case:
    return Case(what=what, ours=strike, plain=strike, **more)


CASES: Mapping[str, Case] = {
    "none": every_arm(both.none, "No fault: the baseline for all times in the table."),
    # --- the driver and its executors
    "driver deleted before its write": every_arm(
        ours.driver_deleted_before, "`kubectl delete pod --force` of the driver, which waits at its gate."
    ),
    "driver deleted during its write": Case(
        what="The same; ours is frozen between its files and its commit, a plain one is writing.",
        ours=ours.driver_deleted_during,
        plain=both.plain_deleted_during,
        job={"failpoints": f"{COMMIT}.before=stop"},
    ),
    "driver deleted at its commit": Case(
        what="The same, frozen right after its commit, before it has reported it.",
        ours=ours.driver_deleted_during,
        job={"failpoints": f"{COMMIT}.after=stop"},
    ),
    "driver deleted after its write": every_arm(
        ours.driver_deleted_after, "The same, after its write and before its end (Bb).", job={"end": True}
    ),
    "driver hung": Case(
        what="SIGSTOP of all its processes: ours until its successor began, a plain one for 30 s.",
        ours=ours.driver_hung,
        plain=both.plain_hung,
        job=SILENT,
    ),
    "driver cut off": Case(
        what="Its network is down: ours until its successor began, a plain one for 30 s.",
        ours=ours.driver_cut_off,
        plain=both.plain_cut_off,
        job=SILENT,
    ),
    "executor deleted": every_arm(ours.executor_deleted, "Its only executor, by force.", job={"executors": 1}),
    # --- the Spark operator
    "Spark operator killed at a random time": every_arm(
        both.killed_some_time,
        "SIGKILL of it and its spark-submit 1 to 4 s after the create; it is started at once (Ba).",
        at_once=True,
        alone=True,
    ),
    "Spark operator killed before the ConfigMaps": every_arm(
        both.killed_before_config,
        "The same when the driver pod exists, and the ConfigMaps that it mounts do not (Ba).",
        at_once=True,
        alone=True,
    ),
    "Spark operator killed after the ConfigMaps": every_arm(
        both.killed_with_config,
        "The same when both exist, before the submission is written down (Ba).",
        at_once=True,
        alone=True,
    ),
    "Spark operator killed, quick writer": every_arm(
        both.killed_while_it_writes,
        "The same, and the job writes first thing instead of at its gate (Ba).",
        at_once=True,
        alone=True,
    ),
    "Spark operator killed, not its spark-submit": every_arm(
        both.controller_killed,
        "The controller's process alone, 1 to 3 s after the create (Ba).",
        at_once=True,
        alone=True,
    ),
    # --- the client
    "create sent twice, generateName": every_arm(
        both.sent_twice_generated,
        "The answer to the create is lost, and it is sent again; the server makes the names (Bc).",
        sends=True,
        expected=TOGETHER_WITH.join(("Succeeded", "Succeeded")),
    ),
    "create sent twice, fixed name": every_arm(
        both.sent_twice_named, "The same under one name: the second create is refused (Bc).", sends=True
    ),
    "label 1.5 s after create": every_arm(
        both.labelled_at_submission,
        "A label is patched while spark-submit works: on the application, and on the job, too (Bd).",
        at_once=True,
    ),
    "label 1.5 s after create, late writer": every_arm(
        both.labelled_and_late,
        "The same; the driver writes once FAILED was said, or 10 s after it began: FAILED before the effect (Bd).",
        at_once=True,
    ),
    "label while running": every_arm(both.labelled_while_running, "A label is patched at the gate (Bd)."),
    "label when done": every_arm(both.labelled_when_done, "A label is patched after the final state (Bd)."),
    "argument while running": every_arm(
        both.argument_while_running,
        "An argument is changed after the write, before the end (Bd). Ours says Mismatch, and the first manifest gets the result.",
        job={"end": True},
        expected=ANSWERED,
    ),
    "argument of the application while running": Case(
        what="The same edit, made to the SparkApplication of a job (for a plain one see the row above).",
        ours=both.argument_behind_our_back,
        job={"end": True},
    ),
    "argument when done": every_arm(
        both.argument_when_done, "An argument is changed after the final state (Bd).", expected=ANSWERED
    ),
    # --- the platform: API server, kubelet, all processes
    "API server away at submission": every_arm(
        both.api_away_at_submission,
        "SIGKILL 1 s after the application was made, and 30 s without one (Be).",
        at_once=True,
        alone=True,
        together=True,
    ),
    "API server away while running": every_arm(
        both.api_away_while_running, "The same; the driver writes and ends meanwhile (Be).", alone=True, together=True
    ),
    "kubelet away for 5 s": every_arm(
        both.kubelet_away,
        "SIGKILL; the driver writes and ends meanwhile, the node stays Ready (Be).",
        alone=True,
        together=True,
    ),
    "kubelet stopped until eviction": every_arm(
        ours.kubelet_stopped,
        "Until the node is NotReady and its pods are evicted; then it starts.",
        alone=True,
        together=True,
    ),
    "kubelet stopped, driver deleted": every_arm(
        both.zombie,
        "The pod is deleted by force meanwhile: the driver writes while its successor waits (Be).",
        alone=True,
        together=True,
    ),
    "everything killed": every_arm(
        ours.everything_killed,
        "Every part of the cluster and every container, at once; all are started again.",
        alone=True,
        together=True,
    ),
    # --- parts that only sparkonce has
    "operators killed": Case(what="SIGKILL of both of ours.", ours=ours.operator_killed, alone=True),
    "operator frozen": Case(
        what="SIGSTOP of the one that owns the key, past its lease, until the job is done.",
        ours=ours.operator_frozen,
        alone=True,
    ),
    "operators rolled": Case(what="`kubectl rollout restart` of ours.", ours=both.rolled, alone=True),
    "ledger killed": Case(what="SIGKILL of our etcd.", ours=ours.etcd_killed, alone=True),
    "gateways gone": Case(
        what="None of them for three times the heartbeat's timeout.", ours=ours.gateways_gone, job=SILENT, alone=True
    ),
}
