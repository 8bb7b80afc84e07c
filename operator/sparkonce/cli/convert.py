"""`sparkonce convert`: the IdempotentJob of a plain SparkApplication, printed or written to a new file; `sparkonce bind`: the one that
follows it. They apply nothing.

Several documents become several jobs. What is neither an application nor a scheduled one stays out, and is named on standard error: a
ConfigMap beside the job is still to be applied from its own file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli.asked import Asked, pairs
from sparkonce.cli.exits import ExitCode
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.model.convert import Wish
    from sparkonce.model.yaml_tree import Tree

Operation = Annotated[
    str | None, typer.Option(metavar="TEXT", help='What is done; "run" unless told.', show_default=False)
]
Resource = Annotated[
    str | None, typer.Option(metavar="TEXT", help="What it is done to; the name unless told.", show_default=False)
]
Key = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="The key, instead of operation and resource.", show_default=False),
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
            metavar="NAME=PATH",
            help="A table that the script writes through sparkonce, as a slot log. Without any the job is opaque.",
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

    The template keeps what the application says. Whatever is changed or left out is named, in comments and on standard error.

    Example: sparkonce convert app.yaml --operation load --resource flights/2013-01
    """
    wish = _wish(operation, resource, key, outputs=pairs("--output", output or ()))
    if to is not None and Path(to).exists():
        raise InvalidInput(f"{to} exists; name a new file, nothing is overwritten")
    text = _written(file, wish, "convert")
    if to is None:
        sys.stdout.write(text)
    else:
        with Path(to).open("x", encoding="utf-8") as new:
            new.write(text)
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

    Apply it with kubectl: what the application comes to is then the result of its key. It is never stopped or run again.

    Example: sparkonce bind app.yaml --operation load --resource flights/2013-01
    """
    sys.stdout.write(_written(file, _wish(operation, resource, key, bind=True), "bind"))
    return ExitCode.SUCCEEDED


def _wish(operation: str | None, resource: str | None, key: str | None, **more: Any) -> Wish:
    """InvalidInput: it has two keys."""
    from sparkonce.model.convert import Wish

    if key is not None and (operation is not None or resource is not None):
        raise InvalidInput("--key stands instead of --operation and --resource; keep one of the two")
    return Wish(operation=operation, resource=resource, key=key, **more)


def _written(file: str, wish: Wish, verb: str) -> str:
    """The jobs of all applications in a file. InvalidInput."""
    asked = Asked.of(file)
    texts = list(_jobs(asked.text(), wish, source=asked.source))
    if len(texts) > 1 and (wish.key is not None or wish.resource is not None):
        raise InvalidInput(f"{asked.source} has {len(texts)} applications, and one key cannot be for all; {verb} one")
    return "---\n".join(texts)


def _jobs(text: str, wish: Wish, *, source: str) -> Iterator[str]:
    """InvalidInput: there is no application in it."""
    from sparkonce.model.convert import convert as converted_of
    from sparkonce.model.convert_text import written

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
        yield manifest
    if not found:
        beside = f"; it has {', '.join(others)}" if others else ""
        raise InvalidInput(f"{source} has no SparkApplication{beside}; name the file that has one")
    for other in others:
        _say(f"{other} is left out: it is no SparkApplication; apply it from {source}")


def _documents(text: str, source: str) -> Iterator[tuple[str, Tree, Mapping[str, Any]]]:
    """Those of a List each for itself, as `kubectl get -o yaml` prints them."""
    from sparkonce.model.convert_text import documents
    from sparkonce.model.yaml_tree import Tree, read

    for part in documents(text):
        tree = read(part, source=source)
        if not isinstance(tree.data, dict):
            raise InvalidInput(f"{source} is no Kubernetes manifest; name the file of a SparkApplication")
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
    typer.echo(f"sparkonce: {' '.join(sentence.split())}", err=True)
