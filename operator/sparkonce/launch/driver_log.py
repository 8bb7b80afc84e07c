"""Finds in a driver's log why it failed: the exception that ended it, cut to what a result may keep. Pure.

A log does not end with the reason: after the exception Spark logs twenty lines of shutdown. This module finds the last exception that ended
the driver: a Python traceback, or `Exception in thread "main"` with its `Caused by:`. In a chain the last link counts; in a wrapped
exception (Py4JJavaError, a Python worker's error inside a Java one) the root does. The excerpt keeps the exception's lines and the user's
own frames; frames of Spark, py4j, Java and installed packages are cut first. Without an exception the excerpt is the last lines that are
not Spark's shutdown.

A log is the tenant's own input and may be forged, mixed (both streams of a pod are one log) or cut. So a finding is a hint: it explains a
failure, and it may end that tenant's own retries (`script_error`); it never proves that no effect exists. Every text is bounded before it
is searched, each line is read a bounded number of times, and no regular expression here can backtrack beyond its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from sparkonce.launch.protocol import ApplicationState
from sparkonce.model.application.script_errors import (
    ANALYSIS,
    CONDITION,
    MISSING_CLASS,
    MISSING_FILE,
    MISSING_INPUT,
    names_of,
)

LOG_TAIL = 1024
"""Bytes of a log that a failure keeps: results are replayed to every duplicate."""
READ = 1024 * 1024
"""Characters of a log that are searched, from its end. Of the last exception's text Spark prints up to three copies of a trace with
hundreds of frames, and plans of some hundred kilobytes; the exception itself comes after them, before some thirty lines of shutdown."""
LINES = 20_000
"""Lines that are searched, from the end: bounds the time that a megabyte of newlines takes."""
CAUSE = 300
"""Bytes of the exception's own line in a message."""
_LINE = 2000
"""Characters of a line that are read; of a longer one the beginning and the end."""
_ROOT, _HEADLINE, _OTHER = 360, 240, 200
"""Bytes of the root cause's line, of the outer exception's and of any other line in an excerpt that has to be cut."""
_LAST = 500
"""Characters, and bytes, of a line in an excerpt without an exception."""

_HEADER = "Traceback (most recent call last):"
_CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_NESTS = "Please see the stack trace below."
"""The line before a Python worker's traceback in PySpark's exception."""
_MAIN = 'Exception in thread "main" '
_WRAPS_EXIT = "org.apache.spark.SparkUserAppException"
"""Thrown by Spark around a driver's exit code: the reason comes before it."""
_SURVIVED = ("Exception ignored in", "Exception in thread ", "Task exception was never retrieved")
"""Lines before a traceback that ended a thread or a destructor, not the driver."""

