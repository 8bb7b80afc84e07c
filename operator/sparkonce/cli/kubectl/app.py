"""`kubectl sparkonce`: the keys of a namespace on a cluster, for users who have kubectl and cannot reach the ledger.

It prints the tables of `sparkonce keys` from the gateway's answers. It sends a token made for the gateway only, or shows a client
certificate: the gateway authorizes, not this program. kubectl finds the program on PATH by its name, `kubectl-sparkonce`.

Options may follow the command, as kubectl's users write them. Only decisions that cannot be undone ask for confirmation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkonce.cli import options
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.keys import ask, chosen
from sparkonce.cli.view.terminal import tell
from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    from sparkonce.cli.kubectl.gateway import GatewayClient

NAME = "kubectl sparkonce"
PAGE = 500
"""Keys per page; the gateway's maximum."""
TRIES = 3
"""Times an unanswered rerun is sent: it names its generation, so a repetition opens no second one."""

app = typer.Typer(
    name=NAME,
    help="Inspect the keys of a namespace and decide about them, through the cluster's gateway.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Namespace = Annotated[
    str | None,
    typer.Option(
        "-n", "--namespace", metavar="NAME", help="Whose keys; default: the context's namespace.", show_default=False
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="Context of the kubeconfig; default: its current one.", show_default=False
    ),
]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", metavar="FILE", help="As kubectl's.", show_default=False)
]
Url = Annotated[
    str | None,
    typer.Option(
        "--gateway-url", metavar="URL", help="URL of the gateway, instead of a port-forward.", show_default=False
    ),
]
Place = Annotated[
    str | None,
    typer.Option(
        "--gateway-namespace",
        envvar="SPARKONCE_GATEWAY_NAMESPACE",
        metavar="NAME",
        help="Namespace of the sparkonce release; it has no default.",
        show_default=False,
    ),
]
Service = Annotated[
    str | None,
    typer.Option(
        envvar="SPARKONCE_GATEWAY_SERVICE",
        metavar="NAME",
        help="Name of the gateway's Service there, if it has several.",
        show_default=False,
    ),
]
Account = Annotated[
    str | None,
    typer.Option(
        "--service-account",
        envvar="SPARKONCE_SERVICE_ACCOUNT",
        metavar="[NAMESPACE/]NAME",
        help="Account whose token the gateway is sent; default: you, if you are one, else `sparkonce-user` of the keys' namespace, or "
        "`sparkonce-viewer` if you may only read.",
        show_default=False,
    ),
]
Audience = Annotated[
    str | None,
    typer.Option(
        "--audience",
        metavar="TEXT",
        help="Audience of the gateway at --gateway-url, if no --gateway-namespace says it.",
        show_default=False,
    ),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--gateway-ca",
        metavar="FILE",
        help="PEM file of the CA that signed the gateway's certificate.",
        show_default=False,
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--client-certificate",
        envvar="SPARKONCE_CLIENT_CERTIFICATE",
        metavar="FILE",
        help="PEM file of your certificate, to show in place of a token; default: the kubeconfig's, where the release takes them.",
        show_default=False,
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(
        "--client-key",
        envvar="SPARKONCE_CLIENT_KEY",
        metavar="FILE",
        help="PEM file of its key, not encrypted.",
        show_default=False,
    ),
]
Phases = Annotated[
    list[str] | None,
    typer.Option("--phase", metavar="PHASE", help="Only these: Running, Held, Failed, ...", show_default=False),
]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most so many.")]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the key's history.", show_default=False)
]


SHARED = frozenset(
    [
        "-n",
        "--namespace",
        "--context",
        "--kubeconfig",
        "--gateway-url",
        "--gateway-namespace",
        "--service",
        "--gateway-ca",
        "--service-account",
        "--audience",
        "--client-certificate",
        "--client-key",
    ]
)


def hoisted(arguments: Sequence[str]) -> list[str]:
    """Moves the connection options, which all commands share, before the command: kubectl's users write them after it."""
    first: list[str] = []
    rest: list[str] = []
    left = iter(arguments)
    for each in left:
        name, equals, _ = each.partition("=")
        if each == "--":
            rest += [each, *left]
        elif name in SHARED:
            first += [each] if equals else [each, *([value] if (value := next(left, None)) is not None else [])]
        else:
            rest.append(each)
    return first + rest


def main() -> None:
    """Ends the process with an exit code of `sparkonce.cli.exits.ExitCode`."""
    from sparkonce.cli.app import main as command_line

    sys.exit(command_line(hoisted(sys.argv[1:]), commands=app, name=NAME))


