"""`sparkonce doctor accept-restore`: a person accepts a restored ledger as the one to continue with.

`check_reported` refuses to forget a record before the key's objects show its result: afterwards nothing could report it to them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.view.terminal import confirm, tell
from sparkonce.commands import remote as told
from sparkonce.errors import InvalidInput
from sparkonce.model.record import Record

if TYPE_CHECKING:
    from sparkonce.store.restore import Restorable


def accept_restore(
    *,
    store: Annotated[
        str,
        typer.Option(
            "--store", envvar="SPARKONCE_STORE", help="The ledger: etcd://HOST:PORT, or postgresql://HOST/DATABASE."
        ),
    ],
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
    """Continue with a ledger that was restored from a backup, or is empty. Also: sparkonce doctor accept-restore.

    Operators pause while the ledger is older than the revisions that objects have seen. This command rebuilds records from applications
    (whose attempts are adopted, not run again) and lets operators resume. Objects whose record is gone become Expired and run nothing.

    Example: sparkonce doctor accept-restore --store etcd://etcd:2379 --install prod --all-namespaces
    """
    scopes = options.watched(namespace, every=all_namespaces, asked="the operator watches")
    if not yes and not confirm("The newer ledger cannot be used after this. Continue with the restored one?"):
        raise typer.Abort
    asyncio.run(_accept(store, install, scopes, kubeconfig))
    return ExitCode.SUCCEEDED


async def _accept(url: str, install: str, namespaces: list[str] | None, kubeconfig: Path | None) -> None:
    from sparkonce.cli.session import person
    from sparkonce.store.open import open_shared

    try:
        from sparkonce.controller.restore import accept
        from sparkonce.kube.client import ApiClient
        from sparkonce.kube.login import KubeLogin
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"accepting a restored ledger needs {missing.name}, which is not installed; run `pip install 'sparkonce[operator]'`"
        ) from None
    store = open_shared(url, install=install, by="accept-restore")
    client = ApiClient(KubeLogin(kubeconfig))

    def told(key: str, rebuilt: bool) -> None:
        tell(f"{key}: {'rebuilt from its application' if rebuilt else 'as the ledger has it'}", err=True)

    try:
        done = await accept(
            store,
            cast("Restorable", store),
            client,
            install=install,
            namespaces=namespaces,
            by=person(),
            on_key=told,
        )
    finally:
        await client.close()
        await store.close()
    number = len(done.rebuilt)
    tell(
        f"accepted: epoch {done.epoch}, {number} record{'' if number == 1 else 's'} rebuilt, {done.kept} as they were; operators continue"
    )


def check_reported(record: Record, kubeconfig: Path | None) -> None:
    """Checks that the key's objects show its result. Raises: InvalidInput when one does not yet, or cannot be read."""
    if record.objects:
        asyncio.run(_check(record, kubeconfig))


async def _check(record: Record, kubeconfig: Path | None) -> None:
    try:
        from sparkonce.kube.client import ApiClient
        from sparkonce.kube.login import KubeLogin
        from sparkonce.launch.kubernetes import JOBS, ApiRefused, ApiUnavailable
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"looking at the objects of {record.key} needs {missing.name}, which is not installed; run `pip install 'sparkonce[operator]'`"
        ) from None
    client = ApiClient(KubeLogin(kubeconfig))
    try:
        await told.check_reported(record, lambda namespace, name: client.get(JOBS, namespace, name))
    except (ApiUnavailable, ApiRefused) as problem:
        raise InvalidInput(
            f"whether the objects of {record.key} show its end cannot be read ({problem}); name the cluster with --kubeconfig FILE"
        ) from None
    finally:
        await client.close()