_LOGGED = re.compile(
    r"\d{2,4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d\S{0,12} +(?:\[[^\]]{0,80}\] +)?(TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b"
    r'|\{"ts": ?"[^"]{0,40}", ?"level": ?"(TRACE|DEBUG|INFO|WARN|ERROR|FATAL)"',
    re.ASCII,
)
"""Spark's log4j patterns (and JSON), and Python's usual one."""
_SHUTDOWN = re.compile(
    r"(?:ShutdownHookManager|SparkContext|SparkUI|AbstractConnector|ContextHandler|BlockManager\w*|DiskBlockManager|MemoryStore"
    r"|MapOutputTracker\w*|OutputCommitCoordinator\S*|Kubernetes\w+\S*|ExecutorPods\w+|MetricsSystemImpl|TaskSchedulerImpl)\b"
)
_STARTUP = (
    "WARNING: Using incubator modules",
    "Using Spark's default log4j",
    "Setting default log level",
    "To adjust logging level",
)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.$<>]*(?::.*)?\Z", re.DOTALL)
_JAVA = re.compile(r"(?:[a-z_][\w$]*\.)+[A-Z][\w$]*(?::|\Z)", re.ASCII)
_FILE = re.compile(r'\s+File "([^"]*)", line \d+(, in (.*))?\Z')
_LIBRARY = re.compile(
    r"[/\\](?:site-packages|dist-packages|pyspark|pyspark\.zip|py4j[\w.-]*)[/\\]|<frozen |[/\\]lib[/\\]python\d"
)
_JAVA_LIBRARY = re.compile(r"\s+at (?:java|javax|jdk|sun|scala|py4j|org\.apache\.(?:spark|hadoop|parquet|iceberg))[./]")
_SYNTAX = re.compile(r"(SyntaxError|IndentationError|TabError)(?::|\Z)")
_ABSENT = re.compile(r"(ModuleNotFoundError): No module named '|(ImportError): cannot import name '")
_IMPORT = re.compile(r"\s+(?:import|from)\s")
_NO_FILE = ": can't open file '", "': [Errno 2] No such file or directory"
"""Python, of its main file."""
_NO_CLASS = re.compile(r"Error: Failed to load class \S+\Z")
_ANALYSIS = re.compile(
    r"pyspark\.errors\.exceptions\.(?:base|captured|connect)\.(AnalysisException|ParseException):(.*)"
    rf"|{_MAIN}org\.apache\.spark\.sql\.(?:catalyst\.)?(?:(?:parser\.)?(ParseException)|(?:Extended)?AnalysisException|analysis\.\w+Exception):(.*)",
    re.ASCII,
)
"""Spark's refusal of a query: in Python under one of two names, in Java under that of a subclass."""
_BRIDGED = "py4j.protocol.Py4JJavaError: "
"""Python's exception around one of Java that PySpark does not convert."""
_NO_INPUT = re.compile(
    rf"(?:{_MAIN}|: |Caused by: )(?:org\.apache\.hadoop\.mapred(?:uce\.lib\.input)?\.InvalidInputException|java\.io\.IOException): "
    r"Input (?:path does not exist: |Pattern \S+ matches 0 files)"
)
"""Hadoop's exception and its cause, of an RDD's input."""
_CONDITION = re.compile(rf"\[({CONDITION})\] ", re.ASCII)
_SQLSTATE = re.compile(r"\bSQLSTATE: ([0-9A-Z]{5})\b", re.ASCII)
_WRONG_STATEMENT = "42"
"""Class of SQLSTATE: syntax error or access rule violation. The others may pass: a catalog or database that does not answer, a failure of
the system, a conflict. So may a refusal without a SQLSTATE: Spark wraps what a metastore says in one."""


@dataclass(frozen=True, kw_only=True)
class LoggedFailure:
    """What a log says of a failure."""

    excerpt: str = ""
    """At most `LOG_TAIL` bytes."""
    cause: str = ""
    """The exception's own line, at most `CAUSE` bytes; empty without an exception."""
    script_error: tuple[str, ...] = ()
    """Names of an error that every run of the script would meet: it cannot be compiled, imports what does not exist, is itself missing, or
    Spark refuses to analyse what it asks for. Empty: no such error ended the driver."""


def is_log(text: str) -> bool:
    """Whether a text holds a message of Spark's log: then it was cut from a log, not written for a reader."""
    return any(_level(each[:_LINE]) for each in text.split("\n"))


def find(*streams: str, exit_code: int | None = None) -> LoggedFailure:
    """What the streams of one driver (or its one mixed log) say of its failure. exit_code: the driver's."""
    logs = [_DriverLog(each) for each in streams]
    for log in logs:
        if log.ended_by is not None:
            return _finding(log, log.ended_by, exit_code)
    for log in logs:
        if log.printed:
            return LoggedFailure(excerpt=_last_lines(log.lines))
    for log in logs:
        if log.logged is not None:
            return _finding(log, log.logged, exit_code)
    return LoggedFailure(excerpt=next(filter(None, (_last_lines(each.lines) for each in logs)), ""))


def explained(seen: ApplicationState, found: LoggedFailure, *, attempt: int) -> ApplicationState:
    """The state of a driver that failed, with the cause at the end of its message. Only a first attempt can show an error of the script:
    if an earlier attempt may have got further, the script itself is not at fault."""
    return replace(
        seen,
        message=f"{seen.message}: {found.cause}" if found.cause else seen.message,
        log_tail=found.excerpt,
        script_error=found.script_error if attempt == 1 else (),
    )


class _Trace(Enum):
    PYTHON = auto()
    UNCOMPILED = auto()
    """A syntax error of the main script, which has no header."""
    JAVA = auto()
    START = auto()
    """One line of Python or spark-submit that found nothing to run."""


@dataclass(frozen=True)
class _Block:
    kind: _Trace
    begin: int
    end: int
    chained: bool = False


