"""Repeats the campaigns at full size with new seeds until the time is over: `make soak MINUTES=480`.

Prints one line per round: its seed, which reproduces it (`SEED=... EFFORT=soak`), its duration, and pytest's last line. The first failed
round ends the soak, since its seed is worth more than further rounds. Each round's log is a file in build/soak/; docs/soak.md keeps the
latest results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CAMPAIGNS = (
    "tests/crash/test_kill_schedules.py",
    "tests/machine",
    "tests/launch/test_kubeflow_launcher_faults.py",
    "tests/store/test_differential.py",
    "tests/store/test_etcd_differential.py",
    "tests/store/test_etcd_faults.py",
    "tests/sink/campaigns/test_races.py",
    "tests/sink/campaigns/test_delta_races.py",
    "tests/sink/campaigns/test_iceberg_races.py",
    "tests/sink/campaigns/test_stream_races.py",
    "tests/sink/servers/test_object_store_races.py",
    "tests/sink/test_stream_model.py",
    "tests/sink/test_turns.py",
    "tests/replies/test_schedules.py",
    "tests/replies/test_processes.py",
    "tests/lanes/test_schedules.py",
    "tests/lanes/test_kills.py",
    "tests/api/test_documents.py",
    "tests/api/test_never_ran.py",
    "tests/proxy/servers/test_conformance.py",
    "tests/proxy/servers/test_iceberg_spark.py",
    "tests/sink/test_matrix.py",
    "tests/sink/jvm/test_matrix_engines.py",
    "tests/security/test_plan_documents.py",
    "tests/security/servers/test_random_tenant.py",
)
VARIANTS = ("-m", "soak", "tests")
"""Tests of minutes that only the soak runs."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Repeats the campaigns at full size until the time is over.")
    parser.add_argument("--minutes", type=float, default=60.0, help="no round starts after this time")
    parser.add_argument("--workers", default="4")
    parser.add_argument("campaigns", nargs="*", help="test files (default: all campaigns, and all tests marked `soak`)")
    asked = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    folder = ROOT / "build" / "soak"
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.minutes * 60
    number = 0
    while number == 0 or time.monotonic() < end:
        seed = os.environ.get("SEED") or f"{commit}-{number}"
        log = folder / f"{seed}.log"
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-n", asked.workers, "--dist", "worksteal", "--durations=10"]
        with log.open("w") as out:
            for chosen in [asked.campaigns] if asked.campaigns else [CAMPAIGNS, VARIANTS]:
                done = subprocess.run(
                    [*command, *chosen],
                    cwd=ROOT,
                    env={**os.environ, "EFFORT": "soak", "SEED": seed},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
                if done.returncode != 0:
                    break
        closing = (log.read_text().splitlines() or ["pytest printed nothing"])[-1].strip("= ")
        took = time.monotonic() - began
        print(f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} SEED={seed} {took:.0f} s: {closing}", flush=True)
        if done.returncode != 0:
            print(f"round failed: see {log.relative_to(ROOT)}", file=sys.stderr)
            return 1
        number += 1
        if os.environ.get("SEED"):
            break  # a given seed is run only once
    return 0


if __name__ == "__main__":
    sys.exit(main())
