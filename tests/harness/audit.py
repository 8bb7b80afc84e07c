"""Compares, at the end of a test, the ledger, the statuses, the applications and the drivers of each job.

It has four independent witnesses: etcd's own bytes, a watch of statuses, a watch of applications, and the fake node's list of drivers that
ran. Whatever was killed or frozen meanwhile, they must agree for each job: one application and one driver for each granted attempt,
attempts without a gap, one finalization for each generation, statuses that only ever moved forward and end as the record does. It reports
all differences at once, because one defect shows in several places.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.kubeflow import Run
from harness.ledger_dump import Dump
from harness.witness import Witness
from sparkonce.launch.kubeflow.labels import ATTEMPT_LABEL, GENERATION_LABEL, KEY_HASH, NONCE, ROLE_LABEL, Role

Json = dict[str, Any]

FINAL = ("Succeeded", "Failed", "Cancelled")
SHOWN = 15
"""Maximum number of differences in the message, which always has their total."""


@dataclass(frozen=True)
class Expected:
    """The final outcome of one job; no fault of an operator may change it."""

    outcome: str = "Succeeded"
    attempts: int = 1


@dataclass(frozen=True)
class Audit:
    dump: Dump
    witness: Witness
    runs: Sequence[Run] | None
    """Drivers that ran; None if they were not counted."""
    _by_hash: dict[str, list[Json]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in self.witness.applications.values():
            if each["metadata"].get("labels", {}).get(ROLE_LABEL) == Role.SETTLE:
                continue  # it settles an attempt and is not one itself
            key_hash = each["metadata"].get("annotations", {}).get(KEY_HASH, "")
            self._by_hash.setdefault(key_hash, []).append(each)

    def check(self, expected: Mapping[str, Expected]) -> None:
        """Compares every job with `expected`, by object name. Raises AssertionError with all differences."""
        wrong = list(self._all(expected))
        shown = "\n".join(wrong[:SHOWN])
        assert not wrong, f"{len(wrong)} differences:\n{shown}"

    def _all(self, expected: Mapping[str, Expected]) -> Iterator[str]:
        if self.witness.missed:
            yield self.witness.missed
        if self.dump.claims:
            yield f"{len(self.dump.claims)} claims are left: {list(self.dump.claims.values())[:3]}"
        if self.dump.unfinished:
            yield f"{len(self.dump.unfinished)} keys are left under open/"
        hashes = set()
        for name, each in expected.items():
            job = self.witness.jobs.get(name)
            key_hash = ((job or {}).get("status") or {}).get("keyHash")
            if job is None or key_hash is None:
                yield f"{name}: it has no status"
                continue
            hashes.add(key_hash)
            yield from (f"{name}: {said}" for said in self._one(job, key_hash, each))
        if strangers := set(self.dump.records) - hashes:
            yield f"{len(strangers)} records belong to none of the jobs"
        if strangers := set(self._by_hash) - hashes:
            yield f"{len(strangers)} keys with applications belong to none of the jobs"

    def _one(self, job: Json, key_hash: str, expected: Expected) -> Iterator[str]:
        entry = self.dump.records.get(key_hash)
        if entry is None:
            yield "it has no record"
            return
        record = entry.value
        yield from _differ("state", record["state"], "Finalized")
        if record.get("held"):
            yield f"held: {record['held']}: {record.get('note')}"
        yield from _differ("outcome", record.get("outcome"), expected.outcome)
        yield from _differ("attempts", record["attempt"], expected.attempts)
        yield from _differ("generation", record["generation"], 1)
        yield from self._history(key_hash, record)
        yield from self._applications(key_hash, record)
        yield from _forward(self.witness.statuses[job["metadata"]["uid"]])
        yield from _projected(job["status"], record, entry.revision)

    def _history(self, key_hash: str, record: Json) -> Iterator[str]:
        events = self.dump.events.get(key_hash, ())
        said = Counter((each["what"], each["generation"]) for each in events)
        yield from _differ("times finalized", said["Finalized", 1], 1)
        yield from _differ("times reserved", said["Reserved", 1], 1)
        granted = [each["attempt"] for each in events if each["what"] == "Granted"]
        yield from _differ("grants", granted, list(range(2, record["attempt"] + 1)))
        after = [each["what"] for each in itertools.dropwhile(lambda each: each["what"] != "Finalized", events)]
        yield from _differ("history from its end", after, ["Finalized"])
        result = self.dump.results.get((key_hash, 1))
        if result is None:
            yield "it has no result"
        else:
            yield from _differ("times the result was written", result.version, 1)
            yield from _differ("outcome of the result", result.value["outcome"], record.get("outcome"))

    def _applications(self, key_hash: str, record: Json) -> Iterator[str]:
        made = self._by_hash.get(key_hash, [])
        names = [each["metadata"]["name"] for each in made]
        wanted = [f"so-{key_hash[:20]}-g1-a{n}" for n in range(1, record["attempt"] + 1)]
        yield from _differ("applications", sorted(names), wanted)
        numbers = [tuple(each["metadata"]["labels"][n] for n in (GENERATION_LABEL, ATTEMPT_LABEL)) for each in made]
        yield from _differ("labels", sorted(numbers), [("1", str(n)) for n in range(1, record["attempt"] + 1)])
        nonces = {each["metadata"]["annotations"][NONCE] for each in made}
        if record["nonce"] not in nonces:
            yield "no application has the nonce of the record's attempt"
        if self.runs is not None:
            ran = Counter(run.application for run in self.runs if run.application in wanted)
            yield from _differ("drivers", dict(ran), dict.fromkeys(wanted, 1))


def _differ(what: str, found: object, wanted: object) -> Iterator[str]:
    if found != wanted:
        yield f"{what}: {found!r} instead of {wanted!r}"


def _forward(statuses: Iterable[Json]) -> Iterator[str]:
    """Each status with the one after it."""
    for before, after in itertools.pairwise(statuses):
        ended = before.get("phase")  # there is none if another client wrote first
        for names in (("epoch", "ledgerRevision", "observedGeneration"), ("generation", "attempt")):
            was, became = (tuple(int(each.get(name) or 0) for name in names) for each in (before, after))
            if became < was:
                yield f"its status went back in {names}: {was} -> {became} ({ended} -> {after.get('phase')})"
        tried = [(each.get("generation"), each.get("attempt")) for each in (before, after)]
        if (ended, after.get("phase")) == ("Running", "Pending") and tried[0] == tried[1]:
            yield f"its status went back from Running to Pending within attempt {before['attempt']}"
        if ended in FINAL and after.get("phase") != ended:
            yield f"its status ended as {ended} and then became {after.get('phase')}"


def _projected(status: Json, record: Json, revision: int) -> Iterator[str]:
    """Compares the object's last status with the record."""
    yield from _differ("phase", status["phase"], record.get("outcome"))
    yield from _differ("status.attempt", status.get("attempt"), record["attempt"])
    yield from _differ("status.generation", status.get("generation"), record["generation"])
    yield from _differ("status.fingerprint", status.get("fingerprint"), record["fingerprint"])
    yield from _differ("status.application", status.get("application"), (record.get("application") or {}).get("name"))
    yield from _differ("status.ledgerRevision", status.get("ledgerRevision"), revision)
    if "result" not in status:
        yield "its status has no result"
