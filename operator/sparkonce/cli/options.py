"""Options that several commands share, each said once. Imports nothing but typer: `--help` and a replay must be quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FILE = "The job file (YAML); `-` reads it from standard input."
KEY = "A key, or the beginning of its hash, as `sparkonce keys list` shows them."

File = Annotated[str, typer.Argument(metavar="FILE", help=FILE, show_default=False)]
KeyText = Annotated[str, typer.Argument(metavar="KEY", help=KEY, show_default=False)]
KeyOrFile = Annotated[
    str,
    typer.Argument(metavar="KEY|FILE", help=f"{KEY} Or the job file: an existing file is one.", show_default=False),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The ledger: sqlite:///PATH or a path, or etcd://HOST:PORT of a cluster's. "
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
        help="As kubectl's, on a cluster's ledger: its objects are looked at first.",
        show_default=False,
    ),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        metavar="NAME=DIR",
        help="Write this output to another folder, relative to the current one. It is part of what the job is.",
        show_default=False,
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Fill ${params.NAME} in the job file. It is part of what the job is.",
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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the key's history.", show_default=False)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
