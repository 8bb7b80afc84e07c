"""Writes an OCI image layout as one tar file, as `ctr images import`, `kind load image-archive`, `skopeo` and `docker load` read it.

Reproducible: the same layers and tag give the same bytes. `manifest.json` is included for readers older than OCI.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from images.contents import Image, NotBuilt
from images.layers import EPOCH, Layer

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CREATED = "2025-01-01T00:00:00Z"
"""EPOCH as text: the time of every file."""
_TYPE = "application/vnd.oci.image"


def architecture() -> str:
    """Architecture of this machine, for which every image is built."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise NotBuilt(f"images are made for {' and '.join(ARCHITECTURES)}, and this machine is {machine}")
    return ARCHITECTURES[machine]


def checked(tag: str) -> str:
    """The part of the tag after the colon. Raises NotBuilt if a node would read the tag as another name."""
    host, _, rest = tag.partition("/")
    name, _, version = rest.rpartition(":")
    if not (name and version) or not ({".", ":"} & set(host) or host == "localhost"):
        raise NotBuilt(
            f"{tag!r} is no full name of an image; give HOST/NAME:VERSION, such as localhost/sparkonce/operator:dev"
        )
    return version


def write(image: Image, layers: Sequence[Layer], target: Path, *, tag: str) -> Path:
    """Writes the archive beside `target` and renames it when it is complete. Raises NotBuilt, as `checked` does."""
    version = checked(tag)
    config = _json(_config(image, layers))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": {"mediaType": f"{_TYPE}.config.v1+json", "digest": _digest(config), "size": len(config)},
            "layers": [
                {"mediaType": f"{_TYPE}.layer.v1.tar", "digest": each.digest, "size": each.size} for each in layers
            ],
        }
    )
    entry = {
        "mediaType": f"{_TYPE}.manifest.v1+json",
        "digest": _digest(manifest),
        "size": len(manifest),
        "platform": {"architecture": architecture(), "os": "linux"},
        "annotations": {"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": version},
    }
    old = [{"Config": _blob(_digest(config)), "RepoTags": [tag], "Layers": [_blob(each.digest) for each in layers]}]
    documents = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [entry]}),
        "manifest.json": _json(old),
        _blob(_digest(config)): config,
        _blob(_digest(manifest)): manifest,
    }
    part = target.with_name(f"{target.name}.part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        for path, data in documents.items():
            tar.addfile(_entry(path, len(data)), io.BytesIO(data))
        for layer in {each.digest: each for each in layers}.values():
            with layer.path.open("rb") as file:
                tar.addfile(_entry(_blob(layer.digest), layer.size), file)
    part.rename(target)
    return target


def _config(image: Image, layers: Sequence[Layer]) -> dict[str, Any]:
    return {
        "created": CREATED,
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "User": f"{image.user.uid}:{image.user.uid}",
            "Env": [f"{name}={value}" for name, value in image.settings().items()],
            "Entrypoint": list(image.entrypoint),
            "Cmd": list(image.command),
            "WorkingDir": image.workdir,
            "Labels": {"org.opencontainers.image.title": image.title},
        },
        "rootfs": {"type": "layers", "diff_ids": [each.digest for each in layers]},
        "history": [{"created": CREATED, "created_by": each.what} for each in layers],
    }


def _entry(path: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mtime, entry.mode = size, EPOCH, 0o644
    return entry


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