@app.callback()
def root(
    context: typer.Context,
    *,
    namespace: Namespace = None,
    kube_context: Context = None,
    kubeconfig: Kubeconfig = None,
    gateway_url: Url = None,
    gateway_namespace: Place = None,
    service: Service = None,
    gateway_ca: Ca = None,
    service_account: Account = None,
    audience: Audience = None,
    client_certificate: Certificate = None,
    client_key: Key = None,
) -> None:
    """Inspect the keys of a namespace and decide about them, through the cluster's gateway.

    The options below may precede or follow the command.
    """
    from sparkonce.cli.kubectl.gateway import Reach

    context.obj = Reach(
        kubeconfig=kubeconfig,
        context=kube_context,
        namespace=namespace,
        url=gateway_url,
        gateway_namespace=gateway_namespace,
        service=service,
        ca=gateway_ca,
        account=service_account,
        audience=audience,
        certificate=client_certificate,
        key=client_key,
    )


@contextmanager
def _gateway(context: typer.Context) -> Iterator[GatewayClient]:
    from sparkonce.cli.kubectl.gateway import reached

    with reached(context.obj) as gateway:
        yield gateway


def _say(told: Any, lines: Callable[[Any], None], *, as_json: bool) -> None:
    if not as_json:
        lines(told)
        return
    from sparkonce.cli.view.outcome import as_json as text

    tell(text(told))


@app.command("list")
def list_keys(
    context: typer.Context, phase: Phases = None, limit: Limit = 1000, as_json: options.Json = False
) -> ExitCode:
    """List the keys of the namespace and their states.

    Example: kubectl sparkonce list -n data --phase Held
    """
    from sparkonce.cli.view.keys import Source, print_keys

    with _gateway(context) as gateway:
        told = _all(gateway, phase or [], limit)
        source, more = Source(f"namespace {gateway.namespace}"), len(told["keys"]) if told["after"] else None
        _say(told, lambda told: print_keys(told, source, now=time.time(), limit=more), as_json=as_json)
    return ExitCode.SUCCEEDED


def _all(gateway: GatewayClient, phases: Sequence[str], limit: int) -> dict[str, Any]:
    from urllib.parse import urlencode

    told: dict[str, Any] = {"keys": [], "unreadable": [], "after": ""}
    while told["after"] is not None and len(told["keys"]) < limit:
        query = [("limit", str(min(PAGE, limit - len(told["keys"]))))]
        query += [("phase", each) for each in phases] + ([("after", told["after"])] if told["after"] else [])
        page = gateway.get(rest=f"?{urlencode(query)}")
        told["keys"] += page["keys"]
        told["unreadable"] += page["unreadable"]
        told["after"] = page["after"]
    return told


@app.command()
def show(context: typer.Context, key: options.KeyText, as_json: options.Json = False) -> ExitCode:
    """Show one key: its record, its result, its attempts.

    Example: kubectl sparkonce show load-flights/flights/2013-01@1
    """
    with _gateway(context) as gateway:
        _say(gateway.get(key), partial(_print_key, gateway.namespace), as_json=as_json)
    return ExitCode.SUCCEEDED


def _print_key(namespace: str, told: Any) -> None:
    from sparkonce.cli.view.keys import Source, failure_lines, print_key

    print_key(told, Source(f"namespace {namespace}"), now=time.time())
    if lines := list(failure_lines(told["result"] or {})):
        tell("", *lines)


@app.command()
def history(context: typer.Context, key: options.KeyText, as_json: options.Json = False) -> ExitCode:
    """Show who did what to a key, and why; also of a key that was forgotten (by its whole hash).

    Example: kubectl sparkonce history load-flights/flights/2013-01@1
    """
    from sparkonce.cli.view.keys import print_history

    with _gateway(context) as gateway:
        _say(gateway.get(key, "/history"), print_history, as_json=as_json)
    return ExitCode.SUCCEEDED


@app.command()
def explain(context: typer.Context, key: options.KeyText, as_json: options.Json = False) -> ExitCode:
    """Explain the state of a key: the deciding row, the evidence, what the key waits for, and what would unblock it.

    Example: kubectl sparkonce explain load-flights/flights/2013-01@1
    """
    from sparkonce.attempt.request import for_kubectl
    from sparkonce.cli.view.keys import print_explained

    with _gateway(context) as gateway:
        told = gateway.get(key, "/explain")
        _say(
            told, lambda told: print_explained({**told, "unblock": for_kubectl(told["unblock"] or "")}), as_json=as_json
        )
    return ExitCode.SUCCEEDED


@app.command()
def logs(
    context: typer.Context,
    key: options.KeyText,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Until the key has its result.")] = False,
) -> ExitCode:
    """Print the driver's log of the current attempt, or what was kept of it after its pod is gone.

    Example: kubectl sparkonce logs -f load-flights/flights/2013-01@1
    """
    from sparkonce.cli.kubectl.gateway import print_logs

    with _gateway(context) as gateway:
        print_logs(gateway, context.obj, key, follow=follow)
    return ExitCode.SUCCEEDED


