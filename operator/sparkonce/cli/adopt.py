"""`sparkonce adopt`: binds the SparkApplications that run when sparkonce is installed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.cli.exits import ExitCode
from sparkonce.cli.options import pairs
from sparkonce.cli.view.terminal import tell
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparkonce.commands.adopt import Adopted


def adopt(
    *,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the applications.")],
    selector: Annotated[
        str,
        typer.Option(
            "--selector",
            "-l",
            metavar="NAME=VALUE,...",
            help="Labels of the applications; default: all of the namespace.",
        ),
    ] = "",
    operation: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help='What they do, as part of their keys; default: "run".', show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be bound; write nothing.")] = False,
    kubeconfig: Annotated[Path | None, typer.Option(envvar="SPARKONCE_KUBECONFIG", help="As kubectl's.")] = None,
) -> ExitCode:
    """Bind every plain SparkApplication of a namespace that has not ended, as `sparkonce bind` does one.

    Each gets an IdempotentJob of its name, with the key `run/NAME@1`. Those that are bound already, and attempts of sparkonce, are left
    alone, so the command may be repeated. It exits with 2 if one that runs could not be bound.

    Example: sparkonce adopt --namespace team-a --selector team=a
    """
    from sparkonce.commands.adopt import Adoption

    labels = pairs("--selector", [each for each in selector.split(",") if each])
    refused = []

    def told(each: Adopted) -> None:
        more = f" ({each.why})" if each.why else f": {each.key}" if each.key else ""
        tell(f"{each.name}: {each.what}{more}")
        if each.what is Adoption.REFUSED:
            refused.append(each.name)

    asyncio.run(_adopt(kubeconfig, namespace=namespace, labels=labels, operation=operation, dry_run=dry_run, told=told))
    return ExitCode.INVALID if refused else ExitCode.SUCCEEDED


async def _adopt(
    kubeconfig: Path | None,
    *,
    namespace: str,
    labels: Mapping[str, str],
    operation: str | None,
    dry_run: bool,
    told: Callable[[Adopted], None],
) -> None:
    from sparkonce.commands import adopt as adopting

    try:
        from sparkonce.kube.client import ApiClient
        from sparkonce.kube.login import KubeLogin
        from sparkonce.launch.kubernetes import JOBS
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"looking for applications needs {missing.name}, which is not installed; run `pip install 'sparkonce[operator]'`"
        ) from None
    client = ApiClient(KubeLogin(kubeconfig))
    try:
        await adopting.adopt(
            client,
            lambda body: client.create(JOBS, namespace, body),
            namespace=namespace,
            labels=labels,
            operation=operation,
            dry_run=dry_run,
            on_each=told,
        )
    finally:
        await client.close()