class _DriverLog:
    """One stream, parsed.

    ended_by: the last exception after which only Spark printed. logged: the last Java exception in a message of Spark's log.
    printed: whether a line was printed that is neither a log message nor part of an exception."""

    def __init__(self, text: str) -> None:
        self.lines = [_short(each.rstrip(), _LINE) for each in text[-READ:].split("\n")[-LINES:]]
        self.ended_by: _Block | None = None
        self.logged: _Block | None = None
        self.printed = False
        self._parse()

    def _parse(self) -> None:
        lines, at = self.lines, 0
        within = logged = False  # a log message that may have more lines; the line before is one
        said = ""  # the last line that was printed
        while at < len(lines):
            line = lines[at]
            level = _level(line)
            if level:
                within, logged = level in ("WARN", "WARNING", "ERROR", "FATAL"), True
                at += 1
                continue
            block = _block(lines, at, said)
            if block is not None:
                if block.kind is _Trace.JAVA and (within or logged) and not line.startswith(_MAIN):
                    self.logged = block
                elif not said.startswith(_SURVIVED) and _WRAPS_EXIT not in line:
                    self.ended_by, self.printed = block, True
                at, said, logged = block.end, lines[block.end - 1], False
                continue
            if line and not line[0].isspace():
                said, logged = line, False
                if not within and not line.startswith((*_STARTUP, *_SURVIVED)):
                    self.ended_by, self.printed = None, True
            at += 1


def _level(line: str) -> str:
    found = _LOGGED.match(line)
    return (found[1] or found[2]) if found else ""


def _block(lines: Sequence[str], at: int, said: str) -> _Block | None:
    """The exception that begins in this line."""
    line = lines[at]
    if line == _HEADER:
        end = _frames_end(lines, at + 1)
        if end == len(lines) or not _EXCEPTION.match(lines[end]):
            return None
        return _Block(_Trace.PYTHON, at, _message_end(lines, end + 1), said in _CHAINS)
    if line.startswith(_MAIN) or (_JAVA.match(line) and _has_frames(lines, at + 1)):
        return _Block(_Trace.JAVA, at, _message_end(lines, at + 1))
    if (found := _FILE.match(line)) and found[2] is None:
        end = at + 1
        while end < len(lines) and end <= at + 3 and lines[end][:1].isspace():
            end += 1
        if end < len(lines) and _SYNTAX.match(lines[end]):
            return _Block(_Trace.UNCOMPILED, at, end + 1)
    if _no_file(line) or _NO_CLASS.match(line):
        return _Block(_Trace.START, at, at + 1)
    return None


def _no_file(line: str) -> bool:
    return _NO_FILE[0] in line and line.endswith(_NO_FILE[1])


def _has_frames(lines: Sequence[str], at: int) -> bool:
    return at < len(lines) and (
        lines[at].startswith("\tat ") or lines[at].endswith(_HEADER) or lines[at - 1].endswith(_HEADER)
    )


def _frames_end(lines: Sequence[str], at: int) -> int:
    """The line after a traceback's frames; log messages may be mixed in."""
    while at < len(lines) and (lines[at][:1].isspace() or _level(lines[at])):
        at += 1
    return at


def _message_end(lines: Sequence[str], at: int) -> int:
    """The line after an exception's text: where the log goes on. Nested and chained exceptions belong to it; a traceback of its own does
    not."""
    frames, before = False, ""
    while at < len(lines):
        line = lines[at]
        own = line == _HEADER and before not in _CHAINS and not before.endswith(_NESTS)
        if own or line.startswith(_SURVIVED) or (not frames and _level(line)):
            break
        if line.endswith(_HEADER):
            frames = True
        elif line and not line[0].isspace() and not _level(line):
            frames = False
        before = line or before
        at += 1
    return at


# what an exception's text is made of


class _Part(Enum):
    HEADER = auto()
    FRAME = auto()
    """A line of a Python frame of the user's."""
    CALL = auto()
    """A Java frame of the user's."""
    EXCEPTION = auto()
    CAUSED = auto()
    """`Caused by: `, and the Java exception inside a Py4JJavaError."""
    MESSAGE = auto()
    LIBRARY = auto()