@app.command()
def rerun(
    context: typer.Context,
    key: options.KeyIfAny = None,
    *,
    file: options.Filename = None,
    param: options.Params = None,
    generation: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only if N is still the newest one.", show_default=False),
    ] = None,
    reason: Reason = "",
    as_json: options.Json = False,
) -> ExitCode:
    """Open the next generation of a finished key, with the job as it was recorded; or, with -f, with the job as the file has it.

    A file is applied with the reason as its annotation sparkonce.dev/rerun: the same command again never opens two.

    Example: kubectl sparkonce rerun load-flights/flights/2013-01@1 --reason "the source was corrected"
    """
    key = options.one_target(key, file)
    if file is not None:
        from sparkonce.cli.kubectl.apply import apply_again

        if generation is not None or as_json:
            raise InvalidInput("--generation and --json go with a key; the file's object shows what becomes of it")
        tell(*apply_again(context.obj, file, reason, params=param))
        return ExitCode.SUCCEEDED
    options.only_of_a_file(param=param)
    with _gateway(context) as gateway:
        after = generation or gateway.get(key)["generation"]
        because = {"reason": reason} if reason else {}  # an earlier gateway knows no reason here, and refuses it
        told = _rerun(gateway, key, {"generation": after, **because})
        _say(told, lambda told: tell(f"{told['phase'].lower()}: {_which(told)}"), as_json=as_json)
    return ExitCode.SUCCEEDED


def _rerun(gateway: GatewayClient, key: str, body: dict[str, Any]) -> Any:
    from sparkonce.cli.kubectl.gateway import GatewayUnavailable

    again = f"send it again as `{NAME} rerun {key} --generation {body['generation']}`, which never opens two"
    lost: GatewayUnavailable | None = None
    for _ in range(TRIES):
        try:
            return gateway.post(key, "rerun", body)
        except GatewayUnavailable as unanswered:
            lost = unanswered
    raise GatewayUnavailable(f"{lost}; {again}")


@app.command()
def cancel(
    context: typer.Context, key: options.KeyText, reason: Reason = "", as_json: options.Json = False
) -> ExitCode:
    """Request cancellation of a running generation; its outputs decide the outcome.

    Example: kubectl sparkonce cancel load-flights/flights/2013-01@1 --reason "the wrong day"
    """
    with _gateway(context) as gateway:
        told = gateway.post(key, "cancel", {"reason": reason})
        asked = f"{_which(told)}: it is asked to stop; `{NAME} show {told['key']}` shows the outcome"
        over = f"{told['phase'].lower()}: {_which(told)}"
        ended = told["phase"] in {"Succeeded", "Failed", "Cancelled"}
        _say(told, lambda _: tell(over if ended else asked), as_json=as_json)
    return ExitCode.SUCCEEDED


@app.command()
def resolve(
    context: typer.Context,
    key: options.KeyText,
    *,
    reason: options.Reason,
    succeeded: Annotated[bool, typer.Option("--succeeded", help="It took effect (a job without outputs).")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="It took no effect and is over; refused where an output has rows.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Grant another attempt.")] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Decide a held key. The outputs are read first, and their evidence wins.

    Example: kubectl sparkonce resolve 3f9a --retry --reason "the disk was replaced"
    """
    from sparkonce.attempt.request import for_kubectl

    how = chosen(succeeded=succeeded, failed=failed, retry=retry)
    with _gateway(context) as gateway:
        held = gateway.get(key)
        ask(f"Resolve {held['key']}, held for {held['held']}, as {how}?", yes=yes)
        told = gateway.post(held["keyHash"], "resolve", {"outcome": how, "reason": reason})
        because = f": {told['reason']}" if told["reason"] else ""
        lines = [f"{str(told['phase']).lower()}: {_which(told)}{because}"]
        lines += [f"  what to do: {for_kubectl(told['unblock'])}"] if told["unblock"] else []
        _say(told, lambda _: tell(*lines), as_json=as_json)
    return ExitCode.HELD if told["phase"] == "Held" else ExitCode.SUCCEEDED


@app.command()
def forget(
    context: typer.Context,
    key: options.KeyText,
    *,
    reason: options.Reason,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Remove the record of a finished key, so that the job would run anew. Its tables stay.

    Example: kubectl sparkonce forget 3f9a --reason "loaded by mistake"
    """
    from sparkonce.cli.keys import forgotten

    with _gateway(context) as gateway:
        found = gateway.get(key)
        ask(f"Forget {found['key']} (generation {found['generation']})?", yes=yes)
        told = gateway.post(found["keyHash"], "forget", {"reason": reason})
        _say(told, lambda told: tell(forgotten(told["key"], told["floor"])), as_json=as_json)
    return ExitCode.SUCCEEDED


def _which(told: Any) -> str:
    return f"{told['key']}, generation {told['generation']}, attempt {told['attempt']}"
