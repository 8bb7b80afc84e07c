"""A real Prometheus, Debian's, on loopback: its targets, queries and firing alerts.

Targets have the labels that the Prometheus operator gives those of a release: namespace, service and pod. They are read from a file, since
a restarted operator has another port. Rules are those that the chart renders, at `SPEED`: a test cannot wait for windows of minutes and
hours. Thresholds are unchanged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.binaries import PartMissing, last_words, one_at_a_time, to_stderr
from harness.child import Child, free_port
from harness.patience import completed, stretched

Json = dict[str, Any]

INTERVAL = 1
"""Seconds between scrapes and between evaluations."""
SPEED = 60
"""Divisor of the ranges of queries, which keep at least three samples; `for` is divided by five times as much, to at least a second."""
START_TIMEOUT = 60.0
"""Seconds: one on a free core."""
APT_TIMEOUT = 600.0
"""Seconds; half a minute from a fast mirror."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PROGRAMS = ("prometheus", "promtool")


def needed() -> None:
    """Installs both programs if they are missing. Raises PartMissing."""
    if all(shutil.which(each) for each in PROGRAMS):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with one_at_a_time("prometheus-package.lock", to_stderr):
            if not all(shutil.which(each) for each in PROGRAMS):
                _install()
    if not all(shutil.which(each) for each in PROGRAMS):
        raise PartMissing("there is no Prometheus; install the package prometheus with the system's package manager")


def _install() -> None:
    to_stderr("installing prometheus with apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "prometheus"]):
        done = subprocess.run(
            ["apt-get", *arguments], env=environment, capture_output=True, text=True, timeout=APT_TIMEOUT, check=False
        )
        if done.returncode != 0:
            raise PartMissing(f"apt-get could not install prometheus: {last_words(done.stderr)}")


def check_rules(file: Path) -> str:
    """The output of `promtool check rules`. Raises AssertionError if the rules are invalid."""
    done = completed(["promtool", "check", "rules", str(file)], 60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def faster(rule: Mapping[str, Any]) -> Json:
    """The rule at `SPEED`."""
    quick = {**rule, "expr": shorter(str(rule["expr"]))}
    if "for" in rule:
        quick["for"] = f"{max(1, _seconds(str(rule['for'])) // (5 * SPEED))}s"
    return quick


def shorter(expr: str) -> str:
    """A query with shorter ranges; the steps of subqueries are those of the evaluation."""

    def ranges(found: re.Match[str]) -> str:
        seconds = max(3 * INTERVAL, _seconds(found[1]) // SPEED)
        return f"[{seconds}s:{INTERVAL}s]" if found[2] else f"[{seconds}s]"

    return re.sub(r"\[(\d+[smhd])(:\d*[smhd]?)?\]", ranges, expr)


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * UNITS[duration[-1]]


class Prometheus:
    """Scrapes the targets added with `target`."""

    def __init__(self, folder: Path, groups: Sequence[Mapping[str, Any]]) -> None:
        """`groups`: rule groups, already at their final speed."""
        self.address = f"127.0.0.1:{free_port()}"
        self._targets: dict[str, Json] = {}
        self._file = folder / "targets.json"
        self._file.write_text("[]")
        rules = folder / "rules.yaml"
        rules.write_text(yaml.safe_dump({"groups": list(groups)}))
        check_rules(rules)
        config = {
            "global": {
                "scrape_interval": f"{INTERVAL}s",
                "evaluation_interval": f"{INTERVAL}s",
                "scrape_timeout": "1s",
            },
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": "sparkonce", "file_sd_configs": [{"files": [str(self._file)], "refresh_interval": "1s"}]}
            ],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        command = [
            shutil.which("prometheus") or "prometheus",
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
            "--query.lookback-delta=5s",
            "--log.level=warn",
        ]
        self.child = Child("prometheus", command, folder / "prometheus.log")

    def start(self) -> None:
        """Starts it; it answers when this returns."""
        self.child.start()

        def ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=stretched(2)) as reply:
                    return bool(reply.status == 200)
            except OSError:
                return False

        self.child.until(ready, START_TIMEOUT)

    def target(self, pod: str, address: str, **labels: str) -> None:
        """Adds a target, or changes its address."""
        self._targets[pod] = {"targets": [address], "labels": {"pod": pod, **labels}}
        made = self._file.with_suffix(".new")
        made.write_text(json.dumps(list(self._targets.values())))
        made.replace(self._file)

    def query(self, expr: str) -> list[Json]:
        """The series of an instant query now. Raises AssertionError if the query is invalid."""
        try:
            found: list[Json] = self._asked("query", query=expr)["result"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{expr}: {refused.read().decode()}") from None
        return found

    def _asked(self, what: str, **parameters: str) -> Json:
        address = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=10) as reply:
            data: Json = json.load(reply)["data"]
            return data

    def value(self, expr: str) -> float:
        """The value of a single series; 0 if there is none."""
        found = self.query(expr)
        return float(found[0]["value"][1]) if found else 0.0

    def firing(self) -> set[str]:
        """Names of the alerts that are firing now."""
        return {each["metric"]["alertname"] for each in self.query('ALERTS{alertstate="firing"}')}

    def fired(self, seconds: int) -> set[str]:
        """Alerts that fired at any time in the last `seconds`."""
        found = self.query(f'count_over_time(ALERTS{{alertstate="firing"}}[{seconds}s])')
        return {each["metric"]["alertname"] for each in found}

    def annotations(self) -> dict[str, str]:
        """Annotations of each pending or firing alert."""
        alerts = self._asked("alerts")["alerts"]
        return {each["labels"]["alertname"]: " ".join(each["annotations"].values()) for each in alerts}

    def broken_rules(self) -> list[Json]:
        """Rules that could not be evaluated."""
        groups = self._asked("rules")["groups"]
        return [rule for group in groups for rule in group["rules"] if rule["health"] == "err"]

    def close(self) -> None:
        self.child.kill()
