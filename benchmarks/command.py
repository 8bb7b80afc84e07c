"""Compares `sparkonce run` of a script that nobody changed with `spark-submit` of the same script, from start to exit.

The script makes rows and overwrites a folder of Parquet. `sparkonce run` gets it once as a job without outputs, whose answer alone is
recorded, and once with the folder as a captured slot log. Each run has a fresh key and an empty folder, and writes nothing but its rows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from measure import Row, WrongEffect, by_cpu, measured, pair_text

from attempt import job, slot_log
from machine import Used, metered, used_text
from sparkonce.launch.submit import QUIET, check_spark, spark_submit
from sparkonce.sink.slotlog.snapshot import Table

PLAIN, RUN, CAPTURED = "spark-submit", "sparkonce run", "sparkonce run, captured"
SCRIPT = Path(__file__).with_name("unchanged_script.py")


@dataclass
class Commands:
    """The part `command`; `say` gets a line per round."""

    scratch: Path
    rows: int
    pairs: int
    say: Callable[[str], None]
    runs: dict[str, list[Used]] = field(default_factory=dict)
    """Measurements by variant, one for each pair."""

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a folder does not hold the rows, InvalidInput if Spark cannot start here."""
        check_spark()
        self.say(f"command: {self.rows:,} rows, {self.pairs} pairs and one to warm up")
        self.runs = measured(
            {each: partial(self._one, each) for each in (PLAIN, RUN, CAPTURED)}, self.pairs, self._told
        )
        return by_cpu("command", self.runs, raw=PLAIN)

    def dump(self) -> dict[str, Any]:
        return {"rows": self.rows, "runs": {name: [used.dump() for used in each] for name, each in self.runs.items()}}

    def _told(self, pair: int, used: dict[str, Used]) -> None:
        self.say(f"command: {pair_text(pair, self.pairs)}: {used_text(used)}")

    def _one(self, variant: str) -> Used:
        folder = self.scratch / uuid4().hex
        folder.mkdir()
        arguments = [str(folder / "rows"), str(self.rows)]
        os.sync()
        if variant == PLAIN:
            conf = [each for name, value in QUIET.items() for each in ("--conf", f"{name}={value}")]
            argv = [spark_submit(), "--master", "local[*]", *conf, str(SCRIPT), *arguments]
        else:
            template = {"type": "Python", "mainApplicationFile": str(SCRIPT), "arguments": arguments}
            place = {**slot_log(folder / "rows"), "capture": True} if variant == CAPTURED else None
            (folder / "job.yaml").write_text(yaml.safe_dump(job("measured", place, template).document()))
            argv = [sys.executable, "-m", "sparkonce", "run", "job.yaml", "--store", "ledger.db", "--json"]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        done, used = metered(
            lambda: subprocess.run(
                argv, cwd=folder, env={**os.environ, **python}, capture_output=True, text=True, check=False
            )
        )
        _check(variant, done, folder / "rows", self.rows)
        shutil.rmtree(folder)
        return used


def _check(variant: str, done: subprocess.CompletedProcess[str], table: Path, rows: int) -> None:
    """Raises WrongEffect if the command failed, its answer is a replay, or the rows are not there once."""
    from pyarrow import parquet

    if done.returncode != 0:
        raise WrongEffect(f"{variant} ended with {done.returncode}: {done.stderr[-2000:]}")
    if variant != PLAIN:
        said = json.loads(done.stdout)
        if (said["phase"], said["replayed"], said["attempt"]) != ("Succeeded", False, 1):
            raise WrongEffect(f"{variant}: {done.stdout.strip()}")
    if variant == CAPTURED:
        found = [slot.rows for slot in Table(table).slots()]
    else:
        found = [sum(parquet.ParquetFile(each).metadata.num_rows for each in table.glob("*.parquet"))]
    if found != [rows]:
        raise WrongEffect(f"{variant}: the folder holds {found} rows, and {rows} were written")
