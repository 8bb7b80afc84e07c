# ruff: noqa: SLF001 - Spark's readers have no public state
"""What a captured script reads back: its readers of Parquet, where they meet the folder of a slot log of the job.

Under the folder of a slot log lie the files of all attempts, committed or not, in folders whose names begin with an underscore. Spark skips
those when it lists the folder, and so finds nothing. A pattern (`out/*/*/*/*`) does match them, and would show rows that were never
committed, or were replaced. So such reads never reach Spark:

* The folder itself stands for the rows that the table shows.
* A path or pattern of partitions below it, as a plain Parquet folder with the same partitions would have (`out/*/*`, `out/day=2024-05-01`),
  stands for the rows of those partitions, and has the columns that Spark would find: those whose folders the path goes through are left out
  unless `basePath` names the folder.
* Where nothing is committed yet, Spark is asked for the folder and says what it would say.
* What cannot be told from the rows (other patterns, names of files, options that choose among files, other folders in the same call) is
  refused by name, and so is SQL that names such files itself (``parquet.`out/*/*` ``).

Spark's rule for partition columns below a path: `PartitioningAwareFileIndex.basePaths`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from sparkonce.driver import places
from sparkonce.driver.statements import options_of
from sparkonce.errors import InvalidInput, NothingCommitted, SparkonceError
from sparkonce.sink.groups import NULL, quoted
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog import reader as slots
from sparkonce.sink.slotlog.snapshot import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CHOOSING = ("pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter")
"""Options of a reader of Parquet that choose among files. All others leave the rows of a slot log as they are."""
_GLOB = re.compile(r"[*?{}\[\]\\]")
"""Characters that Hadoop's patterns give a meaning."""
_ALL_FILES = ("*", "*.parquet")
_FORMATS = "parquet|orc|avro|csv|json|text|xml|binaryfile"
_FILES = re.compile(rf"(?<![\w.`])`?(?:{_FORMATS})`?\s*\.\s*(?:`((?:[^`]|``)+)`|(\w+)\b)(?!\s*\.)", re.IGNORECASE)
_OPTIONS = re.compile(r"\bUSING\b.*?\bOPTIONS\s*\((.*)", re.IGNORECASE | re.DOTALL)
_PATH = re.compile(r"""\bpath["'`]?\s*=?\s*(?:"([^"]+)"|'([^']+)')""", re.IGNORECASE)
"""Of a view that is made of files: `CREATE TEMPORARY VIEW v USING parquet OPTIONS (path 'out')`."""


@dataclass(frozen=True)
class ChosenRows:
    """The rows that a path below the folder of a partitioned table stands for."""

    levels: int
    """How many partition columns have their folders in the path."""
    values: tuple[tuple[str, str], ...] = ()
    """Partition columns that the path names a value of, and the name of that value's folder."""


def chosen(below: Sequence[str], columns: Sequence[str]) -> ChosenRows | None:
    """below: the parts of a path or pattern below a table's folder. columns: the table's partition columns, in the order of their folders.
    None: which rows it stands for cannot be told from the rows."""
    if len(below) > len(columns) + 1 or (len(below) > len(columns) and below[-1] not in _ALL_FILES):
        return None
    values = []
    for part, column in zip(below, columns, strict=False):
        name, equals, value = part.partition("=")
        if part == "*":
            continue
        if not equals or unquote(name).lower() != column.lower():
            return None
        if value != "*":
            if _GLOB.search(value):
                return None
            values.append((column, unquote(value)))
    return ChosenRows(min(len(below), len(columns)), tuple(values))


def named_files(text: str) -> list[str]:
    """The paths that a text of SQL, or a table's name, may read files at by itself. It is searched, not parsed: one in a comment counts."""
    options = _OPTIONS.search(text)
    named = [*_FILES.findall(text), *(_PATH.findall(options[1]) if options else ())]
    return [(one or other).replace("``", "`") for one, other in named]


@dataclass(frozen=True)
class _ReadPlace:
    """Where a path meets a slot log."""

    output: str
    below: tuple[str, ...] | None
    """The parts of the path below its folder; None: a pattern above it that matches it."""


