"""`make cluster-demo`: a cluster, the chart, and the flights pipeline of examples/kubernetes with its tables; removed completely
afterwards.

It follows the steps of that README with the same files. Months are loaded three at a time, because each uses a driver and an executor.

MONTHS=12 loads the whole year (default: 3), STORE=s3 keeps everything in a bucket of an S3-compatible server instead of on a shared volume,
KEEP=1 keeps the cluster running until Ctrl-C or SIGTERM, also in the background of a shell.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table as Shown

from harness.binaries import PartMissing, find
from harness.node import packages
from harness.node.cluster import RealCluster, started_cluster
from harness.node.flights import SCRIPTS, Flights, JobEnded
from harness.node.images import archives
from harness.node.network import NetworkRefused
from harness.node.release import NAME, NAMESPACE, STORE, Release
from harness.signals import exit_code, interruptible
from harness.store_parts import HELM, installed
from harness.store_servers import StoreServer, versitygw

RAW = SCRIPTS / "data" / "raw"
TOGETHER = 3
_BEGAN = time.monotonic()


class Unusable(Exception):
    """An environment variable has an invalid value."""


def months() -> list[str]:
    text = os.environ.get("MONTHS", "3")
    if not text.isdigit() or not 1 <= int(text) <= 12:
        raise Unusable(f"MONTHS is {text!r}; give how many months to load, 1 to 12")
    return [f"{month:02}" for month in range(1, int(text) + 1)]


def store_kind() -> str:
    kind = os.environ.get("STORE", "volume")
    if kind not in ("volume", "s3"):
        raise Unusable(f"STORE is {kind!r}; give volume or s3")
    return kind


def tell(text: str) -> None:
    print(f"[{time.monotonic() - _BEGAN:4.0f} s] {text}", flush=True)


def show_jobs(flights: Flights) -> None:
    print(f"\n$ kubectl get ij -n {flights.namespace}\n{flights.kubectl('get', 'ij')}", flush=True)


def pipeline(flights: Flights, wanted: list[str]) -> None:
    """Runs the pipeline. Raises JobEnded, AssertionError."""
    for at in range(0, len(wanted), TOGETHER):
        sent = [flights.send("load-month.yaml", month=month) for month in wanted[at : at + TOGETHER]]
        tell(f"sent {', '.join(sent)}")
        for name in sent:
            status = flights.until(name, "Succeeded")
            tell(f"{name}: {status['result']['outputs'][0]['rows']:,} rows, attempt {status['attempt']}")
        show_jobs(flights)
    derived = flights.send("delays.yaml", months=str(len(wanted)))
    tell(f"sent {derived}: both of its tables or neither")
    flights.until(derived, "Succeeded")
    began = time.monotonic()
    again = flights.send("load-month.yaml", name="load-january-again", month=wanted[0])
    status = flights.until(again, "Succeeded")
    tell(f"{again}: the same key again, role {status['role']} after {time.monotonic() - began:.1f} s, and no pod ran")
    show_jobs(flights)


def show_tables(flights: Flights) -> None:
    rows = flights.table("flights").num_rows
    shown = Shown(title=f"carriers, of {rows:,} flights")
    for header in ("airline", "flights", "cancelled", "late", "mean delay at arrival (min)"):
        shown.add_column(header, justify="left" if header == "airline" else "right")
    for row in sorted(flights.table("carriers").to_pylist(), key=lambda each: -int(each["flights"])):
        numbers = (f"{row[name]:,}" for name in ("flights", "cancelled", "late"))
        shown.add_row(row["airline"], *numbers, f"{row['mean_arr_delay'] or 0:.1f}")
    Console().print(shown)


def run(cluster: RealCluster, server: StoreServer | None, wanted: list[str]) -> None:
    tell("installing the chart: an etcd, two operators, two gateways")
    release = Release(cluster)
    release.install()
    release.until_ready()
    flights = Flights(cluster, "flights", server)
    tell(f"preparing the namespace flights, its tables {'in a bucket' if server else 'on a shared volume'}")
    flights.set_up(RAW)
    pipeline(flights, wanted)
    show_tables(flights)
    keeps = bool(os.environ.get("KEEP"))
    if keeps:
        programs = cluster.folder / "bin"
        provide(programs)
        print(f"\nexport KUBECONFIG={cluster.kubeconfig} PATH={programs}:{Path(sys.executable).parent}:$PATH")
    print("\n".join(["", *next_steps(flights.namespace, keeps=keeps)]), flush=True)
    if keeps:
        stay()


def provide(folder: Path) -> None:
    """Puts kubectl and helm into the folder, under their names: `kubectl sparkonce` looks for kubectl on PATH."""
    folder.mkdir(exist_ok=True)
    for name, command in (("kubectl", find("kubectl")), ("helm", [str(installed(HELM))])):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)


def next_steps(namespace: str, *, keeps: bool) -> list[str]:
    """What to do after the demo: at its cluster, or at one's own."""
    if not keeps:
        return [
            "Next: `KEEP=1 make cluster-demo` keeps the cluster and prints commands for it. On your own cluster:",
            "helm install sparkonce charts/sparkonce --namespace sparkonce --create-namespace --set etcd.bundled.enabled=true",
            f"kubectl sparkonce list -n {namespace} --gateway-namespace sparkonce",
            "Images: docs/helm.md. These jobs: examples/kubernetes/README.md. Rights of kubectl sparkonce: docs/kubernetes-cli.md.",
        ]
    account, gateway = "sparkonce-user", f"-n {namespace} --gateway-namespace {NAMESPACE}"
    return [
        "Next, in a shell with that line:",
        f"kubectl get ij -n {namespace}",
        f"helm status {NAME} --namespace {NAMESPACE}",
        f"kubectl create serviceaccount {account} -n {namespace}",
        f"kubectl create rolebinding {account} -n {namespace} --clusterrole {NAMESPACE}-{NAME}-edit --serviceaccount {namespace}:{account}",
        f"kubectl sparkonce list {gateway}",
        f"kubectl sparkonce explain load-flights/flights/2013-01@1 {gateway}",
    ]


def stay() -> None:
    """Returns at the first SIGINT or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt):
        print(f"\nThe cluster stays until Ctrl-C, or `kill {os.getpid()}`.", flush=True)
        signal.pause()


def main() -> int:
    with interruptible(tell):
        return demo()


def demo() -> int:
    try:
        wanted, kind = months(), store_kind()
        packages.needed()
        subprocess.run([sys.executable, str(SCRIPTS / "prepare.py")], check=True)
        tell("making sure of the images (minutes the first time)")
        archives()
        tell("starting Kubernetes")
        with contextlib.ExitStack() as everything:
            cluster = everything.enter_context(started_cluster(archives))
            server = None
            if kind == "s3":
                folder = Path(everything.enter_context(tempfile.TemporaryDirectory()))
                server = everything.enter_context(versitygw(folder, STORE))
            tell(f"a node is ready: KUBECONFIG={cluster.kubeconfig}")
            run(cluster, server, wanted)
            tell("taking everything down")
    except (PartMissing, NetworkRefused, Unusable, JobEnded, AssertionError, RuntimeError) as problem:
        print(f"cluster-demo: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        return exit_code(interrupt)
    tell("done, and nothing is left of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
