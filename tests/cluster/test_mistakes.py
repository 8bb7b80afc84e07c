"""Twenty mistakes of everyday life on a real cluster: the status names the cause, and the corrected job runs without an administrator."""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from harness.eventually import assert_eventually
from harness.kube_api import ApiError
from harness.node.cluster import RealCluster
from harness.node.mistakes import MISTAKES, Mistake, ended
from harness.node.release import Release
from harness.node.scene import LONG, Scene, remove, scene_of
from sparkonce.launch.kubernetes import JOBS

pytestmark = [pytest.mark.slow, pytest.mark.spark]

JOB = "load"
AT_ONCE = 5
"""Mistakes that are made side by side: each spark-submit and each driver takes seconds of a core."""
NAMED = 90.0
"""Seconds until the status names the cause: three times what is promised, since two cores carry all."""
LOOK = 0.5


@dataclass
class Case:
    name: str
    mistake: Mistake
    scene: Scene
    began: float = 0.0
    said: str = ""
    after: float | None = None
    """Seconds from its apply to the sentence."""
    remedies: list[str] = field(default_factory=list)

    def send(self) -> None:
        """Applies the mistaken job. An API server that refuses it has named the cause."""
        self.mistake.before(self.scene)
        self.began = time.monotonic()
        try:
            self.scene.cluster.api.apply(self.mistake.mistaken(self.scene.job(JOB)))
        except ApiError as refusal:
            self.hears(str(refusal))

    def hears(self, said: str) -> None:
        self.said = said
        if self.after is None and re.search(self.mistake.cause, said):
            self.after = time.monotonic() - self.began

    def named(self) -> bool:
        if self.after is None:
            self.hears(str(self.scene.status(JOB).get("message", "")))
        return self.after is not None

    def correct(self) -> None:
        """Applies the right job. A mismatch or a failure may need more, which the status says, where `Mistake.asks`."""
        self.mistake.after(self.scene)
        if self.name == "namespace ending":
            ended(self.scene)
            self.scene = scene_of(self.scene.cluster)
            self.remedies.append("another namespace")
        api = self.scene.cluster.api
        self.scene.open(JOB)
        api.apply(self.right())

    def right(self) -> dict[str, object]:
        made = self.scene.job(JOB)
        if self.name == "refused by a policy":
            made["spec"]["template"]["spec"]["driver"]["labels"] = {"team": "flights"}
        return made

    def succeeded(self) -> bool:
        """Whether it is done; does what the status asks of its author."""
        status = self.scene.status(JOB)
        phase, current = status.get("phase"), status.get("observedGeneration")
        api, known = self.scene.cluster.api, self.scene.cluster.api.get(JOBS, JOB, self.scene.namespace)
        if known is None or current != known["metadata"]["generation"]:
            return False
        if phase == "Mismatch" and status.get("onMismatch") and "Supersede" not in self.remedies:
            self.remedies.append("Supersede")
            api.patch(JOBS, JOB, {"spec": {"onMismatch": "Supersede"}}, namespace=self.scene.namespace)
        if phase in ("Failed", "Cancelled") and "rerun" not in self.remedies:
            self.remedies.append("rerun")
            asked = {"metadata": {"annotations": {"sparkonce.dev/rerun": "corrected"}}}
            api.patch(JOBS, JOB, asked, namespace=self.scene.namespace)
        assert phase != "Held", status.get("message")
        return phase == "Succeeded"


@pytest.mark.timeout(600)  # ten drivers on two cores
@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(AT_ONCE, len(MISTAKES), AT_ONCE))],
)
@pytest.mark.usefixtures("registry")
def test_each_mistake_is_named_and_its_correction_runs(
    cluster: RealCluster, release: Release, first: int, say: Callable[[str], None]
) -> None:
    """No effect before the correction, every row once after it, and no verdict was asked of an administrator."""
    release.until_ready()
    names = list(MISTAKES)[first : first + AT_ONCE]
    cases = [Case(name, MISTAKES[name], scene_of(cluster)) for name in names]
    try:
        play(cases, say)
    finally:
        for each in cases:
            remove(each.scene)


def play(cases: Sequence[Case], say: Callable[[str], None]) -> None:
    for each in cases:
        with zipfile.ZipFile(each.scene.shared / "jobs" / "empty.jar", "w") as jar:
            jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
        each.send()

    def named() -> None:
        silent = [each for each in cases if not each.named()]
        assert not silent, "; ".join(f"{each.name}: {each.said!r}" for each in silent)

    def succeeded() -> None:
        waiting = [each for each in cases if not each.succeeded()]
        assert not waiting, "; ".join(f"{each.name}: {each.scene.status(JOB).get('message')!r}" for each in waiting)

    assert_eventually(named, NAMED, interval=LOOK)
    for each in cases:
        assert not each.scene.rows(JOB)
        each.correct()
    assert_eventually(succeeded, LONG, interval=LOOK)
    for each in cases:
        each.scene.once(JOB)
        assert each.after is not None
        assert each.mistake.asks or not {"Supersede", "rerun"} & set(each.remedies), (each.name, each.remedies)
        how = ", ".join(["edit", *each.remedies])
        say(f"{each.name}: {each.after:.0f} s: {each.said.strip()[:300]} | {how}")
