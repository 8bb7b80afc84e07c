"""The client of the operator's benchmark, a separate process: creates jobs as fast as it can, and watches until all have ended.

It uses aiohttp and prepared bytes, because the API server and this client share two cores with the measured processes: httpx takes 6 ms of
CPU for a create, aiohttp 0.4. The watch is opened before the first create, so that every stored status is seen and counted. It writes one
line of JSON when all jobs have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from harness.jobs import job
from harness.kube_api import path_of
from sparkonce.launch.kubernetes import JOBS

OUTSTANDING = 32
"""Number of concurrent creates: with more, the API server is no faster."""
ENDS = frozenset({"Succeeded", "Failed", "Cancelled"})


class Seen:
    """Events of the watch."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.phases: dict[str, list[str]] = {}
        self.writes: Counter[str] = Counter()
        """Number of stored versions of each object after its first."""
        self.ended: dict[str, float] = {}
        self.all = asyncio.Event()

    def event(self, kind: str, body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        if kind == "MODIFIED":
            self.writes[name] += 1
            phase = str(body.get("status", {}).get("phase"))
            self.phases.setdefault(name, []).append(phase)
            if phase in ENDS:
                self.ended.setdefault(name, time.monotonic())
        if len(self.ended) == self.jobs:
            self.all.set()


async def play(options: argparse.Namespace) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=options.ca)
    headers = {"Authorization": f"Bearer {options.token}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(ssl=context, limit=OUTSTANDING + 1)
    seen = Seen(options.jobs)
    path = path_of(JOBS, options.namespace)
    async with aiohttp.ClientSession(options.server, connector=connector, headers=headers) as session:
        async with session.get(path, params={"limit": "1"}) as listed:
            since = (await listed.json())["metadata"]["resourceVersion"]
        watching = asyncio.create_task(watch(session, path, since, seen))
        room = asyncio.Semaphore(OUTSTANDING)
        created: dict[str, float] = {}

        async def create(number: int) -> None:
            name = f"{options.prefix}-{number}"
            body = json.dumps(job(name, key=f"{options.prefix}/{number}")).encode()
            async with room, session.post(path, data=body) as answer:
                if answer.status != 201:
                    raise SystemExit(f"create of {name}: {answer.status} {await answer.text()}")
                created[name] = time.monotonic()

        began = time.monotonic()
        await asyncio.gather(*(create(number) for number in range(options.jobs)))
        made = time.monotonic()
        if options.only_create:
            watching.cancel()
            return {"jobs": options.jobs, "creating": made - began}
        ending = asyncio.create_task(seen.all.wait())
        await asyncio.wait([ending, watching], timeout=options.timeout, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching  # raises its exception
        if not seen.all.is_set():
            raise SystemExit(f"{len(seen.ended)} of {options.jobs} jobs ended within {options.timeout} s")
        watching.cancel()
    return {
        "jobs": options.jobs,
        "creating": made - began,
        "seconds": max(seen.ended.values()) - began,
        "latencies": sorted(seen.ended[name] - at for name, at in created.items()),
        "ends": Counter(phases[-1] for phases in seen.phases.values()),
        "statuses": Counter(" ".join(phases) for phases in seen.phases.values()),
        "writes": sum(seen.writes.values()),
    }


async def watch(session: aiohttp.ClientSession, path: str, since: str, seen: Seen) -> None:
    """Watches, and resumes at the last version whenever the API server ends the watch, as it does to slow readers."""
    while True:
        query = {"watch": "1", "resourceVersion": since, "timeoutSeconds": "3600"}
        rest = b""
        async with session.get(path, params=query, timeout=aiohttp.ClientTimeout(total=None)) as stream:
            async for chunk in stream.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    told = json.loads(line)
                    if told["type"] == "ERROR":
                        raise SystemExit(f"the watch of the jobs: {told['object']}")
                    seen.event(told["type"], told["object"])
                    since = told["object"]["metadata"]["resourceVersion"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Creates jobs and waits until they have ended.")
    for name in ("server", "ca", "token", "namespace", "prefix"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--only-create", action="store_true", help="do not wait until they have ended")
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(json.dumps(asyncio.run(play(options))))


if __name__ == "__main__":
    main()
