"""Reading the end of a log over HTTP: the request, and the interpretation of each answer. A server on loopback acts as the API server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sparkonce.kube.client import LOG_BYTES, ApiClient
from sparkonce.kube.login import KubeLogin
from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable

MISSING = {"kind": "Status", "status": "Failure", "reason": "NotFound", "details": {"kind": "pods", "name": "p"}}
NO_HOST = {
    "kind": "Status",
    "status": "Failure",
    "reason": "BadRequest",
    "message": "pod p does not have a host assigned",
}


@contextmanager
def answering(status: int, content: bytes) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Writes no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def tail(folder: Path, status: int, content: bytes) -> tuple[str, list[str], list[tuple[str, str, str]]]:
    counted: list[tuple[str, str, str]] = []
    with answering(status, content) as (url, asked):
        path = folder / "kubeconfig"
        context = {"cluster": "c", "user": "u"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": context}],
        }
        path.write_text(json.dumps(document))

        async def scene() -> str:
            client = ApiClient(KubeLogin(path), on_call=lambda *told: counted.append(told))
            try:
                return await client.log_tail("ns", "p", "c")
            finally:
                await client.close()

        return asyncio.run(scene()), asked, counted


ASKED = "/api/v1/namespaces/ns/pods/p/log?container=c&tailLines={}&limitBytes=1048576"


def test_lines_and_bytes_are_bounded_in_the_question(tmp_path: Path) -> None:
    """The request asks for the last lines of one container, up to a limit in bytes; invalid text is replaced."""
    text, asked, counted = tail(tmp_path, 200, b"\xff begins\n")
    assert (text, asked) == ("\ufffd begins\n", [ASKED.format(2000)])
    assert counted == [("log", "Pod", "ok")]


def test_a_log_that_does_not_fit_is_asked_for_again_with_fewer_lines(tmp_path: Path) -> None:
    """The API server sends the beginning of the requested part, so an answer as long as its limit may lack the log's end: the request is
    repeated with fewer lines. What a server sends beyond the limit is cut."""
    text, asked, counted = tail(tmp_path, 200, b"\xff begins\n" + b"x" * LOG_BYTES)
    assert asked == [ASKED.format(2000), ASKED.format(200)]
    assert text.startswith("\ufffd begins\n")
    assert len(text) == LOG_BYTES
    assert counted == [("log", "Pod", "ok")] * 2


def test_a_pod_that_is_gone_has_no_log(tmp_path: Path) -> None:
    """A 404 that names this pod is an empty log."""
    text, _, counted = tail(tmp_path, 404, json.dumps(MISSING).encode())
    assert (text, counted) == ("", [("log", "Pod", "absent")])


@pytest.mark.parametrize(
    ("status", "content", "error"),
    [
        (403, b"{}", ApiRefused),
        (400, json.dumps(NO_HOST).encode(), ApiRefused),
        (500, b"broken", ApiUnavailable),
    ],
)
def test_what_is_no_log_is_an_error(tmp_path: Path, status: int, content: bytes, error: type[Exception]) -> None:
    """Missing permission, a missing node or a kubelet that does not answer raises the same typed errors as any other call, and is never
    taken for a log."""
    with pytest.raises(error):
        tail(tmp_path, status, content)
