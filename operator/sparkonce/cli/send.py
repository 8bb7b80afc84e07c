"""`sparkonce send`: creates the job of a file in a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.options import JobArguments
from sparkonce.cli.view.terminal import tell
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.model.spec import IdempotentJob


def send(
    file: options.File,
    *,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Default: the job's, else that of the context.", show_default=False),
    ] = None,
    param: options.Params = None,
    output: options.Outputs = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            envvar="SPARKONCE_KUBECONFIG", help="As kubectl's; in a pod its service account.", show_default=False
        ),
    ] = None,
) -> ExitCode:
    """Create the job of a file in a cluster, where the operator runs it.

    For programs without kubectl, such as the CronJobs that `sparkonce convert` prints. The same job sent again changes nothing.

    Example: sparkonce send load-month.yaml --param month=01 --namespace data
    """
    job = JobArguments.of(file, params=param, outputs=output).job()
    where, created = asyncio.run(_send(kubeconfig, job, namespace))
    tell(f"{'sent' if created else 'already there'}: IdempotentJob {job.metadata.name} in namespace {where}")
    return ExitCode.SUCCEEDED


async def _send(kubeconfig: Path | None, job: IdempotentJob, namespace: str | None) -> tuple[str, bool]:
    from sparkonce.commands import send as sending

    try:
        from sparkonce.kube.client import ApiClient
        from sparkonce.kube.login import KubeLogin
        from sparkonce.launch.kubernetes import JOBS
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"sending to a cluster needs {missing.name}, which is not installed; run `pip install 'sparkonce[operator]'`"
        ) from None
    own = job.metadata.namespace
    if namespace is not None and own not in (None, namespace):
        raise InvalidInput(f"metadata.namespace is {own}, and --namespace is {namespace}; keep one of the two")
    login = KubeLogin(kubeconfig)
    client = ApiClient(login)
    try:
        where = namespace or own or await login.namespace()
        created = await sending.send(
            client, lambda body: client.create(JOBS, where, body, strict=True), job, namespace=where
        )
    finally:
        await client.close()
    return where, created
