"""An HTTP service that knows nothing of keys and appends a line for each effect: a process of the tests.

    python counting_service.py PORT FILE

POST /orders appends its body and answers 201 with the line's number. In its query, `status=500` answers that after the effect, `break=1`
closes the connection after the effect, `silent=1` never answers, `slow=S` waits S seconds before the effect, and `size=N` answers with N
bytes. GET answers with the number of effects, or with `size=N` bytes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PORT, FILE = int(sys.argv[1]), Path(sys.argv[2])
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = self.asked()
        self.answer(200, b"x" * int(asked["size"]) if "size" in asked else str(_count()).encode())

    def do_POST(self) -> None:
        asked = self.asked()
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if "slow" in asked:
            time.sleep(float(asked["slow"]))  # other requests with the key arrive meanwhile
        with LOCK:
            descriptor = os.open(FILE, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, body.replace(b"\n", b" ") + b"\n")
            os.close(descriptor)
            number = _count()
        if "break" in asked:
            self.close_connection = True
            self.connection.close()
            return
        if "silent" in asked:
            time.sleep(3600)  # longer than any proxy waits: the test ends this process
        self.answer(
            int(asked.get("status", "201")), b"x" * int(asked["size"]) if "size" in asked else str(number).encode()
        )

    def asked(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "keep-alive, X-Private")
        self.send_header("X-Private", "of this connection")
        self.send_header("X-Seen-Host", self.headers.get("Host", ""))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _count() -> int:
    return len(FILE.read_bytes().splitlines()) if FILE.exists() else 0


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
