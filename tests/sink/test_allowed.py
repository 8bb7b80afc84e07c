"""The list of outputs that a namespace may use: what lies below a prefix, and what only looks as if it did."""

from __future__ import annotations

import posixpath
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.sink.allowed import AllowedOutputs, Place
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Declared

PARTS = st.text("abcXYZ019-_.=", min_size=1, max_size=6).filter(lambda part: part not in (".", ".."))
PATHS = st.lists(PARTS, min_size=1, max_size=4)
STORES = st.sampled_from(
    ["s3://lake", "s3a://lake", "S3://lake", "gs://lake", "abfss://c@acct.dfs.core.windows.net", "file://", ""]
)


def allowed(*prefixes: str, namespace: str | None = "team-a") -> AllowedOutputs:
    entry = {"prefixes": list(prefixes)} | ({"namespace": namespace} if namespace else {})
    return AllowedOutputs.of([entry])


def may(listed: AllowedOutputs, location: str, *, kind: str = "slotLog", namespace: str = "team-a") -> bool:
    """Asks as the operator does, with the URI of the opened sink."""
    sink = open_sink(Declared(name="rows", kind=kind, location=location), base=None)
    return not listed.refusal(sink.kind, sink.uri, namespace=namespace)


@given(STORES, PATHS, PATHS)
@settings(max_examples=20)  # of some 15 sinks each, and a client of an object store takes 20 ms to make
def test_what_is_below_a_prefix_is_allowed_and_its_neighbours_are_not(
    store: str, prefix: list[str], more: list[str]
) -> None:
    """A prefix allows itself and everything below it; not its parent, and not a sibling whose name merely starts the same."""
    above = f"{store}/{'/'.join(prefix)}"
    for listed in (allowed(above), allowed(f"{above}/")):
        assert may(listed, above)
        assert may(listed, f"{above}/")
        assert may(listed, f"{above}/{'/'.join(more)}")
        assert not may(listed, f"{above}{more[0]}x")
        assert not may(listed, f"{above}/x", namespace="team-b")
        if len(prefix) > 1:
            assert not may(listed, posixpath.dirname(above))


@given(PATHS, PATHS, STORES, STORES)
def test_two_places_are_below_each_other_only_if_they_are_one(one: list[str], two: list[str], a: str, b: str) -> None:
    """Being below is a partial order: two different places are never both below each other."""
    first, second = Place.parse(f"{a}/{'/'.join(one)}"), Place.parse(f"{b}/{'/'.join(two)}")
    assert (first.below(second) and second.below(first)) == (first == second)


@given(PATHS, st.lists(st.sampled_from(["..", ".", ""]), min_size=1, max_size=4), PATHS)
def test_a_path_that_climbs_is_never_below(inside: list[str], steps: list[str], outside: list[str]) -> None:
    """Object stores refuse `..`; a local path counts as the folder that it resolves to."""
    climbing = "/".join([*inside, *steps, *outside])
    listed = allowed("s3://lake/own/a", "/data/own/a")
    for store in ("s3://lake/own/a", "/data/own/a"):
        try:
            yes = may(listed, f"{store}/{climbing}")
        except (InvalidInput, OutputUnsupported):
            continue
        led = posixpath.normpath(f"{store.removeprefix('s3:/')}/{climbing}")
        assert yes == f"{led}/".startswith(f"{store.removeprefix('s3:/')}/")


@given(PATHS)
def test_a_local_path_is_compared_decoded(path: list[str]) -> None:
    """`file:///data/te%61m` and `/data/team` are one folder."""
    text = "/data/" + "/".join(path)
    assert may(allowed(text), "file://" + quote(text))
    assert may(allowed("file://" + quote(text)), text)
    assert not may(allowed("/data/team-a"), "file:///data/team-a/%2e%2e/team-b")


@pytest.mark.parametrize(
    ("prefix", "location"),
    [
        ("s3://lake/team-a", "s3://lake/team-abc"),
        ("s3://lake/team-a", "s3://lake/Team-A/x"),
        ("s3://lake/team-a", "gs://lake/team-a/x"),
        ("s3://lake", "s3://lake2/x"),
        ("abfss://c@one.dfs.core.windows.net/", "abfss://c@two.dfs.core.windows.net/x"),
        ("abfss://c@one.dfs.core.windows.net/", "abfss://c@one.example.com/x"),
        ("/data/team-a", "/data/team-a/../team-b"),
        ("iceberg:lake.team_a", "s3://lake/team_a"),
    ],
)
def test_what_only_looks_like_it_is_refused(prefix: str, location: str) -> None:
    """Other segments, case, schemes, buckets or accounts name other places."""
    assert not may(allowed(prefix), location)


