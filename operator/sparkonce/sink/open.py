"""From a declared output to the sink that writes it.

Takes plain data, so that owners, drivers and settle runs open the same sink from whatever they hold. It refuses what this version
does not have with one sentence that names the field; another kind is never put in its place, because a job that asked for a Delta table
must not find out later that it has none. Opening touches nothing: no folder is made and no store is asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.sink.objects import FolderObjects
from sparkonce.sink.protocol import OnRerun, Sink
from sparkonce.sink.slots import SlotLog
from sparkonce.sink.staging import Stager

SLOT_LOG = "slotLog"
DELTA = "delta"

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
_GLOB = re.compile(r"[*?\[\]{}\\]")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """One entry of `spec.outputs`."""

    name: str
    kind: str
    """The field that is set: slotLog, delta, iceberg."""
    location: str
    """A path or a `file://` URI; a relative path is relative to the job file's folder."""
    on_rerun: OnRerun = OnRerun.REPLACE

    @property
    def field(self) -> str:
        return f"spec.outputs[{self.name}].{self.kind}"


def open_sink(output: Declared, *, base: str | None, stage: Stager | None = None, durable: bool = True) -> Sink:
    """The sink of a declared output.

    base: the folder that relative paths are relative to; None where there is none.
    stage: what writes the rows; Spark by default.
    durable: see FolderObjects.
    InvalidInput, OutputUnsupported: one sentence with the field; nothing was touched."""
    if output.kind not in (SLOT_LOG, DELTA):
        raise OutputUnsupported(
            f"{output.field}: this version writes {SLOT_LOG} and {DELTA} outputs only; declare `slotLog: {{path: ...}}` instead"
        )
    if not _NAME.match(output.name):
        raise InvalidInput(
            f"spec.outputs[{output.name}].name becomes part of paths; use letters, digits, `-`, `_` and `.`, a letter or digit first"
        )
    folder = local_folder(output.location, base=base, field=f"{output.field}.path")
    objects = FolderObjects(folder, durable=durable)
    if output.kind == DELTA:
        try:
            from sparkonce.sink.delta import open_delta
        except ModuleNotFoundError:
            raise OutputUnsupported(
                f"{output.field}: the package deltalake is not installed; run `pip install sparkonce[delta]`"
            ) from None
        return open_delta(objects, name=output.name, on_rerun=output.on_rerun, stage=stage)
    return SlotLog(objects, name=output.name, on_rerun=output.on_rerun, stage=stage)


def local_folder(location: str, *, base: str | None = None, field: str) -> Path:
    """The absolute path that a location means. InvalidInput and OutputUnsupported name `field`."""
    path = location
    if scheme := _SCHEME.match(location):
        url = urlsplit(location)
        if scheme[1].lower() != "file":
            raise OutputUnsupported(
                f"{field}: this version knows local folders only, and {location} is not one; give a path or a file:// URI"
            )
        if url.netloc not in ("", "localhost") or url.query or url.fragment:
            raise InvalidInput(f"{field}: {location} is not the URI of a local folder; write file:///folder")
        path = unquote(url.path)
    if not path.strip() or "\0" in path:
        raise InvalidInput(f"{field} is empty; give the folder of the table")
    if _GLOB.search(path):
        # Spark expands these when it reads: a file would be read as often as a pattern finds it.
        raise InvalidInput(
            f"{field}: {location} holds one of * ? [ ] {{ }} \\, which Spark reads as patterns; rename it"
        )
    if not path.startswith("/"):
        if base is None:
            raise InvalidInput(
                f"{field}: {location} is relative and there is no job file to be relative to; write the full path"
            )
        path = f"{Path(base).absolute()}/{path}"
    try:
        return Path(path).resolve()  # obstore refuses `..`, and what it means is up to the links before it
    except (OSError, RuntimeError):
        raise InvalidInput(f"{field}: the symbolic links of {location} go in circles; give another folder") from None
