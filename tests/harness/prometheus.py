"""A real Prometheus, Debian's, on loopback: what it scrapes, what it is asked, which alerts fire.

Targets are labelled as the Prometheus operator labels those of a release: by namespace, service and pod. They are read from a file, since
an operator that is started again has another port. Rules come as the chart renders them, and run `SPEED` times as fast: windows of minutes
and hours would have a test wait for them. What a rule compares with stays as it is.
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
from harness.eventually import assert_eventually

Json = dict[str, Any]

INTERVAL = 1
"""Seconds between two scrapes, and between two evaluations."""
SPEED = 60
"""Ranges of queries are shortened so, but hold three samples at least; `for` is shortened five times as much, to a second at least."""
START_TIMEOUT = 60.0
"""Seconds: one on a free core."""
APT_TIMEOUT = 600.0
"""Seconds: half a minute where the mirror is near."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PROGRAMS = ("prometheus", "promtool")


def needed() -> None:
    """Both programs are there afterwards. PartMissing."""
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
    """What `promtool check rules` says. AssertionError: they are wrong."""
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def faster(rule: Mapping[str, Any]) -> Json:
    """The rule at `SPEED`."""
    quick = {**rule, "expr": shorter(str(rule["expr"]))}
    if "for" in rule:
        quick["for"] = f"{max(1, _seconds(str(rule['for'])) // (5 * SPEED))}s"
    return quick


def shorter(expr: str) -> str:
    """A query whose ranges are shorter; the steps of subqueries are those of the evaluation."""

    def ranges(found: re.Match[str]) -> str:
        seconds = max(3 * INTERVAL, _seconds(found[1]) // SPEED)
        return f"[{seconds}s:{INTERVAL}s]" if found[2] else f"[{seconds}s]"

    return re.sub(r"\[(\d+[smhd])(:\d*[smhd]?)?\]", ranges, expr)


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * UNITS[duration[-1]]


class Prometheus:
    """Scrapes what `target` names."""

    def __init__(self, folder: Path, groups: Sequence[Mapping[str, Any]]) -> None:
        """`groups`: of rules, already as fast as they shall be."""
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
        """It answers when this returns."""
        self.child.start()

        def ready() -> bool:
            assert self.child.running, self.child.last_words()
            try:
                with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=2) as reply:
                    return bool(reply.status == 200)
            except OSError:
                return False

        assert_eventually(ready, START_TIMEOUT)

    def target(self, pod: str, address: str, **labels: str) -> None:
        """Scraped from now on, or elsewhere than before."""
        self._targets[pod] = {"targets": [address], "labels": {"pod": pod, **labels}}
        made = self._file.with_suffix(".new")
        made.write_text(json.dumps(list(self._targets.values())))
        made.replace(self._file)

    def query(self, expr: str) -> list[Json]:
        """The series of an instant query, now. AssertionError: it is no query."""
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
        """Of one series; 0 without one."""
        found = self.query(expr)
        return float(found[0]["value"][1]) if found else 0.0

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {each["metric"]["alertname"] for each in self.query('ALERTS{alertstate="firing"}')}

    def fired(self, seconds: int) -> set[str]:
        """Those that fired at some time in so many seconds."""
        found = self.query(f'count_over_time(ALERTS{{alertstate="firing"}}[{seconds}s])')
        return {each["metric"]["alertname"] for each in found}

    def annotations(self) -> dict[str, str]:
        """What each alert that fires, or is about to, tells a person."""
        alerts = self._asked("alerts")["alerts"]
        return {each["labels"]["alertname"]: " ".join(each["annotations"].values()) for each in alerts}

    def broken_rules(self) -> list[Json]:
        """Those that could not be evaluated."""
        groups = self._asked("rules")["groups"]
        return [rule for group in groups for rule in group["rules"] if rule["health"] == "err"]

    def close(self) -> None:
        self.child.kill()
