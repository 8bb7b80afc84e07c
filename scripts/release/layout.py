"""Joins the archives of one image for several architectures into an OCI image layout with one index, as registries serve it.

The layers of an archive are not compressed; here they are, with the same bytes each time, so that the index's digest is known before
anything is pushed, and a second push of the same archives changes nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from release.version import NotReleased

LEVEL = 6
"""Of gzip: the usual one. The best takes three times as long and saves a hundredth."""
INDEX = "application/vnd.oci.image.index.v1+json"
GZIPPED = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True, kw_only=True)
class Layout:
    folder: Path
    digest: str
    """Of the index."""
    by_architecture: dict[str, str]
    """Digest of the image of each architecture."""


def joined(archives: Sequence[Path], folder: Path) -> Layout:
    """Writes the layout to `folder`, which must not exist.

    Raises:
        NotReleased: two archives are for one architecture, or are different images.
    """
    (folder / "blobs" / "sha256").mkdir(parents=True)
    entries = [_image(each, folder) for each in archives]
    by_architecture = {str(each["platform"]["architecture"]): str(each["digest"]) for each in entries}
    names = ", ".join(each.name for each in archives)
    if len(by_architecture) != len(archives):
        raise NotReleased(
            f"{names} are for {' and '.join(by_architecture)} alone: give one archive for each architecture"
        )
    if len(titles := {each["annotations"]["org.opencontainers.image.title"] for each in entries}) != 1:
        raise NotReleased(f"{names} are different images: {', '.join(sorted(titles))}")
    entries.sort(key=lambda each: str(each["platform"]["architecture"]))
    index = _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
    (folder / "index.json").write_bytes(index)
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    return Layout(folder=folder, digest=f"sha256:{hashlib.sha256(index).hexdigest()}", by_architecture=by_architecture)


def _image(archive: Path, folder: Path) -> dict[str, Any]:
    """Copies the image of an archive into the layout; returns its entry in the index."""
    with tarfile.open(archive) as tar:
        (entry,) = json.loads(_blob(tar, "index.json").read())["manifests"]
        manifest = json.loads(_blob(tar, entry["digest"]).read())
        config = _blob(tar, manifest["config"]["digest"]).read()
        _write(folder, config)
        manifest["layers"] = [_compressed(_blob(tar, each["digest"]), folder) for each in manifest["layers"]]
    digest, size = _write(folder, _json(manifest))
    title = json.loads(config)["config"]["Labels"]["org.opencontainers.image.title"]
    annotations = {"org.opencontainers.image.title": title}
    return {
        "mediaType": manifest["mediaType"], "digest": digest, "size": size, "platform": entry["platform"], "annotations": annotations,
    }  # fmt: skip


def _blob(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(f"blobs/{name.replace(':', '/')}" if ":" in name else name)
    assert file is not None, name
    return file


def _compressed(layer: IO[bytes], folder: Path) -> dict[str, Any]:
    part = folder / "part"
    with part.open("wb") as raw, gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as packed:
        shutil.copyfileobj(layer, packed, 1 << 20)
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = part.stat().st_size
    part.rename(folder / "blobs" / "sha256" / digest)
    return {"mediaType": GZIPPED, "digest": f"sha256:{digest}", "size": size}


def _write(folder: Path, data: bytes) -> tuple[str, int]:
    digest = hashlib.sha256(data).hexdigest()
    (folder / "blobs" / "sha256" / digest).write_bytes(data)
    return f"sha256:{digest}", len(data)


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
