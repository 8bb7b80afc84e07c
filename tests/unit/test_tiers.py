"""Each test runs in one tier, or in both if that is intended."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import binaries, tiers

TESTS = Path("/tests")


@pytest.mark.parametrize(
    ("path", "parameters", "expected"),
    [
        ("attempt/test_decide.py", [], ["quick"]),
        ("sink/test_races.py", ["kill"], ["quick"]),
        ("sink/servers/test_object_stores.py", [], ["full"]),
        ("sink/jvm/test_spark.py", [], ["full"]),
        ("sink/test_iceberg.py", ["sql"], ["quick"]),
        ("sink/test_iceberg.py", ["rest"], ["full"]),
        ("api/test_bind.py", ["postgres"], ["full"]),
        ("store/conformance/test_seal.py", ["sqlite"], ["quick"]),
        ("store/conformance/test_seal.py", ["postgres", 3], ["full"]),
        ("etcd/test_kv.py", [], ["quick", "full"]),
    ],
)
def test_a_test_has_the_tier_of_its_folder(path: str, parameters: list[object], expected: list[str]) -> None:
    """A tier follows from a test's folder, or from a parameter that is a server; each tier collects the files of its tests."""
    file = TESTS / path
    assert [tier for tier in ("quick", "full") if tiers.runs(file, TESTS, parameters, tier)] == expected
    assert all(tiers.collects(file, TESTS, tier) for tier in expected)
    assert tiers.runs(file, TESTS, parameters, "all")
    assert tiers.collects(file, TESTS, "all")


def test_a_marker_adds_a_test_to_the_operator_tier() -> None:
    """The operator tier is part of the full one, which runs the test, too."""
    file = TESTS / "api" / "test_bind.py"
    assert [tier for tier in tiers.TIERS if tiers.runs(file, TESTS, [], tier, marked=True)] == [
        "operator",
        "full",
        "all",
    ]
    assert not tiers.runs(file, TESTS, [], "operator")
    assert not tiers.runs(file, TESTS, ["postgres"], "operator", marked=True)
    assert tiers.runs(file, TESTS, ["postgres"], "full", marked=True)
    assert tiers.collects(file, TESTS, "operator")
    with pytest.raises(ValueError, match="add sink to GATE_ROOMS"):
        tiers.runs(TESTS / "sink" / "servers" / "test_lost_replies.py", TESTS, [], "operator", marked=True)


def test_a_server_where_the_full_tier_does_not_look_is_refused() -> None:
    """A parameter of the full tier in a folder that this tier does not collect would run nowhere, so the collection fails."""
    with pytest.raises(ValueError, match="add cli to MIXED"):
        tiers.runs(TESTS / "cli" / "test_keys.py", TESTS, ["postgres"], "quick")


def test_the_quick_tier_waits_for_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of it that asks for a part fails where another run has built that part already, and not only on a new machine."""
    monkeypatch.setenv(tiers.VARIABLE, "quick")
    with pytest.raises(AssertionError, match="a test of the quick tier asks for a part that is built: move it"):
        binaries.cache()