def _parts(lines: Sequence[str]) -> Iterator[_Part]:
    """Says what each line is. The first line is a header, or the exception itself."""
    frames, users, first, wrapper = False, False, True, False
    for line in lines:
        if frames and (line[:1].isspace() or _level(line)):
            if found := _FILE.match(line):
                users = _LIBRARY.search(found[1]) is None
            marks = not line.strip().strip("^~ ")
            yield _Part.FRAME if users and not marks and not _level(line) else _Part.LIBRARY
        elif frames:
            frames, wrapper = False, line.startswith(_BRIDGED)
            yield _Part.EXCEPTION
            continue
        elif line.endswith(_HEADER):
            frames, users = True, False
            yield (
                _Part.CAUSED
                if line.startswith(("Caused by: ", ": "))
                else _Part.EXCEPTION
                if first and line != _HEADER
                else _Part.HEADER
            )
        elif first:
            yield _Part.EXCEPTION
        elif line.startswith("Caused by: ") or (wrapper and line.startswith(": ")):
            yield _Part.CAUSED
        elif line.startswith("\tat "):
            yield _Part.LIBRARY if _JAVA_LIBRARY.match(line) else _Part.CALL
        elif not line or line.startswith(("\t... ", "\tSuppressed: ", "\t\t", "Driver stacktrace:", "JVM stacktrace:")):
            yield _Part.LIBRARY
        else:
            yield _Part.MESSAGE
        first = wrapper = False


def _finding(log: _DriverLog, block: _Block, exit_code: int | None) -> LoggedFailure:
    lines = log.lines[block.begin : block.end]
    if block.kind is _Trace.START:
        missing, code = (MISSING_FILE, 2) if _no_file(lines[0]) else (MISSING_CLASS, 101)
        names = names_of(missing) if exit_code == code else ()
        return LoggedFailure(excerpt=_last_lines(log.lines), cause=_cut(lines[0], CAUSE), script_error=names)
    if block.kind is _Trace.UNCOMPILED:
        at, said = _FILE.match(lines[0]), _SYNTAX.match(lines[-1])
        assert at is not None  # it matched in `_block`
        assert said is not None  # the same
        names = names_of(said[1]) if exit_code == 1 and not at[1].startswith("<") else ()
        excerpt = _whole(lines) or _last_lines(lines)
        return LoggedFailure(excerpt=excerpt, cause=_cut(lines[-1], CAUSE), script_error=names)
    last = max((number for number, each in enumerate(lines) if each in _CHAINS), default=-1)
    link = lines[last + 1 :]
    while link and not link[0]:
        del link[0]
    parts = list(_parts(link))
    root = max((number for number, each in enumerate(parts) if each in (_Part.EXCEPTION, _Part.CAUSED)), default=0)
    alone = exit_code == 1 and not block.chained and last < 0  # in a chain the first fault may be a passing one
    names = _script_error(link, parts) if alone else ()
    return LoggedFailure(
        excerpt=_whole(lines) or _excerpt(link, parts, root), cause=_cause(link, root), script_error=names
    )


def _cause(lines: Sequence[str], root: int) -> str:
    said = lines[root].removeprefix(_MAIN).removeprefix("Caused by: ").removeprefix(": ")
    if said.endswith(":"):
        said += " " + next((each.strip() for each in lines[root + 1 :] if each.strip()), "")
    return _cut(" ".join(said.split()), CAUSE)


def _script_error(lines: Sequence[str], parts: Sequence[_Part]) -> tuple[str, ...]:
    """Names of the error of the script that this one exception is; empty: another run may not meet it."""
    ends = [number for number, each in enumerate(parts) if each is _Part.EXCEPTION]
    if len(ends) != 1:
        return ()
    causes = [line for line, part in zip(lines, parts, strict=True) if part is _Part.CAUSED]
    if causes:
        said = lines[ends[0]]
        chain = causes if said.startswith(_BRIDGED) else [said, *causes]
        return (MISSING_INPUT,) if all(_NO_INPUT.match(each) for each in chain) else ()
    return _refused_query(lines[ends[0] :]) or _failed_import(lines, ends[0])


def _refused_query(lines: Sequence[str]) -> tuple[str, ...]:
    """Names of the exception by which Spark refused a query, for a reason that lies in the query or in what it names. lines: from the
    exception's own line on. Every SQLSTATE in them counts, because a message may quote that of another system."""
    said = _ANALYSIS.match(lines[0])
    if said is None:
        return ()
    message = (said[2] or said[4] or "").strip() or next((each for each in lines[1:] if each), "")
    condition = _CONDITION.match(message)
    states = [state for each in lines for state in _SQLSTATE.findall(each)]
    if condition is None or not states or any(not state.startswith(_WRONG_STATEMENT) for state in states):
        return ()
    return names_of(said[1] or said[3] or ANALYSIS, condition=condition[1])


