"""Metrics: every method of the meter counts something, under names that Prometheus' conventions allow."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparkonce import __version__
from sparkonce.model import crd_status
from sparkonce.model.record import HeldReason, Outcome, Why
from sparkonce.observe.gateway_metrics import GatewayMetrics
from sparkonce.observe.meter import Meter, NoMeter
from sparkonce.observe.metrics import GAUGES, TAKEOVER, Metrics

UNITS = (
    "_total",
    "_seconds",
    "_depth",
    "drives",
    "objects",
    "slots_taken",
    "slots_open",
    "_ratio",
    "ready",
    "alarm",
    "jobs",
    "slots",
    "_info",
)
CALLS: dict[str, tuple[Callable[[Meter], None], dict[str, float]]] = {
    "reserved": (lambda meter: meter.reserved("Owned"), {'reservations_total{outcome="Owned"}': 1}),
    "taken_over": (
        lambda meter: meter.taken_over(0.2),
        {"takeovers_total": 1, "takeover_seconds_count": 1, "takeover_seconds_sum": 0.2},
    ),
    "granted": (lambda meter: meter.granted("Lost"), {'attempts_total{why="Lost"}': 1}),
    "finalized": (
        lambda meter: meter.finalized("Succeeded", attempts=2, seconds=90.0),
        {'finalized_total{outcome="Succeeded"}': 1, "job_seconds_sum": 90.0},
    ),
    "held": (lambda meter: meter.held("Partial"), {'held_total{reason="Partial"}': 1}),
    "replayed": (
        lambda meter: meter.replayed(executor_seconds=120.0),
        {"replays_total": 1, "duplicates_avoided_total": 1, "executor_seconds_saved_total": 120.0},
    ),
    "followed": (lambda meter: meter.followed(), {"duplicates_avoided_total": 1, "replays_total": 0}),
    "mismatched": (lambda meter: meter.mismatched(), {"mismatches_total": 1}),
    "alarmed": (lambda meter: meter.alarmed(), {"store_rewound_total": 1}),
    "called": (
        lambda meter: meter.called("patch", "Pod", "ok"),
        {'api_requests_total{kind="Pod",result="ok",verb="patch"}': 1},
    ),
    "stored": (
        lambda meter: meter.stored("reserve", "Owned", 0.2),
        {'store_request_seconds_sum{verb="reserve"}': 0.2, 'store_requests_total{result="Owned",verb="reserve"}': 1},
    ),
    "conflicted": (lambda meter: meter.conflicted(), {"status_conflicts_total": 1}),
    "triggered": (lambda meter: meter.triggered("pod"), {'events_total{kind="pod"}': 1}),
}


def scraped(metrics: Metrics) -> dict[str, float]:
    """Every sample of ours, by name and labels, without the common prefix."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.text()[0].decode()):
        for sample in family.samples:
            if sample.name.startswith("process_"):  # the library's own
                continue
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            assert sample.name.startswith("sparkonce_")
            found[sample.name.removeprefix("sparkonce_") + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_every_method_of_the_meter_is_tried() -> None:
    """The calls in this file cover all of the meter's methods; the meter that counts nothing has the same methods."""
    named = {name for name in vars(Meter) if not name.startswith("_")}
    assert set(CALLS) == named
    assert {name for name in vars(NoMeter) if not name.startswith("_")} == named
    for name in named:
        wanted = inspect.signature(getattr(Meter, name))
        assert inspect.signature(getattr(NoMeter, name)) == inspect.signature(getattr(Metrics, name)) == wanted


@pytest.mark.parametrize("method", CALLS)
def test_what_a_method_counts(method: str) -> None:
    """One call changes exactly the samples that it is about, once."""
    call, expected = CALLS[method]
    metrics = Metrics()
    call(metrics)
    found = scraped(metrics)
    assert {name: found[name] for name in expected} == expected
    moved = {
        name for name, value in found.items() if value and not re.search(r"_created|_bucket|_count|_sum|^build", name)
    }
    assert moved == {name for name, value in expected.items() if value and not re.search("_count|_sum", name)}
    call(NoMeter())


def test_a_takeover_whose_begin_nobody_saw_has_no_latency() -> None:
    """It is counted, but adds no invented time to the distribution."""
    metrics = Metrics()
    metrics.taken_over(None)
    found = scraped(metrics)
    assert (found["takeovers_total"], found["takeover_seconds_count"]) == (1, 0)


def test_the_promise_is_a_bucket() -> None:
    """The histogram shows how many takeovers took at most a second, and how many at most ten, the TTL."""
    assert {1.0, 10.0} <= set(TAKEOVER)


def test_names_and_units() -> None:
    """Every metric has this project's prefix and a unit, is called `_total` if it counts up, and has a description."""
    metrics = Metrics()
    metrics.watch(lambda: dict.fromkeys(GAUGES, 1.0), lambda: {"Held": 1}, dict)
    families = [
        family
        for family in text_string_to_metric_families(metrics.text()[0].decode())
        if not family.name.endswith("_created") and not family.name.startswith("process_")  # the library's own
    ]
    assert len(families) > 15
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert re.fullmatch(r"sparkonce_[a-z_]+", name)
        assert name.endswith(UNITS), name
        assert family.documentation.endswith(".")


def test_gauges_are_read_when_somebody_scrapes() -> None:
    """Values are those at the time of the scrape; a gauge that the process does not provide is left out."""
    values = {"drives": 1.0, "unknown": 5.0}
    metrics = Metrics()
    metrics.watch(lambda: values)
    assert scraped(metrics)["drives"] == 1.0
    values["drives"] = 7.0
    found = scraped(metrics)
    assert found["drives"] == 7.0
    assert "unknown" not in found
    assert "queue_seconds" not in found


def test_labels_that_are_known_stand_at_zero() -> None:
    """Each reason, outcome and phase that the model and the CRD know is exposed before its first event, so that a rule sees the event as an
    increase."""
    metrics = Metrics()
    metrics.watch(dict, lambda: {"Held": 2})
    found = scraped(metrics)
    for name, label, known in (
        ("attempts_total", "why", Why),
        ("finalized_total", "outcome", Outcome),
        ("held_total", "reason", HeldReason),
    ):
        for each in known:
            assert found.pop(f'{name}{{{label}="{each}"}}') == 0
    assert not [name for name in found if name.startswith(("attempts_total", "finalized_total", "held_total"))]
    assert found['reservations_total{outcome="Full"}'] == 0
    assert found['jobs{phase="Held"}'] == 2
    assert {name for name in found if name.startswith("jobs{")} == {
        f'jobs{{phase="{phase}"}}' for phase in crd_status.PHASES
    }


@pytest.mark.parametrize("made", [Metrics, lambda: GatewayMetrics(announced=lambda: True)], ids=["operator", "gateway"])
def test_a_process_says_what_it_is_and_uses(made: Callable[[], Metrics | GatewayMetrics]) -> None:
    """Operator and gateway expose the package's version, and memory, CPU time, open files and start time of their process."""
    found = {
        sample.name: sample
        for family in text_string_to_metric_families(made().text()[0].decode())
        for sample in family.samples
    }
    assert (found["sparkonce_build_info"].labels, found["sparkonce_build_info"].value) == ({"version": __version__}, 1)
    assert found["process_resident_memory_bytes"].value > 2**20
    assert found["process_cpu_seconds_total"].value > 0
    assert found["process_max_fds"].value >= found["process_open_fds"].value > 0
    assert found["process_start_time_seconds"].value <= time.time()


def test_the_oldest_job_of_each_unfinished_phase_has_an_age() -> None:
    """The age is as of the scrape; a phase without jobs has 0, so that an alert ends, and held or finished jobs have no age."""
    metrics = Metrics()
    metrics.watch(dict, dict, lambda: {"Running": 7200.0, "Held": 9.0})
    found = {name: value for name, value in scraped(metrics).items() if name.startswith("oldest")}
    assert found == {
        f'oldest_job_seconds{{phase="{phase}"}}': value
        for phase, value in (("Pending", 0), ("Running", 7200), ("Recovering", 0))
    }


def test_two_meters_count_apart() -> None:
    """Two operators in one process do not share a registry."""
    one, other = Metrics(), Metrics()
    one.mismatched()
    assert (scraped(one)["mismatches_total"], scraped(other)["mismatches_total"]) == (1, 0)


def test_the_meter_needs_no_library() -> None:
    """The modules that the engine imports to be counted need no metrics library."""
    script = "import sys, sparkonce.observe.meter; print('prometheus_client' in sys.modules, 'aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
