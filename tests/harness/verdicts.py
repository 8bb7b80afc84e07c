"""Asks kstatus and Argo CD about an IdempotentJob: the real library, and our health check in the real interpreter.

`Recorder` keeps every version of every object that the API server served; `judged` runs the program `gomodules/verdicts` over them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.apiserver import Cluster
from harness.binaries import VERDICTS, binary, or_skip
from harness.patience import completed
from harness.witness import Witness

Json = dict[str, Any]

HEALTH = Path(__file__).resolve().parents[2] / "charts" / "sparkonce" / "files" / "argocd-health.lua"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdicts about one version of one object."""

    of: Json
    kstatus: str
    kstatus_message: str
    argocd: str
    argocd_message: str

    @property
    def status(self) -> Json:
        found = self.of.get("status") or {}
        assert isinstance(found, dict)
        return found

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))


def judged(objects: Sequence[Json]) -> list[Verdict]:
    """The verdicts about these objects, in their order. Skips the test if the program cannot be had."""
    objects = list(objects)  # a recorder may go on adding
    program = or_skip(binary, VERDICTS)
    lines = "".join(json.dumps(each) + "\n" for each in objects)
    done = completed([program, HEALTH], 30, given=lines)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        Verdict(
            of=of,
            kstatus=each["kstatus"]["status"],
            kstatus_message=each["kstatus"]["message"],
            argocd=each["argocd"]["status"],
            argocd_message=each["argocd"]["message"],
        )
        for of, each in zip(objects, said, strict=True)
    ]


class Recorder(Witness):
    """A witness that keeps whole objects."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace)
        self.versions: dict[str, list[Json]] = {}
        """Object name -> every version, in order."""

    def _job(self, found: Json) -> None:
        super()._job(found)
        self.versions.setdefault(found["metadata"]["name"], []).append(found)
