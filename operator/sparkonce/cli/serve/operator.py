"""`sparkonce operator`: one process of the operator, in the foreground, until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkonce.cli import options
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.model.record import GatewayAddress
    from sparkonce.sink.allowed import AllowedOutputs


def operator(
    *,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="SPARKONCE_STORE",
            help="The ledger: etcd://HOST:PORT[,HOST:PORT], or postgresql://HOST/DATABASE.",
        ),
    ],
    install: Annotated[
        str,
        typer.Option(
            "--install", envvar="SPARKONCE_INSTALL", help="Name of this deployment on the ledger; it never changes."
        ),
    ],
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", envvar="SPARKONCE_NAMESPACES", help="Watch this namespace; may be repeated."),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", envvar="SPARKONCE_ALL_NAMESPACES", help="Watch all namespaces.")
    ] = False,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(envvar="SPARKONCE_KUBECONFIG", help="Default: the pod's service account, else kubectl's file."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option("--http", envvar="SPARKONCE_HTTP", help="HOST:PORT for /healthz, /readyz and /metrics."),
    ] = None,
    slots: Annotated[
        int,
        typer.Option(envvar="SPARKONCE_SLOTS", min=1, help="New jobs that may be unfinished at once in this process."),
    ] = 200,
    max_live_keys: Annotated[
        int,
        typer.Option(envvar="SPARKONCE_MAX_LIVE_KEYS", min=1, help="Keys of one realm; the next new one has to wait."),
    ] = 100_000,
    lease_seconds: Annotated[
        int,
        typer.Option(envvar="SPARKONCE_LEASE_TTL", min=2, help="A dead process is replaced after so many seconds."),
    ] = 10,
    sweep_seconds: Annotated[
        float, typer.Option(envvar="SPARKONCE_SWEEP", min=1, help="Seconds between two reads of everything.")
    ] = 120.0,
    settle: Annotated[
        str,
        typer.Option(
            envvar="SPARKONCE_SETTLE",
            help="Who settles what an ended attempt committed: `auto` (this process where it reaches the outputs, else a settle run "
            "in a pod of its own), `operator` (it mounts and reaches every output), `run` (settle runs alone).",
        ),
    ] = "auto",
    outputs_allowed: Annotated[
        Path | None,
        typer.Option(
            envvar="SPARKONCE_OUTPUTS_ALLOWED",
            help="YAML file: which outputs each namespace may have this process act on, a list of {namespace, prefixes}. "
            "Without it, `auto` means `run` where several namespaces are watched.",
        ),
    ] = None,
    ambient_credentials: Annotated[
        bool,
        typer.Option(
            "--ambient-credentials/--no-ambient-credentials",
            envvar="SPARKONCE_AMBIENT_CREDENTIALS",
            help="Whether this process may ask object stores with the identity of its machine, beside credentials that it was given.",
        ),
    ] = False,
    settle_after: Annotated[
        float,
        typer.Option(
            envvar="SPARKONCE_SETTLE_AFTER",
            min=0,
            help="Seconds to keep asking outputs that do not answer before a settle run is started.",
        ),
    ] = 30.0,
    output_seconds: Annotated[
        float,
        typer.Option(
            envvar="SPARKONCE_OUTPUT_SECONDS",
            min=1,
            help="The longest that one key waits for its outputs before it reports that they do not answer.",
        ),
    ] = 60.0,
    gateway_url: Annotated[
        str | None,
        typer.Option(
            envvar="SPARKONCE_GATEWAY_URL", help="https://HOST:PORT at which drivers reach `sparkonce gateway`."
        ),
    ] = None,
    gateway_ca: Annotated[
        Path | None,
        typer.Option(
            envvar="SPARKONCE_GATEWAY_CA",
            help="PEM file of the CA that signed its certificate, unless drivers trust it already.",
        ),
    ] = None,
    log_format: Annotated[str, typer.Option(envvar="SPARKONCE_LOG_FORMAT", help="text or json.")] = "text",
) -> int:
    """Run the operator: watch IdempotentJobs, run each once, write the outcome to its status.

    Any number of operators may share one ledger. SIGTERM hands this one's keys to the others and ends it.

    Example: sparkonce operator --store etcd://etcd:2379 --install prod --all-namespaces --http 0.0.0.0:8080
    """
    namespaces = options.watched(namespace, every=all_namespaces, asked="to watch")
    try:
        from sparkonce.kube.operator import OperatorSettings, serve
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"the operator needs {missing.name}, which is not installed; run `pip install 'sparkonce[operator]'`"
        ) from None
    from sparkonce.attempt.settle import settles_as
    from sparkonce.sink.objects import ambient

    if not ambient_credentials:
        ambient.forbid(os.environ)
    from sparkonce.controller.controller import ControllerSettings

    margin = min(1.0, lease_seconds / 4)
    settings = OperatorSettings(
        store=store,
        install=install,
        namespaces=namespaces,
        kubeconfig=kubeconfig,
        lease_seconds=lease_seconds,
        max_live_keys=max_live_keys,
        gateway=_gateway(gateway_url, gateway_ca),
        replica=ControllerSettings(slots=slots, sweep=sweep_seconds, margin=margin),
        settles=settles_as(settle),
        allowed=_allowed(outputs_allowed),
        settle_after=settle_after,
        output_seconds=output_seconds,
    )
    asyncio.run(serve(settings, http=http, log_format=log_format, signals=(signal.SIGTERM, signal.SIGINT)))
    return 0


def _gateway(url: str | None, ca: Path | None) -> GatewayAddress | None:
    from sparkonce.model.record import GatewayAddress

    if url is None:
        return None
    if not url.startswith(("https://", "http://")):
        raise InvalidInput(f"--gateway-url is {url!r}; give https://HOST:PORT as drivers reach it")
    try:
        return GatewayAddress(url, "" if ca is None else ca.read_text())
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"--gateway-ca {ca} cannot be read ({problem}); name a PEM file") from None


def _allowed(file: Path | None) -> AllowedOutputs | None:
    from sparkonce.model.document.reader import decoded, read
    from sparkonce.sink.allowed import AllowedOutputs

    if file is None:
        return None
    try:
        listed = read(decoded(file.read_bytes(), source=str(file)), source=str(file)).data
    except OSError as problem:
        raise InvalidInput(f"--outputs-allowed {file} cannot be read ({problem.strerror}); name a YAML file") from None
    except InvalidInput as problem:
        raise InvalidInput(f"--outputs-allowed {problem}") from None
    try:
        return AllowedOutputs.of(listed)
    except InvalidInput as wrong:
        raise InvalidInput(f"--outputs-allowed {file}: {wrong}") from None
