# ruff: noqa: SLF001 - a plan, the JVM and Scala pairs have no public Python API
"""Describes what a streaming DataFrame reads, so that two streams of one source are recognised.

The description is taken from the leaves of the DataFrame's plan before the query starts: a query names its sources only once its first
batch is done, and those names lack the servers. Two readers of one folder, topic or table get the same `StreamSource` whatever else they do
with the rows: the format, the schema, filters, rates and starting points do not count, because any row that both streams deliver is written
twice.

    files           the folder or pattern as Spark qualifies it; `pathGlobFilter` restricts it to a part
    Kafka           each topic, with the brokers; `assign` restricts it to partitions, `subscribePattern` is compared as text
    tables          the name, or the path
    anything else   the format, with a digest of the options

Not recognised as the same: one folder under two paths (a link, a pattern beside the folder itself), one cluster through two lists without
a common broker, one table by name and by path. Credentials, among the options or in a URL, are not recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkonce.sink.protocol import StreamSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BROKERS = "kafka.bootstrap.servers"
_NOT_IDENTITY = re.compile(
    r"^(max|min|starting|ending|failon)|secret|password|token|access[._]?key|credential|jaas", re.IGNORECASE
)
"""Options that say how fast, from where or as whom a source is read, as Spark's sources and its redaction name them."""


_PASSWORD = re.compile(r"(://[^/@:]*):[^/@]*@")


def without_password(url: str) -> str:
    """The URL without the password of a user in it, for what is recorded in a table."""
    return _PASSWORD.sub(r"\1@", url)


def sources_of(frame: DataFrame) -> tuple[StreamSource, ...]:
    """The sources of a streaming DataFrame, each once. Sources that are not Spark relations are left out; a frame without a plan in a JVM
    has none."""
    found: list[StreamSource] = []
    plan: Any = getattr(frame, "_jdf", None)
    if plan is None:
        return ()
    context: Any = frame.sparkSession.sparkContext
    leaves: Any = plan.queryExecution().analyzed().collectLeaves()
    for leaf in (leaves.apply(at) for at in range(leaves.size())):
        if not leaf.isStreaming():
            continue
        match leaf.getClass().getSimpleName():
            case "StreamingRelation":
                source = leaf.dataSource()
                options = _scala_map(source.options())
                if str(leaf.sourceName()).startswith("FileSource["):
                    found.append(file_source(_qualified(context, options.get("path", "")), options))
                else:
                    found += other_sources(str(source.className()), _with_url(context, options))
            case "StreamingRelationV2":
                name = None
                if leaf.identifier().isDefined() and leaf.catalog().isDefined():
                    identifier = leaf.identifier().get()
                    name = ".".join([leaf.catalog().get().name(), *identifier.namespace(), identifier.name()])
                options = {str(k).lower(): str(v) for k, v in dict(leaf.extraOptions().asCaseSensitiveMap()).items()}
                found += other_sources(str(leaf.sourceName()), _with_url(context, options), table=name)
            case _:
                pass
    return tuple(dict.fromkeys(found))


def file_source(url: str, options: Mapping[str, str]) -> StreamSource:
    """The files of a folder as a source. options: by name in lower case, here and below."""
    return StreamSource(at=without_password(url), part=options.get("pathglobfilter", ""))


def other_sources(format_: str, options: Mapping[str, str], *, table: str | None = None) -> list[StreamSource]:
    """The sources of a reader of anything but files. table: its name in a catalog."""
    if BROKERS in options:
        return _kafka(options)
    if table is not None:
        return [StreamSource(at=table)]
    if path := options.get("path"):
        return [StreamSource(at=without_password(path))]
    kept = {name: value for name, value in options.items() if not _NOT_IDENTITY.search(name)}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]
    return [StreamSource(at=f"{format_} with options {digest}")]


def _kafka(options: Mapping[str, str]) -> list[StreamSource]:
    servers = tuple(sorted({each.strip().lower() for each in options[BROKERS].split(",") if each.strip()}))
    if assigned := options.get("assign"):
        with contextlib.suppress(
            ValueError, AttributeError, TypeError
        ):  # Spark refuses the option when the query starts
            return [
                StreamSource(at=f"topic {topic}", servers=servers, part=f"partition {partition}")
                for topic, partitions in sorted(json.loads(assigned).items())
                for partition in partitions
            ]
    if pattern := options.get("subscribepattern"):
        return [StreamSource(at=f"topics {pattern}", servers=servers)]
    topics = sorted({each.strip() for each in options.get("subscribe", "").split(",")})
    return [StreamSource(at=f"topic {topic}", servers=servers) for topic in topics]


def _with_url(context: Any, options: dict[str, str]) -> dict[str, str]:
    """The options, with a path in them qualified unless it is the name of a table."""
    path = options.get("path", "")
    return {**options, "path": _qualified(context, path)} if "/" in path else options


def _qualified(context: Any, path: str) -> str:
    """The path as Spark's file source qualifies it; unchanged if no file system accepts it."""
    try:
        place = context._jvm.org.apache.hadoop.fs.Path(path)
        return str(place.getFileSystem(context._jsc.hadoopConfiguration()).makeQualified(place).toString())
    except Exception:  # noqa: BLE001 - py4j wraps Hadoop's errors in several types; Spark reports what it cannot read
        return path


def _scala_map(options: Any) -> dict[str, str]:
    """The options as a dict, with names in lower case, as readers compare them."""
    entries = options.iterator()
    found: dict[str, str] = {}
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1()).lower()] = str(entry._2())
    return found
