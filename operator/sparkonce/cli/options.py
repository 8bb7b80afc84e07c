"""Options and arguments that several commands share: declarations for typer, and a job file with its parameters and output folders.

Relative paths on the command line are resolved against the current folder, those in the job file against the file's folder; both here,
before key and fingerprint are computed. Every refusal is InvalidInput and writes nothing. Imports little, because `--help` must be quick.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.local.prepare import Prepared
    from sparkonce.model.spec import IdempotentJob


FILE = "The job file (YAML); `-` reads it from standard input."
KEY = "A key, or its hash, or at least 8 digits of that, as `sparkonce keys list` shows them."

File = Annotated[str, typer.Argument(metavar="FILE", help=FILE, show_default=False)]
KeyText = Annotated[str, typer.Argument(metavar="KEY", help=KEY, show_default=False)]
KeyOrFile = Annotated[
    str,
    typer.Argument(metavar="KEY|FILE", help=f"{KEY} Or the job file.", show_default=False),
]
KeyOrFileIfAny = Annotated[
    str | None,
    typer.Argument(metavar="KEY|FILE", help=f"{KEY} Or the job file.", show_default=False),
]
KeyIfAny = Annotated[str | None, typer.Argument(metavar="KEY", help=KEY, show_default=False)]
Filename = Annotated[
    str | None,
    typer.Option("-f", "--filename", metavar="FILE", help=f"{FILE} What it says now is run.", show_default=False),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The ledger: sqlite:///PATH or a path, postgresql://HOST/DATABASE, or etcd://HOST:PORT of a cluster's. "
        "Without it: $SPARKONCE_STORE, else one file in your data folder.",
        show_default=False,
    ),
]
Install = Annotated[
    str | None,
    typer.Option(
        "--install",
        metavar="ID",
        help="Which deployment's keys, on a cluster's ledger. Without it: $SPARKONCE_INSTALL.",
        show_default=False,
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        envvar="SPARKONCE_KUBECONFIG",
        help="As kubectl's; on a cluster's ledger the key's objects are checked first.",
        show_default=False,
    ),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        metavar="NAME=DIR",
        help="Write this output to another folder, relative to the current one. Part of the job's fingerprint.",
        show_default=False,
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Fill ${params.NAME} in the job file. Part of the job's fingerprint.",
        show_default=False,
    ),
]
Application = Annotated[
    str | None,
    typer.Option(
        "--application",
        metavar="FILE",
        help="The script to run here for a mainApplicationFile that is inside an image (local://...).",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Default: the job's, else that of the context.", show_default=False),
]
ClusterConfig = Annotated[
    Path | None,
    typer.Option(envvar="SPARKONCE_KUBECONFIG", help="As kubectl's; in a pod its service account.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def watched(namespace: Sequence[str] | None, *, every: bool, asked: str) -> list[str] | None:
    """The namespaces that `--namespace` names, repeated or separated by commas; None means all.

    every: whether `--all-namespaces` is given. asked: completes "say which namespaces ...".

    Raises:
        InvalidInput: neither option is given, or both.
    """
    named = [each for item in namespace or () for each in item.split(",") if each]
    if bool(named) == every:
        raise InvalidInput(f"say which namespaces {asked}: --namespace NS (repeatable), or --all-namespaces")
    return None if every else named


def _reason(text: str) -> str:
    from sparkonce.model.record import REASON_LIMIT

    if len(text) > REASON_LIMIT:
        raise typer.BadParameter(f"is longer than {REASON_LIMIT} characters")
    return text


Reason = Annotated[
    str,
    typer.Option(
        "--reason",
        metavar="TEXT",
        help="Why; it is kept in the key's history.",
        show_default=False,
        callback=_reason,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def one_target(target: str | None, file: str | None) -> str:
    """The one that is given. Raises: InvalidInput: both, or neither."""
    given = [each for each in (target, file) if each is not None]
    if len(given) != 1:
        raise InvalidInput("name what to run again, either by its key or by its file with -f FILE")
    return given[0]


def only_of_a_file(**given: object) -> None:
    """Refuses options that complete a job file, where a key is given. Raises: InvalidInput: names them."""
    if names := [f"--{name}" for name, value in given.items() if value]:
        verb = "completes" if len(names) == 1 else "complete"
        raise InvalidInput(f"{' and '.join(names)} {verb} a job file; a key stands for the job as it was sent")


STANDARD_INPUT = "-"
MOST = 8 << 20
"""Bytes that are read of a file: `convert` takes lists of applications, which may be larger than a job file."""
NAME_ONE = "name a YAML file, or - for standard input"
"""What to do about a job file that cannot be read: part of a sentence."""
_YAML = (".yaml", ".yml", ".json")


@dataclass(frozen=True, kw_only=True)
class JobArguments:
    """A job file and the options that complete it."""

    file: str
    params: Mapping[str, str]
    outputs: Mapping[str, str]
    """Absolute folders by output name."""
    application: str | None = None
    """Absolute."""

    @classmethod
    def of(
        cls,
        file: str,
        *,
        params: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        application: str | None = None,
    ) -> Self:
        places = pairs("--output", outputs or ())
        return cls(
            file=file,
            params=pairs("--param", params or ()),
            outputs={name: _folder(name, place) for name, place in places.items()},
            application=str(Path(application).resolve()) if application else None,
        )

    @property
    def source(self) -> str:
        return "standard input" if self.file == STANDARD_INPUT else self.file

    @property
    def base(self) -> str:
        """The folder that the job file's relative paths are relative to."""
        return str(Path.cwd() if self.file == STANDARD_INPUT else (Path.cwd() / self.file).resolve().parent)

    def text(self) -> str:
        """The file's text. Raises: InvalidInput: there is no such file, or it is not text."""
        from sparkonce.local.prepare import NotRegular, regular
        from sparkonce.model.document.reader import decoded

        try:
            with nullcontext(sys.stdin.buffer) if self.file == STANDARD_INPUT else regular(self.file) as file:
                data = file.read(MOST + 1)
        except NotRegular as refused:
            what = "name the job file in it" if refused.what == "a folder" else NAME_ONE
            raise InvalidInput(f"{self.file} is {refused.what}; {what}") from None
        except FileNotFoundError:
            raise InvalidInput(f"the job file {self.file} does not exist; {NAME_ONE}") from None
        except OSError as problem:
            raise InvalidInput(f"the job file {self.source} cannot be read ({problem.strerror})") from None
        if len(data) > MOST:
            raise InvalidInput(
                f"{self.source} is larger than {MOST >> 20} MiB, the limit for a job file; name a YAML file"
            )
        return decoded(data, source=self.source)

    def job(self) -> IdempotentJob:
        """The job, with parameters and outputs filled in. Raises: InvalidJob: names every problem with its path and line."""
        from sparkonce.model.manifest import load

        return load(self.text(), params=self.params, outputs=self.outputs, source=self.source)

    def prepared(self) -> Prepared:
        from sparkonce.local.prepare import prepare

        return prepare(self.job(), base=self.base, application=self.application)


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """`["a=1"]` to `{"a": "1"}`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals) or (option == "--output" and not value):
            form = "NAME=DIR" if option == "--output" else "NAME=VALUE"
            raise InvalidInput(f"{option} {text}: write {option} {form}")
        if name in found:
            raise InvalidInput(f"{option} {name} is given twice; keep one of the two")
        found[name] = value
    return found


def _folder(name: str, place: str) -> str:
    """A URL as it is, a folder with its full path. Raises: InvalidInput: the place begins with a kind, which the job file declares."""
    from sparkonce.model.spec import kind_and_place

    kind, rest = kind_and_place(place)
    if kind:
        raise InvalidInput(
            f"--output {name}={place}: the job file declares what kind of output {name} is; write --output {name}={rest or 'DIR'}, "
            f"or ./{place} for a folder of that name"
        )
    return place if "://" in place else str(Path(place).resolve())


def is_file(target: str) -> bool:
    """Whether KEY|FILE names a file. Raises: InvalidInput when it looks like one that does not exist."""
    if target == STANDARD_INPUT or (Path(target).exists() and not Path(target).is_dir()):
        return True  # a FIFO or device is refused when it is read
    if target.endswith(_YAML):
        raise InvalidInput(f"the job file {target} does not exist; name a YAML file, or a key (`sparkonce keys list`)")
    return False
