"""`kubectl sparkonce logs`: the driver of the current attempt, read by kubectl with the user's own rights.

The gateway says which attempt is the current one; the log itself never goes through it, so that whoever may not read the pods of a
namespace cannot read their logs here either. When the pod is gone, what was kept of a failed attempt's log is printed instead.

Following ends when the key does: a lost attempt is followed by the next one, and a stream that breaks is no end.
"""

from __future__ import annotations

import sys
import time

import typer

from sparkonce.cli import words
from sparkonce.cli.kubectl_gateway import Gateway, Reach, run_kubectl
from sparkonce.cli.kubectl_show import Told, failure_lines
from sparkonce.errors import InvalidInput
from sparkonce.launch.kubeflow import DRIVER_CONTAINER, driver_pod_name
from sparkonce.model.assignment import application_name
from sparkonce.model.record import Address

LOOKS = 2.0
"""Seconds between two looks at a key whose driver is still to come."""


def print_logs(gateway: Gateway, reach: Reach, key: str, *, follow: bool) -> None:
    """InvalidInput: nothing of its log can be had."""
    read: tuple[int, int] | None = None
    waiting = False
    while True:
        told = gateway.get(key)
        attempt = told["generation"], told["attempt"]
        if attempt != read:
            pod = driver_of(told, gateway.namespace)
            follows = ["-f"] if follow else []
            command = reach.kubectl("logs", *follows, "-n", gateway.namespace, pod, "-c", DRIVER_CONTAINER)
            sys.stdout.flush()
            code, why = run_kubectl(command)
            if code == 0:
                read, waiting = attempt, False
                if not follow:
                    return
                continue
            if _over(told) or not follow:
                _kept(told, why)
                return
            if not waiting:
                waiting = True
                typer.echo(f"{told['key']} is {told['phase']}: {why or 'its driver has no log yet'}", err=True)
        elif _over(told):
            typer.echo(f"{told['key']}, generation {told['generation']}: {told['phase']}", err=True)
            return
        time.sleep(LOOKS)


def driver_of(told: Told, namespace: str) -> str:
    """The name of the current attempt's driver pod."""
    address = Address(realm=namespace, key_hash=told["keyHash"])
    return driver_pod_name(application_name(address, told["generation"], told["attempt"]))


def _over(told: Told) -> bool:
    return bool(told["finalizedAt"] or told["held"])


def _kept(told: Told, why: str) -> None:
    lines = list(failure_lines(told["result"] or {}))
    if not lines:
        raise InvalidInput(
            f"{told['key']} is {told['phase']}, and its driver's log cannot be read: {words.sentence(why)}"
        )
    typer.echo(f"{told['key']}: the driver's pod is gone; this was kept of it", err=True)
    typer.echo("\n".join(lines))
