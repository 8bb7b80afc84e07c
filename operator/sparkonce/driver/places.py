"""Which declared output a location is, and what to declare where it is none. Pure, but that it follows symbolic links, and for `qualified`.

Two locations are one if their canonical URLs are equal (`sink.objects`): relative paths and links are followed, `s3://` and `s3a://` mean
the same. What cannot be a location of an output (a pattern, another scheme) is no output, so a write there is refused, not passed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sparkonce.errors import SparkonceError
from sparkonce.model import masking
from sparkonce.model.spec import NAME_LENGTH
from sparkonce.sink.objects import cloud
from sparkonce.sink.objects.location import local_folder, on_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = 500
"""Characters of a command and its location in a sentence."""
_MODES = ("append", "overwrite", "errorifexists", "ignore")
_FIELD = ""  # of a job; the sentence is not shown


def url_of(location: str, *, base: str) -> str | None:
    """The canonical URL of a location as Spark spells it; None: no output can be there. base: the folder that relative paths are below."""
    try:
        if on_store(location):
            return cloud.parse(location, field=_FIELD).uri
        return local_folder(location, base=base, field=_FIELD).as_uri()
    except (SparkonceError, ValueError):
        return None


def qualified(session: SparkSession, path: str) -> str:
    """A path as the session's file systems understand it; as it is written, if none of them does."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    java: Any = session
    given = java._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001 - Spark's sessions have no public state
    try:
        written = given(path)
        store = written.getFileSystem(java._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001 - see above
        return str(store.makeQualified(written).toString())
    except (PySparkException, Py4JJavaError):
        return path


def output_at(location: str, outputs: Mapping[str, str], *, base: str) -> str | None:
    """The output at this location. outputs: name -> canonical URL."""
    url = url_of(location, base=base)
    return next((name for name, place in outputs.items() if place == url), None) if url is not None else None


def below(location: str, outputs: Mapping[str, str], *, base: str) -> str | None:
    """The output whose folder contains this location, such as one of its partitions, or lies in it."""
    url = url_of(location, base=base)
    if url is None:
        return None
    return next(
        (name for name, at in outputs.items() if f"{url}/".startswith(f"{at}/") or f"{at}/".startswith(f"{url}/")), None
    )


def line_for(kind: str, location: str, mode: str, taken: Collection[str], *, base: str) -> str:
    """The entry of spec.outputs that would take a write of this format and mode; empty: no kind of output would."""
    url = url_of(location, base=base)
    if url is None or "'" in location:
        return ""
    if kind == "delta" and not url.startswith("s3a://"):  # there Spark's engine may overwrite entries of the log
        field = "delta"
    elif kind == "parquet" and mode in _MODES:
        field = "slotLog"
    else:
        return ""
    path = unquote(urlsplit(url).path) if url.startswith("file:") else location
    return f"- {{name: {name_for(location, taken)}, {field}: {{path: '{path}'}}, capture: true}}"


def line_for_table(table: str, taken: Collection[str]) -> str:
    """The entry of spec.outputs that would take writes of an Iceberg table; empty: it has no namespace. table: its name in full."""
    catalog, _, name = table.partition(".")
    if "." not in name or "'" in table:
        return ""
    proposed = name_for(name.rpartition(".")[2], taken)
    return f"- {{name: {proposed}, iceberg: {{catalog: '{catalog}', table: '{name}'}}, capture: true}}"


def name_for(location: str, taken: Collection[str]) -> str:
    """Proposes a name for an output: the last part of its location, with a number if another output has that name."""
    last = PurePosixPath(location.rstrip("/")).name
    name = re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:NAME_LENGTH].strip("-") or "table"
    number = 2
    free = name
    while free in taken:
        free = f"{name[: NAME_LENGTH - 4].strip('-')}-{number}"
        number += 1
    return free


def shown(text: str) -> str:
    """A command with its location, as a sentence shows it: without secrets."""
    line = masking.quotable(" ".join(text.split()))
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}..."
