"""What the location of a table means: a local folder, or a place on an object store. Touches nothing and asks no store."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.sink import object_stores
from sparkonce.sink.folder_objects import FolderObjects
from sparkonce.sink.objects import Objects

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")
_GLOB = re.compile(r"[*?\[\]{}\\]")


def on_store(location: str) -> bool:
    """Not a local folder: a URL whose scheme is another than `file`."""
    scheme = _SCHEME.match(location)
    return scheme is not None and scheme[1].lower() != "file"


def objects_at(location: str, *, base: str | None = None, field: str, durable: bool = True) -> Objects:
    """The objects of the table at that place.

    base: the folder that relative paths are relative to; None where there is none. durable: see FolderObjects.
    InvalidInput, OutputUnsupported: one sentence that begins with `field`. OutputUnavailable: the environment's settings of that store."""
    if on_store(location):
        return object_stores.open_objects(object_stores.parse(location, field=field))
    return FolderObjects(local_folder(location, base=base, field=field), durable=durable)


def local_folder(location: str, *, base: str | None = None, field: str) -> Path:
    """The absolute path that a location means. InvalidInput and OutputUnsupported name `field`."""
    path = location
    if scheme := _SCHEME.match(location):
        url = urlsplit(location)
        if scheme[1].lower() != "file":
            raise OutputUnsupported(f"{field}: {location} is not a local folder; give a path or a file:// URI")
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
