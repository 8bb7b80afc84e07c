"""Measures whether a service's memory stays flat over many keys: resident bytes at a quarter of them and at the end.

Each ledger gets a process of its own (http_key_process.py), which answers new keys through the middleware: in SQLite and in memory with
short lifetimes, and in memory at its ceiling, where the newest keys are refused. The first quarter fills what is kept in any case (live
keys, caches, the heap), so growth is the slope of a straight line through the samples of the last three quarters, in bytes for each key.

One run of each: pairs would compare a process with itself. A leak of one small object for each key would be 50 bytes a key or more; the
heap alone moves by a megabyte at a time, 13 bytes a key at 100,000 keys and 1 at 1,000,000.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression
from typing import Any

from measure import Row, WrongEffect

LEDGERS = {"sqlite": "sqlite", "memory": "memory", "full": "memory at its ceiling"}
MEGABYTE = 1 << 20


@dataclass
class HttpKeys:
    """The part `http-keys`; `say` gets a line per quarter of the keys of each process."""

    scratch: Path
    keys: int
    say: Callable[[str], None]
    samples: dict[str, list[dict[str, int]]] = field(default_factory=dict)

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a request was not answered as it should be."""
        rows = []
        for which, name in LEDGERS.items():
            self.say(f"http-keys: {self.keys} keys, {name}")
            samples = self.samples[which] = self._samples(which)
            self._check(which, samples[-1])
            rest = [each for each in samples if 4 * each["keys"] >= self.keys]
            growth, _ = linear_regression([each["keys"] for each in rest], [each["resident"] for each in rest])
            last, first = (each["resident"] / MEGABYTE for each in (rest[-1], rest[0]))
            rows += [
                Row(what=f"http-keys: {name}, resident at the end", unit="MB", ours=[last], raw=[first]),
                Row(what=f"http-keys: {name}, growth", unit="B a key", ours=[growth]),
            ]
        return rows

    def _samples(self, which: str) -> list[dict[str, int]]:
        folder = self.scratch / which
        folder.mkdir()
        script = Path(__file__).with_name("http_key_process.py")
        path = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "operator")]
        command = [sys.executable, str(script), which, str(self.keys), str(folder)]
        samples: list[dict[str, int]] = []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    samples.append(json.loads(line))
                    if len(samples) % 10 == 0:
                        self.say(f"http-keys: {which}: {_sentence(samples[-1])}")
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise WrongEffect(f"the process of {self.keys} keys ended with {process.returncode}")
        return samples

    def _check(self, which: str, last: dict[str, int]) -> None:
        answered = self.keys // 10 if which == "full" else self.keys
        if (last["answered"], last["refused"]) != (answered, self.keys - answered):
            raise WrongEffect(f"of {self.keys} keys, {last['answered']} were answered and {last['refused']} refused")

    def dump(self) -> dict[str, Any]:
        return {"keys": self.keys, "runs": self.samples}


def _sentence(sample: dict[str, int]) -> str:
    told = f"{sample['keys']} keys, {sample['resident'] / MEGABYTE:.1f} MB"
    return told + (f", {sample['refused']} refused" if sample["refused"] else "")
