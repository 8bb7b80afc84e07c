"""The same work as a plain SparkApplication, as users run it without sparkonce: `write.mode("append").parquet` and a restart policy.

It has the interface of a `Scene`, so that one fault hits both. The application's own state is used as the phase of a job. Its retries are
those that the Spark operator's webhook fills in for OnFailure (two of the run, two of the submission), with a short interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import parquet

from harness.kube_api import Json
from harness.node.scene import SHARED, Scene
from sparkonce.launch.kubernetes import JOBS, PODS, SPARK_APPLICATIONS

RETRIES = {
    "onFailureRetries": 2,
    "onFailureRetryInterval": 5,
    "onSubmissionFailureRetries": 2,
    "onSubmissionFailureRetryInterval": 5,
}
PHASES = {"COMPLETED": "Succeeded", "FAILED": "Failed"}
"""Final states, and the equivalent phases of a job."""


@dataclass
class OnceScene(Scene):
    """A Scene whose jobs are found by the work that they request, whatever the names of their objects."""

    resource = JOBS

    def objects(self, name: str) -> Sequence[Json]:
        """Objects that request this work, by name."""
        found = self.cluster.api.list(JOBS, self.namespace)
        mine = [each for each in found if _gate(name) in each["spec"]["template"]["spec"]["arguments"]]
        return sorted(mine, key=lambda each: str(each["metadata"]["name"]))

    def states(self, name: str) -> list[str]:
        """The state of each of these objects."""
        return [str((each.get("status") or {}).get("phase", "")) for each in self.objects(name)]

    def written(self, name: str) -> bool:
        """Whether some of its rows are in the table."""
        return bool(self.rows(name))

    def drivers(self, name: str) -> Sequence[Json]:
        """Driver pods for this work, in any state."""
        found = self.cluster.api.list(PODS, self.namespace, labels="spark-role=driver")
        return [each for each in found if _gate(name) in (each["spec"]["containers"][0].get("args") or [])]

    def edited(self, name: str) -> Json:
        """A patch that changes an argument of the work, without effect on what it writes."""
        spec = self.objects(name)[0]["spec"]["template"]["spec"]
        return {"spec": {"template": {"spec": {"arguments": _two_tasks(spec["arguments"])}}}}


@dataclass
class PlainScene(OnceScene):
    policy: str = "Never"

    resource = SPARK_APPLICATIONS

    def job(
        self,
        name: str,
        *,
        executors: int = 0,
        end: bool = False,
        rows: int = 100,
        failpoints: str = "",
        **spec: Any,
    ) -> Json:
        made = super().job(name, executors=executors, end=end, rows=rows)
        template = made["spec"]["template"]
        body: Json = {**template, "metadata": made["metadata"]}
        body["spec"]["mainApplicationFile"] = f"local://{SHARED}/jobs/appended.py"
        body["spec"]["arguments"] += ["--table", f"{SHARED}/lake/{name}"]
        body["spec"]["restartPolicy"] = {"type": self.policy, **(RETRIES if self.policy == "OnFailure" else {})}
        return body

    def status(self, name: str) -> Json:
        """The status in the form of a job's."""
        found = self.cluster.api.get(SPARK_APPLICATIONS, name, self.namespace) or {}
        status = found.get("status") or {}
        state = status.get("applicationState") or {}
        said = str(state.get("state", ""))
        return {"phase": PHASES.get(said, said), "message": state.get("errorMessage", "")}

    def objects(self, name: str) -> Sequence[Json]:
        return self.applications(name)

    def states(self, name: str) -> list[str]:
        found = ((each.get("status") or {}).get("applicationState") or {} for each in self.objects(name))
        return [str(each.get("state", "")) for each in found]

    def files(self, name: str) -> list[Path]:
        """Files that a reader of the folder sees."""
        return sorted((self.shared / "lake" / name).glob("part-*.parquet"))

    def written(self, name: str) -> bool:
        return bool(self.files(name))

    def rows(self, name: str) -> Counter[int]:
        counted: Counter[int] = Counter()
        for path in self.files(name):
            counted.update(int(each) for each in parquet.read_table(path).column("n").to_pylist() if each is not None)
        return counted

    def edited(self, name: str) -> Json:
        return {"spec": {"arguments": _two_tasks(self.objects(name)[0]["spec"]["arguments"])}}


def _gate(name: str) -> str:
    return f"{SHARED}/gates/{name}"


def _two_tasks(arguments: list[str]) -> list[str]:
    changed = list(arguments)
    changed[changed.index("--tasks") + 1] = "2"
    return changed
