"""The fake as a separate process: `python -m harness.kubeflow --server … --ca … --token … --namespace … [--script JSON] [--least]`.

For benchmarks, where the stand-in for Spark must not share an interpreter with the measured process. It prints `ready` and runs until it is
killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from harness.kubeflow.fake import Kubeflow
from harness.kubeflow.script import Script, Scripts
from harness.kubeflow.wire import Wire


async def play(options: argparse.Namespace) -> None:
    async with Wire(options.server, ca=Path(options.ca), token=options.token) as wire:
        scripts = Scripts(Script.of(json.loads(options.script)))
        kubeflow = Kubeflow(wire, namespace=options.namespace, scripts=scripts, least=options.least)
        ready = asyncio.Event()
        playing = asyncio.create_task(kubeflow.run(ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([playing, waiting], return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set():
            print("ready", flush=True)
        await playing


def main() -> None:
    parser = argparse.ArgumentParser(description="a fake Spark operator and node")
    for name in ("server", "ca", "token", "namespace"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--script", default="{}")
    parser.add_argument("--least", action="store_true")
    asyncio.run(play(parser.parse_args()))


if __name__ == "__main__":
    main()
