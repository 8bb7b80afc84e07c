"""The matrix of values: every type of Spark with its odd values, in columns, nested, and as partitions, in tables of each kind.

A `Case` says what is written and how. `play` writes it as a job does and reads it with programs that are not ours; each must find what was
written, or the write was refused before anything was visible, by a sentence that names a column.

Values are Arrow's own numbers (days and microseconds since 1970), since Python has no dates outside of the years 1 to 9999.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import strategies as st
from pyarrow import parquet
from pyiceberg import expressions

import sparkonce
from harness import iceberg_tables
from harness.granted import granted
from harness.tasks_spark import HOSTILE
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.model.spec import OnRerun
from sparkonce.sink.iceberg.schema import schema_of
from sparkonce.sink.open import open_sink, sinks_of
from sparkonce.sink.protocol import GROUPED_SCHEMA, Committed, Declared, Sink, SinkKey, WriteOptions
from sparkonce.sink.slotlog.reader import files, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("slotLog", "delta", "iceberg")
WRITERS = {"slotLog": ("job", "stream", "notebook"), "delta": ("job", "stream"), "iceberg": ("job", "stream")}
"""Who writes: a job's `write`, a job's `stream`, or a notebook's block, which has slot logs alone."""
TABLE = ("sales", "matrix")
KEY = SinkKey(key_hash="matrix", output="values", generation=1)

Filters: Any = expressions  # pyiceberg's annotations know fewer ways than its documentation

_DAYS = [0, -1, 1, 19844, -719162, 2932896, -141428, -719163, 2932897, -(10**6) * 365, 10**6 * 365]
"""Days since 1970: years 1 and 9999, the calendar reform, and years that Python does not have."""
_MICROS = [
    0, -1, 1, 1710055800000000, -62135596800000000, 253402300799999999, -62135596800000001, 253402300800000000,
    -9223372036854776, 9223372036854775, -12219292800000000, -2717640000000000, 9224318015999999999 - 10**15,
]  # fmt: skip
"""Microseconds since 1970: the bounds of years, of nanoseconds in 64 bits, of the calendar and of time zones' history."""
_TEXTS = [
    "", "a", "A", "null", "NULL", "__HIVE_DEFAULT_PARTITION__", "a/b=c %", "ü", "u\u0308", "\0", "x\0y", "line\n", " lead", "trail ",
    "x" * 90, "ü" * 60, "\U0001d11e", "2024-05-01", "01", "1", "true", "\ufeff", "_x", "~", "'\"", "\\", "a.b", "\uffff",
]  # fmt: skip
_BYTES = [b"", b"a", b"a/b", b"\xff\x01", b"\0", b"\0" * 40, "ü".encode()]
_DOUBLES = [0.0, -0.0, 1.0, -1.5, 0.1, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, 1e10]
_FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.10000000149011612,
    float("nan"),
    float("inf"),
    float("-inf"),
    1.401298464324817e-45,
    3.4028234663852886e38,
]


def _whole(bits: int) -> st.SearchStrategy[int]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.sampled_from([0, 1, -1, 7, -7, least, most, least + 9, most - 9]) | st.integers(least, most)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    whole = st.sampled_from([0, 1, -1, most, -most, 12, -12]) | st.integers(-most, most)
    return whole.map(lambda number: Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale)))


ATOMS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "byte": (pa.int8(), _whole(8)),
    "short": (pa.int16(), _whole(16)),
    "int": (pa.int32(), _whole(32)),
    "long": (pa.int64(), _whole(64)),
    "float": (pa.float32(), st.sampled_from(_FLOATS)),
    "double": (pa.float64(), st.sampled_from(_DOUBLES)),
    "boolean": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.sampled_from(_DAYS)),
    "timestamp": (pa.timestamp("us", "UTC"), st.sampled_from(_MICROS)),
    "timestamp_ntz": (pa.timestamp("us"), st.sampled_from(_MICROS)),
    "string": (pa.string(), st.sampled_from(_TEXTS)),
    "binary": (pa.binary(), st.sampled_from(_BYTES)),
} | {
    f"decimal({p},{s})": (pa.decimal128(p, s), _decimals(p, s)) for p, s in ((4, 2), (9, 9), (18, 6), (37, 10), (38, 0), (38, 38))
}  # fmt: skip
"""Spark's atomic types that Parquet holds; intervals, times and variants are refused by the table formats."""


