"""`sparkonce lanes`: what the writers outside of jobs have written to a table or topic. Only `trim` and `retire` write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.exits import ExitCode
from sparkonce.cli.options import Install, Json, Store
from sparkonce.cli.view import outcome, words
from sparkonce.cli.view.terminal import tell
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.lanes.kafka_log import KafkaLog
    from sparkonce.lanes.protocol import LaneEntry
    from sparkonce.lanes.table_log import TableLog
    from sparkonce.store.protocol import IdempotencyStore

app = typer.Typer(
    help="Inspect the lanes of a table or topic, trim one, and end one.", no_args_is_help=True, rich_markup_mode=None
)

Location = Annotated[str, typer.Argument(metavar="TABLE", help="Path or URL of the slot log.")]
TableOrTopic = Annotated[
    str, typer.Argument(metavar="TABLE", help="Path or URL of the slot log, or kafka://HOST:PORT,HOST:PORT/TOPIC.")
]
Config = Annotated[
    str | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Settings of librdkafka for a topic, as for TLS and SASL: a line NAME=VALUE for each.",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name that its writer gives.")]
LIMIT = 20
"""Places that `show` prints without `--all`."""


@app.command("list")
def list_lanes(table: TableOrTopic, *, config: Config = None, as_json: Json = False) -> ExitCode:
    """List the lanes of a table or topic: who writes where, and how far.

    Example: sparkonce lanes list lake/orders
    """
    uri, found = _lanes_in(table, config)
    if as_json:
        tell(outcome.as_json({"table": uri, "lanes": [{"name": name, **_described(each)} for name, each in found]}))
        return ExitCode.SUCCEEDED
    if not found:
        tell(f"{uri} has no lane; `sparkonce.writer({table!r}, name=NAME)` makes one")
        return ExitCode.SUCCEEDED
    words.print_table(
        ("LANE", "KEYS", "BATCHES", "POSITION", "EPOCH", "LAST PLACE", "STATE"),
        [
            (
                name,
                ", ".join(each.keys),
                words.count(each.last),
                outcome.as_json(each.position) if each.position is not None else "",
                str(each.epoch),
                words.when(each.committed_at),
                "retired" if each.retired else "open",
            )
            for name, each in found
        ],
    )
    return ExitCode.SUCCEEDED


@app.command("show")
def show(
    table: TableOrTopic,
    name: Name,
    *,
    config: Config = None,
    everything: Annotated[bool, typer.Option("--all", help="All places, not only the newest.")] = False,
    as_json: Json = False,
) -> ExitCode:
    """Show the places of one lane, oldest first: numbers, rows, position and files of each. In a topic, those with rows that it still has.

    Example: sparkonce lanes show lake/orders tap-7
    """
    from sparkonce.lanes.table_log import TableLog

    log = _kafka_lane(table, name, config) if _is_topic(table) else _lane(table, name, config)
    places = list(log.entries())
    shown = places if everything or as_json else places[-LIMIT:]
    if as_json:
        tell(outcome.as_json({"table": log.uri, "name": log.name, "places": [_described(each) for each in shown]}))
        return ExitCode.SUCCEEDED
    if isinstance(log, TableLog) and (gone := log.trimmed()):
        tell(f"batches up to {words.count(gone)} were trimmed: readers see them no longer")
    if len(shown) < len(places):
        tell(f"the newest {len(shown)} of {len(places)} places; --all shows all")
    words.print_table(
        ("PLACE", "BATCHES", "ROWS", "POSITION", "EPOCH", "COMMITTED"),
        [
            (
                each.place,
                _numbers(each),
                words.count(each.rows),
                outcome.as_json(each.position) if each.position is not None else "",
                str(each.epoch),
                words.when(each.committed_at),
            )
            for each in shown
        ],
    )
    return ExitCode.SUCCEEDED


@app.command("range")
def next_range(
    table: Location,
    name: Name,
    *,
    after: Annotated[int, typer.Option(min=0, help="Number of the last batch that was taken.")] = 0,
    most: Annotated[int | None, typer.Option(min=1, help="Batches at most.", show_default=False)] = None,
) -> ExitCode:
    """Print the batches of a lane after a number, for a job that takes them once.

    It prints nothing if there is no further one. The text goes into the job's key and arguments, and `sparkonce.read(spark, TABLE,
    batches=TEXT)` reads exactly these.

    Example: sparkonce lanes range lake/orders tap-7 --after 250
    """
    log = _lane(table, name)
    last, trimmed = log.newest(), log.trimmed()
    if after < trimmed:
        raise InvalidInput(
            f"the batches {log.name}@{after + 1}-{trimmed} of {log.uri} were trimmed; ask for those --after {trimmed}"
        )
    upto = 0 if last is None else last.last if most is None else min(last.last, after + most)
    if upto > after:
        tell(f"{name}@{after + 1}-{upto}")
    return ExitCode.SUCCEEDED


@app.command("trim")
def trim(
    table: Location,
    name: Name,
    *,
    taken_by: Annotated[
        list[str],
        typer.Option(
            "--taken-by",
            metavar="KEY",
            help="The key of the jobs that take its ranges, without the range: `load-orders/`. Give those of all jobs that read the lane.",
            show_default=False,
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    store: Store = None,
    install: Install = None,
) -> ExitCode:
    """Remove batches from a table that finished jobs took: readers see them no longer, and their files are deleted.

    A batch is taken once such a job has succeeded with a range of it (`sparkonce lanes range`) in its key. Only whole parts of the log are
    removed, of 10,000 places each, and none of a lane with keys. A query that reads them meanwhile fails.

    Example: sparkonce lanes trim lake/orders tap-7 --taken-by load-orders/
    """
    from sparkonce.cli.session import session

    log = _lane(table, name)
    trimmed = log.trimmed()
    with session(store, install=install) as opened:
        taken = {each: _taken(opened.store, each, log.name, after=trimmed) for each in taken_by}
    for key, last in taken.items():
        tell(
            f"the batches up to {words.count(last)} were taken by {key}{log.name}@..."
            if last > trimmed
            else f"no job with a key like {key}{log.name}@{trimmed + 1}-{trimmed + 100} has succeeded"
        )
    found = log.trimmable(min(taken.values()))
    if found is not None:
        said = f"the batches {log.name}@{found.first}-{found.last} of {log.uri}"
        if not dry_run:
            log.trim(found)
        tell(f"{'would remove' if dry_run else 'removed'} {said}")
    else:
        tell("there is nothing to remove: no further part of the log has ended and was taken as a whole")
    if not dry_run and (size := log.remove_trimmed()):
        tell(f"deleted {words.size(size)} of files")
    return ExitCode.SUCCEEDED


def _taken(store: IdempotencyStore, key: str, name: str, *, after: int) -> int:
    """The last batch up to which jobs have taken all that follow `after`. key: theirs begin with it, and end with the range."""
    from sparkonce.blocking import run
    from sparkonce.model.record import Outcome, State
    from sparkonce.sink.slotlog.reader import range_of
    from sparkonce.store.protocol import Query

    ranges: list[tuple[int, int]] = []
    position: str | None = ""
    while position is not None:
        page = run(store.list(Query(states=(State.FINALIZED,), after=position, limit=500)))
        for record in page.records:
            asked = range_of(record.key.removeprefix(key)) if record.key.startswith(key) else None
            if asked is None or asked[0] != name:
                continue
            result = run(store.result(record.address, record.generation))
            if (
                result is not None
                and result.outcome is Outcome.SUCCEEDED
                and not any(each.skipped for each in result.outputs)
            ):
                ranges.append(asked[1:])
        position = page.after
    for first, last in sorted(ranges):
        if first <= after + 1:
            after = max(after, last)
    return after


@app.command("retire")
def retire(table: Location, name: Name) -> ExitCode:
    """End a lane for ever: its rows stay, and no writer can acquire it again.

    A writer that has it now is fenced.

    Example: sparkonce lanes retire lake/orders tap-7
    """
    from sparkonce.cli.session import person

    log = _lane(table, name)
    last = log.retire(by=person())
    tell(f"the lane {log.name} of {log.uri} is retired after {words.count(last.last)} batches; its rows stay")
    return ExitCode.SUCCEEDED


def _is_topic(table: str) -> bool:
    return table.startswith("kafka:")


def _lanes_in(table: str, config: str | None) -> tuple[str, list[tuple[str, LaneEntry]]]:
    """The place's address, and its lanes by name, each with its last place."""
    if _is_topic(table):
        from sparkonce.lanes.kafka_log import kafka_lanes

        return table, kafka_lanes(table, _client(config))
    from sparkonce.lanes.table_log import TableLog, lanes_of
    from sparkonce.sink.slotlog.snapshot import Table

    _refuse_config(table, config)
    objects = Table(table).objects
    newest = [(name, TableLog(objects, name).newest()) for name in lanes_of(objects)]
    return objects.uri, [(name, each) for name, each in newest if each is not None]


def _client(config: str | None) -> dict[str, str]:
    """The settings in a file. Raises: InvalidInput: names the line."""
    if config is None:
        return {}
    try:
        lines = Path(config).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--command-config {config} cannot be read: {error}") from None
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not equals:
            raise InvalidInput(f"--command-config {config}: line {number} is not NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def _refuse_config(table: str, config: str | None) -> None:
    if config is not None:
        raise InvalidInput(f"--command-config is for a topic of Kafka, and {table} is a table; leave it out")


def _kafka_lane(table: str, name: str, config: str | None) -> KafkaLog:
    """Raises: InvalidInput: brokers know no such lane."""
    from sparkonce.lanes.kafka_log import KafkaLog

    log = KafkaLog(table, name, client=_client(config))
    _refuse_missing(log, table)
    return log


def _lane(table: str, name: str, config: str | None = None) -> TableLog:
    """Raises: InvalidInput: there is no such lane."""
    from sparkonce.lanes.table_log import TableLog
    from sparkonce.sink.slotlog.snapshot import Table

    _refuse_config(table, config)
    if _is_topic(table):
        raise InvalidInput(
            f"{table} is a topic of Kafka, and this is for the lanes of a table; `list` and `show` take a topic, too"
        )
    log = TableLog(Table(table).objects, name)
    _refuse_missing(log, table)
    return log


def _refuse_missing(log: TableLog | KafkaLog, table: str) -> None:
    if log.newest() is None:
        raise InvalidInput(f"{log.uri} has no lane {log.name}; `sparkonce lanes list {table}` shows those that it has")


def _numbers(entry: LaneEntry) -> str:
    if entry.last < entry.first:
        return "retired" if entry.retired else "-"
    return str(entry.first) if entry.first == entry.last else f"{entry.first}-{entry.last}"


def _described(entry: LaneEntry) -> dict[str, Any]:
    return {
        "place": entry.place,
        "epoch": entry.epoch,
        "first": entry.first,
        "last": entry.last,
        "rows": entry.rows,
        "bytes": entry.bytes,
        "position": entry.position,
        "files": list(entry.files),
        "committedAt": entry.committed_at,
        "retired": entry.retired,
        "keys": list(entry.keys),
    }
