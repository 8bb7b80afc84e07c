"""`sparkonce doctor accept-restore`: a person says that a restored ledger is the one to go on with."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path
from typing import Annotated

import typer

from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode
from sparkonce.errors import InvalidInput


def accept_restore(
    *,
    store: Annotated[str, typer.Option("--store", envvar="SPARKONCE_STORE", help="etcd://HOST:PORT of the ledger.")],
    install: Annotated[
        str, typer.Option("--install", envvar="SPARKONCE_INSTALL", help="Name of the deployment on it.")
    ],
    namespace: Annotated[
        list[str] | None, typer.Option("--namespace", "-n", help="Look at this namespace; may be repeated.")
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Look at all namespaces.")] = False,
    kubeconfig: Annotated[Path | None, typer.Option(envvar="SPARKONCE_KUBECONFIG", help="As kubectl's.")] = None,
    yes: options.Yes = False,
) -> ExitCode:
    """Go on with a ledger that was restored from a backup, or is empty. Also: sparkonce doctor accept-restore.

    Operators stand still while the ledger is older than what objects have seen of it. This writes into it what applications show (their
    attempts are adopted, not run again) and then lets operators go on. Objects whose record is gone show Expired and run nothing.

    Example: sparkonce doctor accept-restore --store etcd://etcd:2379 --install prod --all-namespaces
    """
    if bool(namespace) == all_namespaces:
        raise InvalidInput(
            "say which namespaces the operator watches: --namespace NS (repeatable), or --all-namespaces"
        )
    if not yes:
        typer.confirm("The newer ledger cannot be used any more after this. Go on with the restored one?", abort=True)
    scopes = None if all_namespaces else namespace
    asyncio.run(_accept(store, install, scopes, kubeconfig))
    return ExitCode.SUCCEEDED


async def _accept(url: str, install: str, namespaces: list[str] | None, kubeconfig: Path | None) -> None:
    from sparkonce.store.open import open_store, redacted

    if not url.lower().startswith("etcd://"):
        raise InvalidInput(f"only a ledger at etcd://HOST:PORT tells that it was restored, and {redacted(url)} is none")
    try:
        from sparkonce.engine.restoring import accept
        from sparkonce.kube.client import ApiClient
        from sparkonce.kube.login import Login
        from sparkonce.store.etcd import EtcdStore
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"accepting a restored ledger needs {missing.name}, which is not installed; install sparkonce[operator]"
        ) from None
    store = open_store(url, install=install)
    assert isinstance(store, EtcdStore)  # by its address
    client = ApiClient(Login(kubeconfig))

    def told(key: str, rebuilt: bool) -> None:
        typer.echo(f"{key}: {'rebuilt from its application' if rebuilt else 'as the ledger has it'}", err=True)

    try:
        done = await accept(
            store, store, client, install=install, namespaces=namespaces, by=getpass.getuser(), on_key=told
        )
    finally:
        await client.close()
        await store.close()
    number = len(done.rebuilt)
    typer.echo(
        f"accepted: epoch {done.epoch}, {number} record{'' if number == 1 else 's'} rebuilt, {done.kept} as they were; operators go on"
    )