def test_the_host_of_an_account_is_compared_without_case() -> None:
    """An account's host is a DNS name, so its case does not matter, unlike that of a bucket's path."""
    assert may(allowed("abfss://c@one.DFS.core.windows.net/x"), "abfss://c@one.dfs.core.windows.net/x/y")


def test_a_link_counts_as_where_it_leads(tmp_path: Path) -> None:
    """The sink resolves links when it is opened, so the comparison is with the real folder."""
    own, other = tmp_path / "team-a", tmp_path / "team-b"
    own.mkdir()
    other.mkdir()
    (own / "link").symlink_to(other)
    assert may(allowed(str(own)), f"{own}/table")
    assert not may(allowed(str(own)), f"{own}/link/table")


def test_tables_of_a_catalog_are_listed_by_name() -> None:
    """Whole parts of the name are compared."""
    pytest.importorskip("pyiceberg")
    listed = allowed("iceberg:lake.team_a")
    assert may(listed, "lake.team_a.orders", kind="iceberg")
    assert may(allowed("iceberg:lake.team_a."), "lake.team_a.orders", kind="iceberg")
    assert not may(listed, "lake.team_ab.orders", kind="iceberg")
    assert not may(listed, "lake2.team_a.orders", kind="iceberg")


def test_the_placeholder_is_the_namespace() -> None:
    """An entry without a namespace applies to all namespaces, with each one's name in place of the placeholder."""
    listed = allowed("s3://lake/{namespace}/", "iceberg:lake.{namespace}", namespace=None)
    assert may(listed, "s3://lake/team-b/x", namespace="team-b")
    assert not may(listed, "s3://lake/team-b/x", namespace="team-a")


def test_labels_select_namespaces() -> None:
    """All labels of an entry must match; a namespace whose labels are unknown is allowed nothing."""
    listed = AllowedOutputs.of(
        [{"namespaceSelector": {"matchLabels": {"tier": "gold"}}, "prefixes": ["s3://gold/{namespace}"]}]
    )
    assert listed.by_label
    assert not listed.refusal("delta", "s3a://gold/a/t", namespace="a", labels={"tier": "gold", "x": "y"})
    for labels in ({"tier": "tin"}, {}, None):
        assert "(none)" in listed.refusal("delta", "s3a://gold/a/t", namespace="a", labels=labels)


def test_a_refusal_names_the_place_and_what_is_allowed() -> None:
    """The refusal is shown to the tenant, so it names only the tenant's own prefixes."""
    listed = AllowedOutputs.of(
        [{"namespace": "a", "prefixes": ["s3://lake/a"]}, {"namespace": "b", "prefixes": ["s3://lake/b"]}]
    )
    assert listed.refusal("delta", "s3a://lake/b/t", namespace="a") == (
        "s3a://lake/b/t is not among the outputs allowed for namespace a (s3://lake/a)"
    )


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ({"prefixes": ["s3://x"]}, "is not a list"),
        ([{"prefixes": []}], "entry 1 of the list of allowed outputs: prefixes"),
        ([{"prefixes": ["ftp://x"]}], "unsupported scheme"),
        ([{"prefixes": ["s3://user:secret@lake/x"]}], "name of a bucket alone"),
        ([{"prefixes": ["relative/x"]}], "not the absolute path"),
        ([{"prefixes": ["/data/../etc"]}], "`..` part"),
        ([{"prefixes": ["s3://lake/*"]}], "must not contain '*'"),
        ([{"prefixes": ["iceberg:"]}], "names no catalog"),
        ([{"prefixes": ["s3://x"], "namespace": "a", "namespaceSelector": {"matchLabels": {"x": "y"}}}], "keep one"),
        ([{"prefixes": ["s3://x"], "namespaces": ["a"]}], "namespaces"),
        ([{"prefixes": ["s3://x"], "namespaceSelector": {"matchLabels": {}}}], "namespaceSelector.matchLabels"),
        ([None], "entry 1"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(listed: object, said: str) -> None:
    """It is refused when the operator starts, and the entry is named: a prefix that matches nothing would otherwise refuse all jobs
    later."""
    with pytest.raises(InvalidInput, match=r"list of allowed outputs") as refused:
        AllowedOutputs.of(listed)
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


@given(
    st.one_of(st.none(), st.text(), st.lists(st.one_of(st.none(), st.text(), st.dictionaries(st.text(), st.text()))))
)
def test_any_list_is_taken_or_refused(listed: object) -> None:
    """An administrator's file is accepted, or refused with one kind of error, whatever it contains."""
    try:
        AllowedOutputs.of(listed)
    except InvalidInput:
        return


@given(st.text(max_size=40), st.sampled_from(["slotLog", "delta", "iceberg"]))
def test_any_location_gets_an_answer(location: str, kind: str) -> None:
    """A location that cannot be compared is refused without an exception, since an earlier version may have recorded it."""
    assert allowed("s3://lake/team-a").refusal(kind, location, namespace="team-a")
