"""The size of campaigns, and the seed of their random choices: one setting, `EFFORT`, and one number, `SEED`.

A campaign is a test that plays many schedules, races, storms or examples. `EFFORT=gate` is small enough for each change; `all` plays every
kind and every failpoint at least once; `soak` plays as many as fit into a night (docs/soak.md). The first two draw from a fixed seed, so
that a commit has one verdict; the soak explores: it draws new seeds and prints them.

Further variants of what another test has shown wait for a larger effort: those of minutes, marked `soak`, for the soak, and those of
seconds, marked `further`, for TIER=all.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Any


class Effort(StrEnum):
    GATE = "gate"
    ALL = "all"
    SOAK = "soak"


FIXED_SEED = "2026"
"""Seed of checks. The number is arbitrary; changing it draws other schedules for every campaign."""

SIZES: dict[str, tuple[int, int, int]] = {
    # campaign: gate, all, soak
    "kill schedules": (4, 24, 208),  # runs of a job that is killed or frozen at a failpoint: seconds each
    "kills per failpoint": (0, 1, 3),  # at least so many really happen at each
    "machine schedules": (120, 120, 6000),  # of the state machine, over all its configurations
    "hypothesis examples": (50, 50, 200),  # per property without its own number
    "differential examples": (20, 20, 80),  # of up to 60 calls each on two ledgers
    "differential examples on servers": (4, 2, 15),  # the same on PostgreSQL and etcd
    "stream schedules": (200, 200, 2000),  # of the model of a stream
    "lane troubles": (5, 10, 60),  # seconds in which processes that write to a lane are killed and frozen at random
    "lane schedules": (60, 200, 10000),  # of writers of a lane, on a log in memory, and as many on a table
    "table schedules": (8, 16, 2000),  # of keys that write one Delta or Iceberg table in all modes and in a series
    "launcher storms": (80, 80, 960),  # owners, an operator, a queue and random deletions
    "failing submissions": (20, 20, 200),  # opaque jobs of which 60 % of all submissions fail
    "reply schedules": (300, 600, 20000),  # of processes that serve one key over a ledger of answers
    "reply keys": (
        20,
        20,
        1000,
    ),  # orders that are sent again until they are answered by one of two services that are killed and frozen
    "statements on a catalog": (6, 6, 50),  # of each kind and application, every third request of which meets a fault
    "statements while a proxy is killed": (6, 6, 100),  # appends, and as many overwrites, by one Spark
    "generated requests": (
        60,
        60,
        2000,
    ),  # for each operation of the order service, behind the middleware and the proxy
    "lossy keys": (30, 30, 200),  # reserved by three callers over a connection that loses replies
    "race keys": (100, 100, 400),  # of one table, that processes commit and fence while they are killed and frozen
    "race keys of formats": (20, 8, 180),  # of a Delta and of an Iceberg table
    "race keys of stores": (50, 30, 100),  # percent of the keys that each object store is raced for
    "every nth case": (5, 2, 1),  # of lists whose cases take seconds and differ little, as the steps of a kill
    "race streams": (50, 30, 300),  # percent of 25 streams of a slot log, 20 of a Delta table, 10 of an Iceberg table
    "plan documents": (110, 110, 10000),  # mutated examples, and documents of the CRD's schema
    "documents for kubectl": (100, 200, 20000),  # job files that kubectl and our reader read
    "acts of a random tenant": (20, 60, 2000),  # requests to gateway and API server, beside another team's jobs
    "matrix parts": (2, 4, 17),  # of each kind, so that several processes share the cases
    "matrix cases": (7, 25, 100),  # of each part: tables of odd values in every type
    "matrix cases of engines": (8, 2, 400),  # of each kind, read by the format's own engine for Spark
    "racing rounds": (12, 12, 40),  # of several processes that reserve or take over one key
}


def effort() -> Effort:
    """`EFFORT`. Raises ValueError for an unknown value."""
    return Effort(os.environ.get("EFFORT") or Effort.GATE)


def size(campaign: str) -> int:
    """How many items of this campaign a run at this effort has."""
    return SIZES[campaign][list(Effort).index(effort())]


def sampled(cases: Sequence[Any]) -> Sequence[Any]:
    """The cases of a parametrized test that a run at this effort plays: in the gate the first, the sixth and so on, in TIER=all
    every other one, in the soak all."""
    return cases[:: size("every nth case")]


def rotated(cases: Sequence[Any], name: str) -> Sequence[Any]:
    """The same for tests that share their cases, such as the kinds of table: in the gate every fifth, or one of fewer, beginning with one
    that follows from the test's name, so that each case is played by some of the tests."""
    nth = min(size("every nth case"), len(cases))
    return cases[zlib.crc32(name.encode()) % nth :: nth]


def base() -> str:
    """`SEED`, or the fixed one."""
    return os.environ.get("SEED") or FIXED_SEED


def seed(campaign: str) -> int:
    """A 32-bit seed for this campaign in this run: each campaign draws from its own."""
    return int.from_bytes(hashlib.sha256(f"{base()}/{campaign}".encode()).digest()[:4], "big")