def _failed_import(lines: Sequence[str], end: int) -> tuple[str, ...]:
    """Names of the exception if an import statement of a module's own code failed, for a reason that lies in the code. end: the line of
    the exception.

    Refused: an import inside a function (another run may not get there), whatever is imported by its name (`import_module`), more text
    after the exception, and an ImportError with a message of the dynamic linker."""
    frames = [(number, found) for number, each in enumerate(lines[:end]) if (found := _FILE.match(each))]
    said = _SYNTAX.match(lines[end])
    if said and frames and frames[-1][1][2] is None and not frames[-1][1][1].startswith("<"):
        frames = frames[:-1]
    else:
        said = _ABSENT.match(lines[end])
    if said is None or any(lines[end + 1 :]) or not frames or any(each[3] != "<module>" for _, each in frames):
        return ()
    return names_of(said[said.lastindex or 0]) if _IMPORT.match(lines[frames[-1][0] + 1]) else ()


# cutting


def _cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8."""
    octets = text.encode(errors="replace")
    return octets.decode() if len(octets) <= limit else octets[: limit - 3].decode(errors="ignore") + "..."


def _short(text: str, limit: int) -> str:
    """At most `limit` characters: the beginning, and the end of what is longer."""
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[3 - limit // 2 :]}"


def _whole(lines: Sequence[str]) -> str:
    """All lines, if they fit; else empty."""
    if sum(map(len, lines)) > 2 * LOG_TAIL:
        return ""
    text = "\n".join(lines).strip("\n").encode(errors="replace")
    return text.decode() if len(text) <= LOG_TAIL else ""


def _excerpt(lines: Sequence[str], parts: Sequence[_Part], root: int) -> str:
    """Takes lines by priority while they fit, and joins them in the order of the log."""
    head = next((number for number, each in enumerate(parts) if each is _Part.EXCEPTION), root)
    left, taken = LOG_TAIL, dict[int, str]()
    frames = list(_frames(lines, parts))
    calls = [number for number, each in enumerate(parts) if each is _Part.CALL]
    calls.sort(key=lambda number: number < root)  # stable, so linear: those of the root cause first
    ranked: list[tuple[int, tuple[int, ...]]] = [
        (_ROOT, (root,)),
        (_HEADLINE, (head,)),
        *((_OTHER, each) for each in reversed(frames)),
        *((_OTHER, (each,)) for each in calls),
        *((_OTHER, (0,)),),
        *((_OTHER, (number,)) for number, each in enumerate(parts) if each is _Part.CAUSED),
        *((_OTHER, (number,)) for number, each in enumerate(parts) if each is _Part.MESSAGE),
    ]
    for limit, numbers in ranked:
        group = {number: _cut(lines[number], limit) for number in numbers if number not in taken}
        size = sum(len(each.encode()) + len("\n...\n") for each in group.values())
        if size <= left:
            taken |= group
            left -= size
    text, before = list[str](), -1
    for number in sorted(taken):
        text += ["..."] * (number > before + 1)
        text.append(taken[number])
        before = number
    return "\n".join(text)


def _frames(lines: Sequence[str], parts: Sequence[_Part]) -> Iterator[tuple[int, ...]]:
    """The user's Python frames, each once: a worker's traceback is printed several times, and the last one stays."""
    groups: dict[tuple[str, ...], tuple[int, ...]] = {}
    group: list[int] = []
    for number, part in enumerate([*parts, _Part.LIBRARY]):
        begins = part is _Part.FRAME and _FILE.match(lines[number])
        if group and (begins or part is not _Part.FRAME):
            said = tuple(lines[each] for each in group)
            groups.pop(said, None)
            groups[said] = tuple(group)
            group = []
        if part is _Part.FRAME and len(group) < 2:  # the frame and its first line
            group.append(number)
    yield from groups.values()


def _last_lines(lines: Sequence[str]) -> str:
    """The last lines that are not Spark's shutdown; all of them, if it logged nothing else."""
    return _end(lines, shutdown=False) or _end(lines, shutdown=True)


def _end(lines: Sequence[str], *, shutdown: bool) -> str:
    left, kept = LOG_TAIL, list[str]()
    for line in reversed(lines):
        if not line or (not shutdown and _is_shutdown(line)):
            continue
        cut = _cut(_short(line, _LAST), _LAST)
        left -= len(cut.encode()) + 1
        if left < -1:  # the last one has no newline
            break
        kept.append(cut)
    return "\n".join(reversed(kept))


def _is_shutdown(line: str) -> bool:
    found = _LOGGED.match(line)
    if found is None:
        return line.startswith(_STARTUP)
    return (found[1] or found[2]) in ("INFO", "DEBUG", "TRACE", "WARN") and _SHUTDOWN.match(
        line[found.end() :].lstrip()
    ) is not None
