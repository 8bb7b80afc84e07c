"""From a declared output to its sink: which declarations are refused, and with which sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.model.spec import OnRerun
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Declared


def declared(location: str, *, kind: str = "slotLog", name: str = "orders") -> Declared:
    return Declared(name=name, kind=kind, location=location, on_rerun=OnRerun.APPEND)


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        ("/lake/orders", "file:///lake/orders"),
        ("/lake//orders/", "file:///lake/orders"),
        ("orders", "file:///jobs/orders"),
        ("./out/../orders", "file:///jobs/orders"),
        ("file:///lake/orders", "file:///lake/orders"),
        ("file:/lake/orders", "file:///lake/orders"),
        ("file://localhost/lake/orders", "file:///lake/orders"),
        ("FILE:///lake/my%20orders", "file:///lake/my%20orders"),
        ("/lake/my orders", "file:///lake/my%20orders"),
        ("/lake/my%20orders", "file:///lake/my%2520orders"),
        ("/lake/year=2024/a:b#1", "file:///lake/year%3D2024/a%3Ab%231"),
    ],
)
def test_local_folders(location: str, uri: str) -> None:
    """Paths and file URIs are local folders; relative ones are relative to the job file's folder; the URI is percent-encoded."""
    sink = open_sink(declared(location), base="/jobs")
    assert sink.uri in (
        uri,
        uri.replace("%3D", "=").replace("%3A", ":"),
    )  # both are the same URI; Python versions differ
    assert (sink.name, sink.kind) == ("orders", "slotLog")


def test_opening_touches_nothing(tmp_path: Path) -> None:
    """Sinks are opened for a plan or a replay too, so opening creates no folder."""
    open_sink(declared("orders"), base=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        ("s3://bucket/orders", "s3a://bucket/orders"),
        ("S3A://bucket//orders/", "s3a://bucket/orders"),
        ("s3a://my.bucket/year=2024/my orders", "s3a://my.bucket/year=2024/my orders"),
        ("s3://bucket", "s3a://bucket"),
        ("gs://b_1/a/b", "gs://b_1/a/b"),
        ("az://c/orders", "abfss://c@account.dfs.core.windows.net/orders"),
        ("abfs://c@a.dfs.core.windows.net/orders", "abfss://c@a.dfs.core.windows.net/orders"),
        ("abfss://c@a.dfs.core.chinacloudapi.cn/o", "abfss://c@a.dfs.core.chinacloudapi.cn/o"),
    ],
)
def test_places_on_stores(location: str, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All spellings of a place give one URI, the one that Hadoop's connectors read; no store is contacted."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    assert open_sink(declared(location), base="/jobs").uri == uri


@pytest.mark.parametrize("location", ["hdfs://n/o", "http://bucket.example/o", "s3:bucket/o", "S4://b/o"])
def test_other_schemes_are_refused(location: str) -> None:
    """The sentence has the field and the supported schemes; an unknown one never counts as a relative path."""
    with pytest.raises(
        OutputUnsupported, match=r"^spec\.outputs\[orders\]\.slotLog\.path: unsupported scheme `\w+:`; .* s3://"
    ):
        open_sink(declared(location), base="/jobs")


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("s3://", "name of a bucket alone"),
        ("s3://KEY:SECRET@bucket/o", "name of a bucket alone"),
        ("s3://bucket?token=SECRET", "name of a bucket alone"),
        ("gs://bucket/o?token=SECRET", "must not contain '\\?'"),
        ("s3://bucket/a%20b", "must not contain '%'"),
        ("s3://bucket/{revision}", "must not contain '{'"),
        ("s3://bucket/a//b", "empty, `.` or `..` part"),
        ("s3://bucket/a/../b", "empty, `.` or `..` part"),
        ("az://container/o", "names no storage account"),
        ("abfss://container@account:SECRET/o", "write abfss://"),
    ],
)
def test_bad_places_on_stores(location: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence has the field and repeats no secret."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InvalidInput, match=rf"^spec\.outputs\[orders\]\.slotLog\.path.*{why}") as raised:
        open_sink(declared(location), base="/jobs")
    assert "SECRET" not in str(raised.value)


def test_other_kinds_are_refused() -> None:
    """There is no fallback: the sentence has the field, and what to write instead."""
    with pytest.raises(
        OutputUnsupported, match=r"^spec\.outputs\[orders\]\.parquet: this version writes .*; declare `slotLog"
    ):
        open_sink(declared("/lake/orders", kind="parquet"), base="/jobs")


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("/lake/*", "reads as patterns"),
        ("/lake/orders-{revision}", "reads as patterns"),
        ("file://server/lake", "is not the URI of a local folder"),
        ("file:///lake#orders", "is not the URI of a local folder"),
    ],
)
def test_bad_locations(location: str, why: str) -> None:
    """Each is refused in one sentence that begins with the field."""
    with pytest.raises(InvalidInput, match=rf"^spec\.outputs\[orders\]\.slotLog\.path.*{why}"):
        open_sink(declared(location), base="/jobs")


def test_a_relative_path_needs_a_job_file() -> None:
    """Without a job file a relative path has no base: another process might resolve it to another folder."""
    with pytest.raises(InvalidInput, match="orders is relative and there is no job file"):
        open_sink(declared("orders"), base=None)


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    """A path through a loop of symbolic links cannot be resolved."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(InvalidInput, match="go in circles"):
        open_sink(declared("a/orders"), base=str(tmp_path))


@pytest.mark.parametrize("location", ["x" * 256, "ü" * 128, "file:///lake/" + "x" * 256, "/lake" + "/x" * 1534])
def test_a_path_that_no_file_system_takes_is_refused(location: str) -> None:
    """By its bytes, not its characters; one byte less is a path."""
    with pytest.raises(InvalidInput, match="a name in it has over 255 bytes, or the path over 3072"):
        open_sink(declared(location), base="/jobs")
    assert open_sink(declared(location[:-1]), base="/jobs").uri.startswith("file:///")


@pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "a b", "_idem"])
def test_names_become_parts_of_paths(name: str) -> None:
    """An output's name that would leave its folder, or be hidden in it, is refused."""
    with pytest.raises(InvalidInput, match="becomes part of paths"):
        open_sink(declared("/lake/orders", name=name), base="/jobs")