@dataclass(frozen=True)
class Column:
    name: str
    type: pa.DataType
    values: list[Any]
    nullable: bool


@dataclass(frozen=True)
class Case:
    kind: str
    columns: tuple[Column, ...]
    partition: str | None
    """The column that partitions the table."""
    transform: str
    """Transform of that column, in an Iceberg table."""
    hostile: bool
    """Whether the session has the settings of jobs that write for older readers, too."""
    writer: str = "job"
    """One of `WRITERS`. A stream's columns are nullable: Spark's file sources say so."""

    def __str__(self) -> str:
        shown = "; ".join(f"{c.name} {c.type}{'' if c.nullable else ' not null'} {c.values!r}" for c in self.columns)
        by = f" by {self.transform}({self.partition})" if self.partition else ""
        return f"{self.kind} by a {self.writer}{by}{' under hostile settings' if self.hostile else ''}: {shown}"


@dataclass
class Verdict:
    case: str
    refused: str = ""
    """The refusal's sentence, without the parts that differ by case."""
    wrong: list[str] = field(default_factory=list)


@st.composite
def _nested(draw: st.DrawFn, depth: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    kind = draw(st.sampled_from(["atom", "list", "map", "struct"] if depth else ["atom"]))
    if kind == "atom":
        return ATOMS[draw(st.sampled_from(sorted(ATOMS)))]
    if kind == "map":
        of, values = draw(_nested(depth - 1))
        keys = draw(st.sampled_from(["string", "int", "date"]))
        key, names = ATOMS[keys]
        pairs = st.lists(st.tuples(names, values | st.none()), max_size=2, unique_by=lambda pair: pair[0])
        return pa.map_(key, of), pairs
    if kind == "list":
        of, values = draw(_nested(depth - 1))
        return pa.list_(of), st.lists(values | st.none(), max_size=3)
    parts = {name: draw(_nested(depth - 1)) for name in ("a", "b")[: draw(st.integers(1, 2))]}
    fields = st.fixed_dictionaries({name: values | st.none() for name, (_, values) in parts.items()})
    return pa.struct([(name, of) for name, (of, _) in parts.items()]), fields


TRANSFORMS = {
    "string": ("truncate[1]", "truncate[40]"),
    "binary": ("truncate[2]",),
    "int": ("truncate[10]",),
    "int32": ("truncate[10]",),
    "int64": ("truncate[10]",),
    "decimal": ("truncate[10]",),
    "date32": ("year", "month", "day"),
    "timestamp": ("year", "month", "day", "hour"),
}


@st.composite
def cases(draw: st.DrawFn, kind: str, writers: Sequence[str], rows: int = 5) -> Case:
    """A table of up to four columns beside the rows' numbers."""
    columns = []
    writer = draw(st.sampled_from([each for each in WRITERS[kind] if each in writers]))
    for number in range(draw(st.integers(1, 4))):
        of, values = draw(_nested(0 if number == 0 else draw(st.integers(0, 3))))
        nullable = writer == "stream" or draw(st.booleans())
        drawn = draw(st.lists(values | st.none() if nullable else values, min_size=rows, max_size=rows))
        columns.append(Column(f"c{number}", of, drawn, nullable))
    partition, transform = None, "identity"
    if draw(st.booleans()):
        partition = "c0"
        named = re.match(r"[a-z]+(32|64)?", str(columns[0].type))
        offered = TRANSFORMS.get(named[0] if named else "", ())
        if kind == "iceberg" and offered and draw(st.booleans()):
            transform = draw(st.sampled_from(offered))
    return Case(kind, tuple(columns), partition, transform, draw(st.booleans()), writer)


def known(kind: str) -> list[Case]:
    """Cases that are always played: all odd values of a type at once, as a partition."""
    refused = {"", "__HIVE_DEFAULT_PARTITION__", "ü" * 60} if kind == "delta" else set()
    texts = [text for text in _TEXTS if text not in refused]
    wanted: list[tuple[str, list[Any], str]] = [
        ("string", texts, "identity"),
        ("double", _DOUBLES, "identity"),
        ("date", [day for day in _DAYS if -719162 <= day <= 2932896], "identity"),
    ]
    micros = [each for each in _MICROS if -62135596800000000 <= each <= 253402300799999999]
    if kind != "delta":
        wanted += [
            ("binary", _BYTES, "identity"),
            ("timestamp", micros, "identity"),
            ("timestamp_ntz", micros, "identity"),
        ]
    if kind == "iceberg":
        amounts = [Decimal(each) for each in ("0.01", "-0.01", "99.99", "-99.90", "0.00", "12.34")]
        wanted += [
            ("string", _TEXTS, "truncate[1]"),
            ("decimal(4,2)", amounts, "truncate[10]"),
            ("timestamp", micros, "hour"),
        ]
    return [
        Case(kind, (Column("c0", ATOMS[name][0], [*values, None], nullable=True),), "c0", transform, hostile=False)
        for name, values, transform in wanted
    ]


def play(case: Case, spark: SparkSession, folder: Path) -> Verdict:
    """Writes the case as `write` does, and reads it."""
    verdict = write(case, spark, folder)
    if verdict.refused or verdict.wrong:
        return verdict
    source = arrow(case)
    written = rows_of(source)
    for name, rows in readings(case, spark, folder):
        expected, found = written, rows
        if name == "pyiceberg":
            expected, found = ([_as_pyiceberg(source.schema, row) for row in each] for each in (written, rows))
        if found != expected:
            differing = [(mine, theirs) for mine, theirs in zip(expected, found, strict=False) if mine != theirs]
            verdict.wrong.append(f"{name} finds {len(found)} rows; written and found: {differing[:2]}")
    verdict.wrong += _filtered(case, spark, folder)
    return verdict


def write(case: Case, spark: SparkSession, folder: Path) -> Verdict:
    """Writes the case into a new table below a folder, beside source.parquet with the same rows. A SQL catalog must be in use
    (`iceberg_tables.use`)."""
    verdict = Verdict(str(case))
    source = arrow(case)
    parquet.write_table(source, folder / "source.parquet", store_schema=False)
    frame = framed(spark, case, folder / "source.parquet")
    if case.kind == "iceberg" and case.transform != "identity":
        _make_table(case, frame)
    with settings(spark, HOSTILE if case.hostile else {}):
        try:
            verdict.wrong += _write(case, spark, frame, folder)
        except (InvalidInput, OutputUnsupported) as refused:
            verdict.refused = re.sub(r"\bc\d\b|/\S+|\d+", "_", str(refused))
            if not re.search(r"\bc\d\b", str(refused)):
                verdict.wrong.append(f"refused without naming a column: {refused}")
            if run(sink_of(case.kind, folder).find(KEY)) is not None or list(folder.glob("*/**/*.parquet")):
                verdict.wrong.append(f"refused and left files: {refused}")
            return verdict
    return verdict


def _write(case: Case, spark: SparkSession, frame: DataFrame, folder: Path) -> list[str]:
    """Writes the rows as the case's writer does; what is wrong with the commit. Raises as that writer does."""
    by = (case.partition,) if case.partition and case.transform == "identity" else ()
    if case.writer == "stream":
        outputs = [{"name": KEY.output, "onRerun": "Append", case.kind: _declared(case.kind, folder)}]
        attempt = granted(folder, outputs=outputs)
        job = attempt.job(sinks=sinks_of(attempt.prepared.job, str(folder)))
        with settings(spark, {"spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED"}):
            landing = spark.readStream.schema(frame.schema).parquet(f"file://{folder}/*.parquet")
            streamed = job.stream(landing).write(KEY.output, partition_by=by)
        return [] if streamed.rows == len(case.columns[0].values) else [f"streamed {streamed}"]
    if case.writer == "notebook":
        places = {KEY.output: str(folder / case.kind)}
        with sparkonce.job("matrix", outputs=places, store=str(folder / "ledger.db")) as block:
            block.write(frame, KEY.output, partition_by=by)
        return []
    sink = sink_of(case.kind, folder)
    slot = sink.stage(frame, KEY, 1, fingerprint="f", options=WriteOptions(partition_by=by))
    decided = run(sink.commit(KEY, slot))
    wrong = [] if isinstance(decided, Committed) else [f"not committed: {decided}"]
    if case.partition and case.kind != "slotLog" and slot.schema_ != GROUPED_SCHEMA:
        wrong.append(f"a release that knows no groups would take the slot: schema {slot.schema_}")
    return wrong


def arrow(case: Case) -> pa.Table:
    """The rows, with their numbers."""
    rows = len(case.columns[0].values)
    arrays = [pa.array(range(rows), pa.int32()), *(pa.array(c.values, c.type) for c in case.columns)]
    return pa.Table.from_arrays(arrays, ["n", *(c.name for c in case.columns)])


def framed(spark: SparkSession, case: Case, path: Path) -> DataFrame:
    """The rows as a DataFrame; columns that are not nullable are so for Spark."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
    from pyspark.sql.types import StructField, StructType

    with settings(spark, {"spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED"}):
        frame = spark.read.parquet(f"file://{path}")
    strict = {column.name for column in case.columns if not column.nullable}
    fields = [StructField(f.name, f.dataType, f.name not in strict) for f in frame.schema.fields]
    session: Any = spark
    of = session._jvm.org.apache.spark.sql.types.DataType.fromJson(StructType(fields).json())
    rows = frame._jdf.queryExecution().toRdd()
    return ClassicFrame(session._jsparkSession.internalCreateDataFrame(rows, of, False), session)


@contextlib.contextmanager
def settings(spark: SparkSession, wanted: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))


def sink_of(kind: str, folder: Path) -> Sink:
    declared = _declared(kind, folder)
    location = declared["path"] if "path" in declared else ".".join((declared["catalog"], declared["table"]))
    return open_sink(
        Declared(name=KEY.output, kind=kind, location=location, on_rerun=OnRerun.APPEND), base=None, durable=False
    )


def _declared(kind: str, folder: Path) -> dict[str, str]:
    """The output's place, as a job's spec has it."""
    if kind == "iceberg":
        return {"catalog": iceberg_tables.CATALOG, "table": ".".join(TABLE)}
    return {"path": str(folder / kind)}


def _make_table(case: Case, frame: DataFrame) -> None:
    from pyiceberg.transforms import parse_transform

    catalog = iceberg_tables.catalog()
    catalog.create_namespace_if_not_exists(TABLE[0])
    table = catalog.create_table(TABLE, schema_of(frame.schema.json()))
    with table.update_spec() as spec:
        spec.add_field(str(case.partition), parse_transform(case.transform), "p")


# --- reading -------------------------------------------------------------------------------------------------------------


def readings(case: Case, spark: SparkSession, folder: Path) -> Iterator[tuple[str, list[Any]]]:
    """What each reader finds, by its name."""
    names = ["n", *(column.name for column in case.columns)]
    if case.kind == "slotLog":
        place = folder / case.kind
        yield "sparkonce.read", rows_of(read(spark, place).select(*names).toArrow())
        paths = [path.removeprefix("file://") for path in files(place)]
    elif case.kind == "delta":
        table = DeltaTable(str(folder / case.kind))
        yield "delta-rs", rows_of(table.to_pyarrow_table().select(names))
        if case.partition is not None:
            return  # the other readers do not know the log, which has the partition's values
        paths = [path.removeprefix("file://") for path in table.file_uris()]
    else:
        found = iceberg_tables.catalog().load_table(TABLE)
        yield "pyiceberg", rows_of(found.scan().to_arrow().select(names))
        paths = [task.file.file_path.removeprefix("file://") for task in found.scan().plan_files()]
    yield "pyarrow", rows_of(pa.concat_tables(_plain(path, names) for path in paths))
    yield "Spark", rows_of(spark.read.parquet(*(f"file://{path}" for path in paths)).select(*names).toArrow())
    with contextlib.closing(duckdb.connect()) as duck:
        duck.execute("set timezone = 'UTC'")
        listed = ", ".join(f"'{path.replace(chr(39), chr(39) * 2)}'" for path in paths)
        query = f"select {', '.join(names)} from read_parquet([{listed}], hive_partitioning = false)"
        yield "DuckDB", rows_of(duck.sql(query).to_arrow_table())


def _plain(path: str, names: list[str]) -> pa.Table:
    return parquet.read_table(path, partitioning=None).select(names)


def _filtered(case: Case, spark: SparkSession, folder: Path) -> list[str]:
    """Whether readers that skip files by their partition find the rows that a filter selects."""
    if case.partition is None:
        return []
    values = dict(enumerate(case.columns[0].values))
    nulls = sorted(n for n, value in values.items() if value is None)
    found: dict[str, tuple[list[int], list[int]]] = {}
    if case.kind == "slotLog":
        rows = read(spark, folder / case.kind)
        found["null"] = (nulls, sorted(row.n for row in rows.where(f"{case.partition} is null").select("n").collect()))
    elif case.kind == "iceberg":
        scan, on = iceberg_tables.catalog().load_table(TABLE).scan, Filters
        found["null"] = (nulls, _numbers(scan(row_filter=on.IsNull(case.partition))))
        if pa.types.is_string(case.columns[0].type):
            for text in {value for value in values.values() if value is not None}:
                there = sorted(n for n, value in values.items() if value == text)
                found[text] = (there, _numbers(scan(row_filter=on.EqualTo(case.partition, text))))
    return [
        f"a filter on {name!r} finds {mine}, not {theirs}" for name, (theirs, mine) in found.items() if mine != theirs
    ]


def _numbers(scan: Any) -> list[int]:
    return sorted(scan.to_arrow()["n"].to_pylist())


def _as_pyiceberg(schema: pa.Schema, row: Any) -> Any:
    """The row with null lists and maps of structs as empty ones: pyiceberg 0.12 takes many of them for that, but not all, in files of its
    own, too (tests/sink/test_readers.py)."""
    return tuple(_emptied(of, value) for of, value in zip(schema.types, row, strict=True))


def _emptied(of: Any, value: Any) -> Any:
    if pa.types.is_list(of):
        if value is None:
            return [] if pa.types.is_struct(of.value_type) else None
        return [_emptied(of.value_type, each) for each in value]
    if pa.types.is_map(of):
        if value is None:
            return [] if pa.types.is_struct(of.item_type) else None
        return [(key, _emptied(of.item_type, item)) for key, item in value]
    if pa.types.is_struct(of) and value is not None:
        return {each.name: _emptied(each.type, value[each.name]) for each in of}
    return value


def rows_of(table: Any) -> list[Any]:
    """The rows in the order of their numbers, as plain values: numbers for dates and instants, bits for floats, text for decimals."""
    columns = [plain(table[name].combine_chunks()) for name in table.column_names]
    return sorted(zip(*columns, strict=True), key=lambda row: row[0])


def plain(array: Any) -> list[Any]:
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in plain(chunk)]
    kind = array.type
    if pa.types.is_date(kind):
        return list(array.cast(pa.int32()).to_pylist())
    if pa.types.is_timestamp(kind):
        assert kind.unit == "us", kind
        return [None if each is None else (bool(kind.tz), each) for each in array.cast(pa.int64()).to_pylist()]
    if pa.types.is_floating(kind):
        code = "<f" if kind.bit_width == 32 else "<d"
        return [
            None if each is None else ("nan" if math.isnan(each) else struct.pack(code, each).hex())
            for each in array.to_pylist()
        ]
    if pa.types.is_integer(kind):
        return list(array.to_pylist())
    if pa.types.is_decimal(kind):
        return [None if each is None else str(each) for each in array.to_pylist()]
    if pa.types.is_struct(kind):
        fields = {kind.field(at).name: plain(array.field(at)) for at in range(kind.num_fields)}
        return [
            {name: values[row] for name, values in fields.items()} if valid else None
            for row, valid in enumerate(array.is_valid().to_pylist())
        ]
    if pa.types.is_map(kind):
        keys, items = plain(array.keys), plain(array.items)
        return _cut(array, list(zip(keys, items, strict=True)), ordered=False)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _cut(array, plain(array.values), ordered=True)
    return list(array.to_pylist())


def _cut(array: Any, values: list[Any], *, ordered: bool) -> list[Any]:
    offsets = array.offsets.to_pylist()
    found = []
    for row, valid in enumerate(array.is_valid().to_pylist()):
        inside = values[offsets[row] : offsets[row + 1]]
        found.append((inside if ordered else sorted(inside, key=json_key)) if valid else None)
    return found


def json_key(value: Any) -> str:
    return json.dumps(value, default=repr, sort_keys=True)
