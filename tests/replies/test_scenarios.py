"""Every scenario of the research on Apache Polaris is a test of this folder, or has its reason here."""

from __future__ import annotations

import re
from pathlib import Path

ALL = {
    *range(1, 5), 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 19, 20, 21, 22, 24, 25, *range(27, 38), *range(39, 49), *range(50, 55),
    *range(56, 62), 63, 64,
}  # fmt: skip
NOT_HERE = {
    4: "owners have no id that could be configured twice: each request draws a nonce",
    12: "beats cannot be switched off",
    32: "rights are no part of the caller; the middleware that authenticates checks them on each try",
    40: "the answer is what is kept, and it is replayed whatever became of what it speaks of",
    41: "as R-40: the original answer",
    48: "requests with one key never run beside each other",
    50: "as R-48",
    52: "the key is kept in the ledger and by the service, not in an object that others rewrite",
    53: "a request has one record, however many resources it touches",
    54: "a client that counts a lifetime from its first try is answered within it: `grace` is kept beyond",
}


def test_every_scenario_is_a_test_or_has_its_reason() -> None:
    """Its number is in a test's name, or in NOT_HERE, and in one of them alone."""
    names = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    tested = {
        int(number) for name in re.findall(r"def test_((?:r\d\d_)+)", names) for number in re.findall(r"r(\d\d)_", name)
    }
    assert tested | set(NOT_HERE) == ALL
    assert not tested & set(NOT_HERE)