class ScriptReads:
    """The reads of one script."""

    def __init__(
        self,
        logs: Mapping[str, str],
        *,
        base: str,
        fail: Callable[[SparkonceError], NoReturn],
        table: Callable[[str, str], Table] = lambda _, url: Table(url),
    ) -> None:
        """logs: the slot logs of the job, name -> canonical URL. base: the folder that the script runs in. fail: ends the job. table: the
        table of an output at its URL, as the script is to see it."""
        self._logs, self._base, self._fail, self._table = logs, base, fail, table

    def rows(self, reader: Any, paths: Sequence[str], plainly: Callable[[Sequence[str]], DataFrame]) -> DataFrame:
        """What a reader of Parquet with its options finds at these paths. plainly: reads paths with Spark alone.

        Raises: InvalidInput, which ends the job: see above.
        """
        options = options_of(reader._jreader)
        recursive = options.get("recursivefilelookup", "").lower() == "true"
        found = [self._place(reader._spark, path, recursive=recursive) for path in paths]
        name = next((place.output for place in found if place is not None), None)
        if name is None:
            return plainly(paths)
        belows = [
            place.below for place in found if place is not None and place.output == name and place.below is not None
        ]
        if len(belows) < len(paths):
            self._refuse(
                paths, name, "takes in other places too. Read each by itself, and join them with `unionByName`"
            )
        if choosing := [each for each in _CHOOSING if options.get(each.lower(), "false").lower() != "false"]:
            self._refuse(
                paths,
                name,
                f"has the option {choosing[0]}, which chooses among files. Leave it out, and filter the rows",
            )
        table = self._table(name, self._logs[name])
        try:
            rows = slots.rows_of(reader._spark, table)
            columns = slots.partitioned_by(table) if any(belows) else ()
        except NothingCommitted:
            return plainly([self._logs[name]])
        found_rows = [chosen(below, columns) for below in belows] if columns is not None else []
        picked = [each for each in found_rows if each is not None]
        if columns is None or len(picked) < len(belows) or len({each.levels for each in picked}) > 1:
            self._refuse(
                paths,
                name,
                "names files, or folders that are no partitions of it. Read the folder, and filter the rows",
            )
        whole = self._is_base(reader._spark, options.get("basepath"), name, paths)
        left_out = () if whole else columns[: picked[0].levels]
        return _as_asked(reader, _filtered(rows, picked).drop(*left_out))

    def refuse_named(self, session: Any, text: str) -> None:
        """text: SQL, or the name of a table. Raises: InvalidInput, which ends the job: it names files where a slot log keeps them."""
        for path in named_files(text):
            if (place := self._place(session, path, recursive=False)) is not None:
                self._refuse(
                    [path],
                    place.output,
                    "is by SQL, which shows them as they are. Read the folder by `spark.read.parquet`, and make a view of it",
                )

    def _place(self, session: Any, path: str, *, recursive: bool) -> _ReadPlace | None:
        # sparkonce itself reads files by their paths, thousands of them, and so may a script that was given them (`sparkonce.files`).
        if layout.in_staging(path):
            return None
        parts = places.qualified(session, path).rstrip("/").split("/")
        first = next((at for at, part in enumerate(parts) if _GLOB.search(part)), len(parts))
        fixed, rest = parts[:first], parts[first:]
        url = places.url_of("/".join(fixed), base=self._base)
        if url is None:
            return None
        for name, at in self._logs.items():
            if f"{url}/".startswith(f"{at}/"):
                deeper = url.count("/") - at.count("/")
                below = (*fixed[len(fixed) - deeper :], *rest)
                return _ReadPlace(name, below)
            if f"{at}/".startswith(f"{url}/"):
                own = unquote(at[len(url) :]).strip("/").split("/")
                if (recursive and not rest) or (rest and len(rest) >= len(own) and all(map(_may_match, own, rest))):
                    return _ReadPlace(name, None)
        return None

    def _is_base(self, session: Any, given: str | None, name: str, paths: Sequence[str]) -> bool:
        """Whether `basePath` keeps all partition columns: it names the folder, or one above it."""
        if given is None:
            return False
        url = places.url_of(places.qualified(session, given), base=self._base)
        if url is None or not f"{self._logs[name]}/".startswith(f"{url}/"):
            self._refuse(paths, name, f"has the basePath {given}, which is below it. Give the folder")
        return True

    def _refuse(self, paths: Sequence[str], name: str, why: str) -> NoReturn:
        shown = places.shown(", ".join(paths))
        self._fail(
            InvalidInput(
                f"the script reads {shown}, where output {name} keeps the files of all attempts, committed or not, and the read {why}; it "
                "was not run"
            )
        )


def _may_match(name: str, pattern: str) -> bool:
    """Whether a part of a pattern may match a folder's name; alternatives in braces may match any."""
    return fnmatchcase(name, re.sub(r"\{.*", "*", pattern))


def _filtered(rows: DataFrame, picked: Sequence[ChosenRows]) -> DataFrame:
    if any(not each.values for each in picked):
        return rows
    from pyspark.sql.functions import lit

    found = lit(False)
    for each in picked:
        own = lit(True)
        for column, text in each.values:
            own = own & _is_value(rows, column, text)
        found = found | own
    return rows.where(found)


def _is_value(rows: DataFrame, column: str, text: str) -> Column:
    """Whether Spark would name the folder of a row's value like that: it casts values to text, and has one name for null and no text."""
    value = rows[quoted(column)].cast("string")
    return value.isNull() | (value == "") if text == NULL else value.eqNullSafe(text)


def _as_asked(reader: Any, rows: DataFrame) -> DataFrame:
    """In the reader's schema if it has one."""
    from pyspark.sql.functions import lit
    from pyspark.sql.types import StructType

    asked = reader._jreader.userSpecifiedSchema()
    if not asked.isDefined():
        return rows
    schema = StructType.fromJson(json.loads(asked.get().json()))
    # Without regard to case, as Spark's: `withColumns` would replace a column that the schema spells otherwise by nulls.
    known = {name.lower() for name in rows.columns}
    missing = [field for field in schema.fields if field.name.lower() not in known]
    return rows.withColumns({field.name: lit(None).cast(field.dataType) for field in missing}).to(schema)
