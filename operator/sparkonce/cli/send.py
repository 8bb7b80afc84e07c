"""`sparkonce send`: creates the job of a file in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.options import JobArguments
from sparkonce.cli.view.terminal import tell
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.kube.client import ApiClient
    from sparkonce.launch.kubernetes import Resource
    from sparkonce.model.identity import Key
    from sparkonce.model.spec import IdempotentJob


def send(
    file: options.File,
    *,
    namespace: options.Namespace = None,
    param: options.Params = None,
    output: options.Outputs = None,
    kubeconfig: options.ClusterConfig = None,
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
    async with _cluster(kubeconfig, job, namespace) as (client, where):
        from sparkonce.commands import send as sending
        from sparkonce.launch.kubernetes import JOBS

        return where, await sending.send(client, lambda body: client.create(JOBS, where, body), job, namespace=where)


async def check(kubeconfig: Path | None, job: IdempotentJob, namespace: str | None) -> tuple[str, Key]:
    """The namespace and the key of a job that the API server would take. Raises: as `commands.send.check`."""
    async with _cluster(kubeconfig, job, namespace) as (client, where):
        from sparkonce.commands import send as sending

        async def create(resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
            return await client.create(resource, where, body, dry_run=True)

        return where, await sending.check(create, job, namespace=where)


@asynccontextmanager
async def _cluster(
    kubeconfig: Path | None, job: IdempotentJob, namespace: str | None
) -> AsyncIterator[tuple[ApiClient, str]]:
    """A client, and the namespace that the job is for."""
    try:
        from sparkonce.kube.client import ApiClient
        from sparkonce.kube.login import KubeLogin
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
        yield client, namespace or own or await login.namespace()
    finally:
        await client.close()
