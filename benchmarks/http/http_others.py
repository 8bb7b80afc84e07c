"""What HTTP services use for idempotency, under the same faults: `python benchmarks/http/http_others.py` prints the table of docs/http.md.

The other packages are installed into an environment of their own, build/http-others. The service is the same for all, one process with a
store that outlives it; it is started again when it has died. A client sends each order again until it is answered with 2xx, ten times
at most.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "fastapi-idempotency[tortoise]==0.1.1",
    "asgi-idempotency-header==0.2.0",
    "fakeredis[lua]==2.41.0",
    "fastapi",
    "uvicorn",
)
ALL = ("none", "fastapi-idempotency", "asgi-idempotency-header", "sparkonce")
TRIES, PAUSE = 10, 0.7
REDIS = "from fakeredis import TcpFakeServer; TcpFakeServer(('127.0.0.1', {port}), server_type='redis').serve_forever()"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@dataclass
class Service:
    """One of the middlewares before the service, restarted when it has died."""

    which: str
    python: str
    folder: Path
    redis: int
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/orders"

    def start(self) -> None:
        self.port = free_port()
        environment = {
            **os.environ,
            "WHICH": self.which,
            "FOLDER": str(self.folder),
            "REDIS": f"redis://127.0.0.1:{self.redis}",
        }
        command = [
            self.python,
            "-m",
            "uvicorn",
            "http_service:app",
            "--port",
            str(self.port),
            "--log-level",
            "critical",
        ]
        self.process = subprocess.Popen(command, cwd=Path(__file__).parent, env=environment)
        for _ in range(300):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(self.url).status_code == 200:
                    return
            time.sleep(0.1)  # until it serves
        raise RuntimeError(f"{self.which} does not start")

    def alive(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.start()

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def effects(self) -> int:
        file = self.folder / "effects"
        return len(file.read_text().splitlines()) if file.exists() else 0


def send(
    service: Service, *, does: str = "", timeout: float = 30.0, body: str = "{}", caller: str = "me", key: str = "k1"
) -> int | str:
    """Status of one request, or `none`."""
    headers = {"Idempotency-Key": key, "X-Do": does, "Authorization": caller, "Content-Type": "application/json"}
    try:
        return httpx.post(service.url, headers=headers, content=body, timeout=timeout).status_code
    except httpx.TransportError:
        return "none"


def until_answered(service: Service, does: str, *, timeout: float = 30.0) -> str:
    """Sends the order until it is answered with 2xx: orders placed, and the last status."""
    status: int | str = "none"
    for at in range(TRIES):
        service.alive()
        status = send(service, does=does, timeout=timeout if at == 0 else 30.0)
        if isinstance(status, int) and status < 300:
            break
        time.sleep(PAUSE)  # as a client does
    return told(service.effects, status)


def told(effects: int, status: int | str) -> str:
    return f"{effects} order{'s' * (effects != 1)}, {status}"


def lost(service: Service) -> str:
    """The client gives up while the order is being placed, and sends it again."""
    return until_answered(service, "slow", timeout=0.5)


def died(service: Service) -> str:
    """The process dies after the order was placed and before it was answered."""
    return until_answered(service, "die")


def failed(service: Service) -> str:
    """The order was placed, and the answer is 500."""
    return until_answered(service, "500")


def together(service: Service) -> str:
    """64 clients at once, each until it has an answer."""
    service.alive()
    with ThreadPoolExecutor(64) as pool:
        last = list(pool.map(lambda _: until_answered(service, "slow"), range(64)))
    agreed = sum(each.endswith(("200", "201")) for each in last)
    return f"{service.effects} order{'s' * (service.effects != 1)}, {agreed} answered"


def reused(service: Service) -> str:
    """Another body under the same key."""
    service.alive()
    send(service)
    status = send(service, body='{"other": 1}')
    return f"{'refused' if status in (409, 422) else 'answered as the first'}, {status}"


def stranger(service: Service) -> str:
    """Another caller sends the same key: whose answer is it?"""
    service.alive()
    send(service, caller="me")
    headers = {"Idempotency-Key": "k1", "Authorization": "another", "Content-Type": "application/json"}
    answer = httpx.post(service.url, headers=headers, content="{}")
    return (
        "its own"
        if answer.status_code < 300 and answer.json().get("caller") == "another"
        else f"the first caller's ({answer.status_code})"
    )


SCENES: dict[str, Callable[[Service], str]] = {
    "the client gives up after 0.5 s of 2 s, and sends it again": lost,
    "the process dies after the effect": died,
    "the effect, then 500": failed,
    "64 clients at once": together,
    "another body under the key": reused,
    "another caller with the key": stranger,
}


def environment() -> str:
    """The Python with the other packages."""
    place = ROOT / "build" / "http-others"
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return str(python)


@contextlib.contextmanager
def redis(python: str) -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([python, "-c", REDIS.format(port=port)])
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def main() -> None:
    python = environment()
    print(f"| | {' | '.join(ALL)} |\n| --- |{' --- |' * len(ALL)}")
    for what, scene in SCENES.items():
        cells = []
        for which in ALL:
            with tempfile.TemporaryDirectory() as folder, redis(python) as port:
                service = Service(
                    which, sys.executable if which in ("none", "sparkonce") else python, Path(folder), port
                )
                try:
                    service.alive()
                    cells.append(scene(service))
                finally:
                    service.end()
        print(f"| {what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
