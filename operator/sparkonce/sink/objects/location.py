"""Resolves the location of a table to a local folder or an object store. Reads nothing but symbolic links, sends no request."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.sink.objects import cloud
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.protocol import TableObjects

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")
_PATTERNS = "* ? [ ] { } \\, which Spark reads as patterns"
_GLOB = re.compile(r"[*?\[\]{}\\]")
NAME_BYTES, PATH_BYTES = 255, 3072
"""The longest name that Linux's file systems take, and a path that leaves room, within their 4,096, for files of the table."""
_TOO_LONG = re.compile(rb"(?s)[^/]{%d}|^.{%d}" % (NAME_BYTES + 1, PATH_BYTES + 1))


def on_store(location: str) -> bool:
    """Whether the location is a URL with a scheme other than `file`."""
    scheme = _SCHEME.match(location)
    return scheme is not None and scheme[1].lower() != "file"


def objects_at(location: str, *, base: str | None = None, field: str, durable: bool = True) -> TableObjects:
    """The objects of the table at a location. Errors begin with `field`.

    base: the folder that relative paths are relative to; None refuses them. durable: see `FolderObjects`.

    Raises:
        InvalidInput: not a valid location.
        OutputUnsupported: a scheme that is not supported.
        OutputUnavailable: the environment's settings for the store are invalid.
    """
    if on_store(location):
        return cloud.open_objects(cloud.parse(location, field=field))
    return FolderObjects(local_folder(location, base=base, field=field), durable=durable)


def local_folder(location: str, *, base: str | None = None, field: str) -> Path:
    """The absolute path of a local location. Errors begin with `field`.

    Raises:
        InvalidInput: not a valid path or `file://` URI.
        OutputUnsupported: a URL of another scheme.
    """
    path = _path_of_uri(location, field) if _SCHEME.match(location) else location
    if not path.strip() or "\0" in path:
        raise InvalidInput(f"{field} is empty; give the folder of the table")
    if _GLOB.search(path):
        # Spark expands glob patterns: a file would be read once for each pattern that matches it.
        raise InvalidInput(f"{field}: {location} holds one of {_PATTERNS}; rename it")
    if not path.startswith("/"):
        if base is None:
            raise InvalidInput(
                f"{field}: {location} is relative and there is no job file to be relative to; write the full path"
            )
        path = f"{Path(base).absolute()}/{path}"
    if _TOO_LONG.search(path.encode(errors="surrogatepass")):
        raise InvalidInput(f"{field}: a name in it has over {NAME_BYTES} bytes, or the path over {PATH_BYTES}")
    try:
        return Path(path).resolve()  # obstore refuses `..`, whose meaning depends on the symbolic links before it
    except (OSError, RuntimeError):
        raise InvalidInput(f"{field}: the symbolic links of {location} go in circles; give another folder") from None


def _path_of_uri(location: str, field: str) -> str:
    """The path of a `file://` URI. Raises: InvalidInput, OutputUnsupported, as `local_folder`."""
    try:
        url = urlsplit(location)
    except ValueError:  # an unclosed bracket, which begins an IPv6 address
        raise InvalidInput(f"{field}: {location} is not a URL; write file:///folder") from None
    if on_store(location):
        raise OutputUnsupported(f"{field}: {location} is not a local folder; give a path or a file:// URI")
    if url.netloc not in ("", "localhost") or url.query or url.fragment:
        raise InvalidInput(f"{field}: {location} is not the URI of a local folder; write file:///folder")
    return unquote(url.path)
