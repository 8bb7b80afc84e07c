"""One image for several architectures: an index with the same bytes each time, whose images are those of the archives."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from publishing.archives import small
from release.layout import Layout, joined
from release.version import NotReleased

ARCHITECTURES = ("amd64", "arm64")


def pair(folder: Path, patch: pytest.MonkeyPatch) -> list[Path]:
    folder.mkdir()
    return [small(folder, "operator", each, {"etc/kind": each.encode()}, patch) for each in ARCHITECTURES]


def read(layout: Layout, digest: str) -> Any:
    """A JSON document of the layout, after its digest was checked."""
    return json.loads(blob(layout, digest))


def blob(layout: Layout, digest: str) -> bytes:
    data = (layout.folder / "blobs" / digest.replace(":", "/")).read_bytes()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
    return data


def test_each_architecture_has_its_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index names both; each image has its own configuration, whose digests are those of the layers before they were compressed, and
    unpacked it has the file of its own archive."""
    made = joined(pair(tmp_path / "archives", monkeypatch), tmp_path / "layout")
    index = (made.folder / "index.json").read_bytes()
    assert f"sha256:{hashlib.sha256(index).hexdigest()}" == made.digest
    entries = json.loads(index)["manifests"]
    assert [each["platform"] for each in entries] == [{"architecture": each, "os": "linux"} for each in ARCHITECTURES]
    for entry, architecture in zip(entries, ARCHITECTURES, strict=True):
        assert made.by_architecture[architecture] == entry["digest"]
        assert len(blob(made, entry["digest"])) == entry["size"]
        manifest = read(made, entry["digest"])
        config = read(made, manifest["config"]["digest"])
        assert config["architecture"] == architecture
        (layer,) = manifest["layers"]
        assert layer["mediaType"].endswith("tar+gzip")
        assert len(blob(made, layer["digest"])) == layer["size"]
        unpacked = gzip.decompress(blob(made, layer["digest"]))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]
        (tmp_path / "layer.tar").write_bytes(unpacked)
        with tarfile.open(tmp_path / "layer.tar") as tar:
            file = tar.extractfile("etc/kind")
            assert file is not None
            assert file.read().decode() == architecture


def test_the_same_archives_are_the_same_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their order and whenever it is made, so that a second push is no other release; another file is another index."""
    archives = pair(tmp_path / "archives", monkeypatch)
    first = joined(archives, tmp_path / "1")
    assert joined(archives[::-1], tmp_path / "2") == Layout(
        folder=tmp_path / "2", digest=first.digest, by_architecture=first.by_architecture
    )
    other = small(tmp_path, "operator", "arm64", {"etc/kind": b"other"}, monkeypatch)
    assert joined([archives[0], other], tmp_path / "3").digest != first.digest


def test_archives_that_do_not_belong_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of one architecture would hide one of them, and two images under one name would be two programs."""
    archives = pair(tmp_path / "archives", monkeypatch)
    with pytest.raises(NotReleased, match="are for amd64 alone: give one archive for each architecture"):
        joined([archives[0], archives[0]], tmp_path / "1")
    other = small(tmp_path, "etcd", "arm64", {"etc/kind": b"arm64"}, monkeypatch)
    with pytest.raises(
        NotReleased, match="are different images: etcd, etcdctl and etcdutl, sparkonce operator and gateway"
    ):
        joined([archives[0], other], tmp_path / "2")
