"""The twenty mistakes made with plain SparkApplications: what the Spark operator says of them, and what the corrected manifest does."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from cluster.test_mistakes import JOB, LOOK, NAMED
from harness.kube_api import ApiError
from harness.node.cluster import RealCluster
from harness.node.mistakes import MISTAKES, Mistake, ended
from harness.node.plain import PlainScene
from harness.node.release import Release
from harness.node.scene import remove, scene_of

AT_ONCE = 10
"""Most of them are waited for in vain."""
CORRECTED = 120.0
"""Seconds after which a corrected manifest is not going to run; its driver takes twenty."""
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.soak]  # it shows the Spark operator, not us


SILENT = frozenset({
    "wrong image", "private image", "missing claim", "missing ConfigMap", "missing Secret", "no such node", "exception", "deadline",
    "wrong main class", "suspended",
})  # fmt: skip
"""Mistakes of whose cause the application's status says nothing (but that it is suspended). Whether a corrected manifest then runs is the
Spark operator's race with itself, and is only printed."""


@dataclass
class Case:
    name: str
    mistake: Mistake
    scene: PlainScene
    state: str = ""
    said: str = ""

    def send(self) -> None:
        self.mistake.before(self.scene)
        body = self.mistake.mistaken(self.scene.job(JOB))
        if self.mistake.job.get("suspend"):
            body["spec"]["suspend"] = True
        self.apply(body)

    def apply(self, body: dict[str, object]) -> None:
        try:
            self.scene.cluster.api.apply(body)
        except ApiError as refusal:
            self.state, self.said = str(refusal.code), str(refusal)

    def look(self) -> bool:
        """Reads its status; whether that has the cause."""
        if not self.state.isdigit():
            self.state = "".join(self.scene.states(JOB))
            self.said = str(self.scene.status(JOB).get("message", ""))
        return bool(re.search(self.mistake.cause, self.said))

    def correct(self) -> None:
        self.mistake.after(self.scene)
        if self.name == "namespace ending":
            ended(self.scene)
            self.scene = plain(self.scene.cluster)
        self.scene.open(JOB)
        self.state = ""
        body = self.scene.job(JOB)
        if self.name == "refused by a policy":
            body["spec"]["driver"]["labels"] = {"team": "flights"}
        self.apply(body)


def plain(cluster: RealCluster) -> PlainScene:
    made = scene_of(cluster)
    return PlainScene(made.cluster, made.namespace)


def within(seconds: float, fact: Callable[[], bool]) -> None:
    """Waits until the fact holds, and no longer than this: some facts never will."""
    until = time.monotonic() + seconds
    while not fact() and time.monotonic() < until:
        time.sleep(LOOK)  # between two reads of the API server and the table


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, len(MISTAKES), AT_ONCE))
@pytest.mark.usefixtures("registry")
def test_what_the_spark_operator_says_of_each_mistake(
    cluster: RealCluster, release: Release, first: int, say: Callable[[str], None]
) -> None:
    """The table of docs/mistakes.md: the state of the application, whether it names the cause, and what a corrected manifest does."""
    release.until_ready()
    names = list(MISTAKES)[first : first + AT_ONCE]
    cases = [Case(name, MISTAKES[name], plain(cluster)) for name in names]
    try:
        for each in cases:
            each.send()
        within(NAMED, lambda: all(each.look() for each in cases))
        causes = {each.name: each.look() for each in cases}
        named = {each.name: (each.state, causes[each.name], each.said) for each in cases}
        for each in cases:
            assert not each.scene.rows(JOB)
            each.correct()
        within(CORRECTED, lambda: all(each.scene.rows(JOB) for each in cases))
        for each in cases:
            state, cause, said = named[each.name]
            rows = each.scene.rows(JOB)
            assert max(rows.values(), default=0) <= 1
            each.look()
            say(
                f"{each.name}: {state} {'names' if cause else 'does not name'} it: {said.strip()[:200]!r} | {len(rows)} rows, {each.state}"
            )
    finally:
        for each in cases:
            remove(each.scene)
    assert {name for name, cause in causes.items() if not cause} == SILENT.intersection(names)
