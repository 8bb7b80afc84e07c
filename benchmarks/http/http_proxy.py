"""Measures the CPU of `sparkonce proxy` for a request with a key, beside that of a forwarder that knows nothing of keys.

The proxy is a process with the ledger in memory, in front of a small service that is another process. The forwarder (http_forwarder.py)
passes the same requests, with keys, on to the same service. A client in this process sends them one after the other on a connection that
stays open: the dearest way, since nothing is shared between requests. CPU is user and system time of the one process, by its own clock in
the kernel.

The service counts its runs: one for each new key, one for each request through the forwarder, none for a replay.
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from measure import Cost, Goal, Row, WrongEffect, measured, pair_text

from harness.child import Child, free_port
from harness.reply_proxy import STARTS, serves
from http_requests import ANSWER, BODY, PATH

REQUESTS = 300
"""Of each variant in a pair: half a second of CPU."""
NEW, REPLAY, FORWARDED = "new key", "replay", "forwarder"
CHEAP = Goal(1.5, "<= 1.5 CPU ms", absolute=True)


@dataclass
class MeasuredServer:
    """A server's process and a connection to it."""

    child: Child
    connection: http.client.HTTPConnection

    def post(self, key: str) -> bool:
        """Whether the answer is a replay. Raises: WrongEffect."""
        headers = {"Content-Type": "application/json", "Authorization": "Bearer token", "Idempotency-Key": key}
        self.connection.request("POST", PATH, body=BODY, headers=headers)
        response = self.connection.getresponse()
        body = response.read()
        if response.status != 201 or body != ANSWER:
            raise WrongEffect(f"{self.child.name} answered {response.status}: {body[:200].decode(errors='replace')}")
        return response.getheader("Idempotency-Replayed") == "true"

    def runs(self) -> int:
        """Of the service."""
        self.connection.close()
        self.connection.request("GET", PATH)
        return int(self.connection.getresponse().read())

    @property
    def cpu(self) -> float:
        """Seconds since it started."""
        return time.clock_gettime((~self.child.pid << 3) | 2)  # clock_getcpuclockid(3)


@dataclass
class HttpProxy:
    """The part `http-proxy`; `say` gets a line per pair."""

    scratch: Path
    pairs: int
    say: Callable[[str], None]
    keys: list[str] = field(default_factory=list)
    """Keys that the proxy has answered."""

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a request was not answered as it should be, or ran more or less than once."""
        self.say(f"http-proxy: {self.pairs} pairs of {REQUESTS} requests and one to warm up")
        with (
            self._served("service", [_program(), "service"]) as service,
            self._served("forwarder", [_program(), "forwarder"], _url(service)) as forwarder,
            self._served("proxy", ["-m", "sparkonce", "proxy"], _url(service)) as proxy,
        ):
            before = service.runs()
            variants = {
                NEW: lambda: self._timed(proxy, [uuid4().hex for _ in range(REQUESTS)]),
                FORWARDED: lambda: self._timed(forwarder, [uuid4().hex for _ in range(REQUESTS)]),
                REPLAY: lambda: self._timed(proxy, self.keys[-REQUESTS:], replayed=True),
            }
            self._timed(proxy, [uuid4().hex for _ in range(REQUESTS)])  # for the first replays
            found = measured(variants, self.pairs, self._told)
            forwarded = (self.pairs + 1) * REQUESTS
            if (runs := service.runs() - before) != len(self.keys) + forwarded:
                raise WrongEffect(f"of {len(self.keys)} keys and {forwarded} requests without a ledger, {runs} ran")
        rows = []
        for name in (NEW, REPLAY):
            cpu, raw = ([cost.cpu for cost in found[each]] for each in (name, FORWARDED))
            rows.append(Row(what=f"http-proxy: {name}", unit="CPU ms", ours=cpu, raw=raw, goal=CHEAP))
        return rows

    @contextmanager
    def _served(self, name: str, program: list[str], upstream: str = "") -> Iterator[MeasuredServer]:
        port = free_port()
        command = [sys.executable, *program]
        if name == "proxy":
            command += ["--listen", f"127.0.0.1:{port}", "--upstream", upstream, "--store", "memory:"]
        else:
            command += [str(port), *([upstream] if upstream else [])]
        path = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "operator")]
        child = Child(name, command, self.scratch / f"{name}.log", {"PYTHONPATH": ":".join(path)})
        child.start()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            child.until(lambda: serves(f"http://127.0.0.1:{port}{PATH}"), STARTS)
            yield MeasuredServer(child, connection)
        finally:
            connection.close()
            child.kill()

    def _timed(self, server: MeasuredServer, keys: list[str], *, replayed: bool = False) -> Cost:
        server.connection.close()  # the server may have closed it meanwhile; the first request opens it again
        wall, cpu = time.perf_counter(), server.cpu
        replays = sum([server.post(key) for key in keys])
        cost = Cost(1000 * (time.perf_counter() - wall) / len(keys), 1000 * (server.cpu - cpu) / len(keys))
        if replays != (len(keys) if replayed else 0):
            raise WrongEffect(f"of {len(keys)} requests to the {server.child.name}, {replays} were replayed")
        if server.child.name == "proxy" and not replayed:
            self.keys += keys
        return cost

    def _told(self, pair: int, found: dict[str, Cost]) -> None:
        which = pair_text(pair, self.pairs)
        what = ", ".join(f"{name} {cost.cpu:.2f} CPU ms of {cost.wall:.2f} ms" for name, cost in found.items())
        self.say(f"http-proxy: {which}: {what}")

    def dump(self) -> dict[str, Any]:
        return {"requestsPerPair": REQUESTS}


def _program() -> str:
    return str(Path(__file__).with_name("http_forwarder.py"))


def _url(server: MeasuredServer) -> str:
    return f"http://127.0.0.1:{server.connection.port}"
