"""`sparkonce convert` writes the IdempotentJob that runs a plain SparkApplication; `sparkonce bind` writes the one that follows it.

For a ScheduledSparkApplication, which one job cannot replace, `convert` writes a CronJob and exits as after a refusal.

Neither applies anything. Each application of a file becomes a job of its own. Documents of other kinds are left out and named on standard
error: a ConfigMap beside the application must still be applied from its own file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce import __version__
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.options import JobArguments, pairs
from sparkonce.cli.view.terminal import tell, write_document
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.model.convert import ConvertOptions
    from sparkonce.model.document.reader import Tree

Operation = Annotated[
    str | None, typer.Option(metavar="TEXT", help='The operation; default: "run".', show_default=False)
]
Resource = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="The resource; default: the application's name.", show_default=False),
]
Key = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="The key, in place of operation and resource.", show_default=False),
]


def convert(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The SparkApplication (YAML); `-` reads standard input.")],
    *,
    operation: Operation = None,
    resource: Resource = None,
    key: Key = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            metavar="NAME=[KIND:]PLACE",
            help="A table that the script writes through sparkonce: a path or URL (slot log), slotLog:PATH, delta:PATH or "
            "iceberg:CATALOG.TABLE. Without any the job is opaque.",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of a schedule's CronJob: the image of your sparkonce release; default: sparkonce/operator of this version.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "-o", "--to", metavar="FILE", help="Write a new file instead of standard output.", show_default=False
        ),
    ] = None,
) -> ExitCode:
    """Write the IdempotentJob that runs a plain SparkApplication once.

    The template keeps the application's fields. Every change and omission is named, in comments and on standard error. A
    ScheduledSparkApplication cannot become one job: the command writes a CronJob that sends a job for each tick, and exits with 2.

    Example: sparkonce convert app.yaml --operation load --resource flights/2013-01
    """
    wish = _wish(operation, resource, key, outputs=pairs("--output", output or ()))
    if to is not None and Path(to).exists():
        raise InvalidInput(f"{to} exists; name a new file, nothing is overwritten")
    scheduled: list[str] = []
    text = _written(file, wish, "convert", image=image or f"sparkonce/operator:{__version__}", scheduled=scheduled)
    if to is None:
        write_document(text)
    else:
        with Path(to).open("x", encoding="utf-8") as new:
            new.write(text)
    if scheduled:
        raise InvalidInput(
            f"{' and '.join(scheduled)} would run once and never again as an IdempotentJob, so it became a CronJob, which sends a job for "
            f"each tick; look at it {f'in {to}' if to else 'on standard output'} and apply it in place of the schedule"
        )
    return ExitCode.SUCCEEDED


def bind(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="The SparkApplication, as `kubectl get sparkapplication NAME -o yaml` prints it; `-` reads standard input.",
        ),
    ],
    *,
    operation: Operation = None,
    resource: Resource = None,
    key: Key = None,
) -> ExitCode:
    """Write the IdempotentJob that follows a SparkApplication which runs already, or has ended.

    Apply it with kubectl: the application's outcome then becomes the result of the key. sparkonce never stops it or runs it again.

    Example: sparkonce bind app.yaml --operation load --resource flights/2013-01
    """
    write_document(_written(file, _wish(operation, resource, key, bind=True), "bind"))
    return ExitCode.SUCCEEDED


def _wish(operation: str | None, resource: str | None, key: str | None, **more: Any) -> ConvertOptions:
    """The options as one value. Raises: InvalidInput when the arguments name two keys."""
    from sparkonce.model.convert import ConvertOptions

    if key is not None and (operation is not None or resource is not None):
        raise InvalidInput("--key replaces --operation and --resource; keep one of the two")
    return ConvertOptions(operation=operation, resource=resource, key=key, **more)


def _written(file: str, wish: ConvertOptions, verb: str, *, image: str = "", scheduled: list[str] | None = None) -> str:
    """The jobs of all applications in a file, and the CronJobs of those with a schedule, whose names are added to `scheduled`.

    Raises: InvalidInput."""
    asked = JobArguments.of(file)
    names: list[str] = [] if scheduled is None else scheduled
    texts = list(_jobs(asked.text(), wish, source=asked.source, image=image, scheduled=names))
    if len(texts) > 1 and (wish.key is not None or wish.resource is not None):
        raise InvalidInput(f"{asked.source} has {len(texts)} applications, and one key cannot be for all; {verb} one")
    return "---\n".join(texts)


def _jobs(text: str, wish: ConvertOptions, *, source: str, image: str, scheduled: list[str]) -> Iterator[str]:
    """The manifests of a text's applications. Raises: InvalidInput when it holds none."""
    from sparkonce.model.convert import convert as converted_of
    from sparkonce.model.convert_text import cron_job, written

    found, others = 0, []
    for part, tree, document in _documents(text, source):
        if not _converts(document):
            others.append(_named(document))
            continue
        found += 1
        converted = converted_of(document, wish, source=source, lines=tree.lines)
        manifest, kept = written(converted, part, lines=tree.lines, source=source)
        for note in converted.notes:
            _say(f"{converted.name}: {note}")
        if not kept:
            _say(f"{converted.name}: the comments of {source} could not be kept")
        if converted.schedule is not None:
            scheduled.append(converted.name)
            manifest = cron_job(converted, converted.schedule, manifest, image=image)
        yield manifest
    if not found:
        beside = f"; it has {', '.join(others)}" if others else ""
        raise InvalidInput(f"{source} has no SparkApplication{beside}; name the file that has one")
    for other in others:
        _say(f"{other} is left out: it is not a SparkApplication; apply it from {source}")


LIST = 8
"""How many manifests' worth of values a list of applications may hold."""


def _documents(text: str, source: str) -> Iterator[tuple[str, Tree, Mapping[str, Any]]]:
    """Each document, and each item of a List as `kubectl get -o yaml` prints it."""
    from sparkonce.model.document.reader import Tree, read_all

    for document in read_all(text, source=source, manifests=LIST):
        part, tree = document.text, document.tree
        if not isinstance(tree.data, dict):
            raise InvalidInput(f"{source} is not a Kubernetes manifest; name the file of a SparkApplication")
        if str(tree.data.get("kind")).endswith("List") and isinstance(items := tree.data.get("items"), list):
            for item in items:
                yield part, Tree(item, {}), item if isinstance(item, dict) else {}
        else:
            yield part, tree, tree.data


def _converts(document: Mapping[str, Any]) -> bool:
    from sparkonce.model.convert import is_application

    return is_application(document)


def _named(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return " ".join(str(each) for each in (document.get("kind") or "a document", name) if each)


def _say(sentence: str) -> None:
    tell(f"sparkonce: {' '.join(sentence.split())}", err=True)
