"""Reads files with the real kubectl: `kubectl create --dry-run=client -o json`, many files in one process.

In a client-side dry run kubectl only asks an API server which kinds exist. A server of four answers reports IdempotentJob, so no etcd and
no API server are started, and a thousand files take about a second.

kubectl accepts a file when it prints its object; the object is found by its name, which is the file's.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparkonce.model.spec import API_VERSION, KIND

TIMEOUT = 300.0
"""Seconds of one kubectl with thousands of files; it needs a few."""
_GROUP, _VERSION = API_VERSION.split("/")
_NAMED = {"groupVersion": API_VERSION, "version": _VERSION}
_ANSWERS: Mapping[str, Any] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.4"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": _GROUP, "versions": [_NAMED], "preferredVersion": _NAMED}],
    },
    f"/apis/{API_VERSION}": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": API_VERSION,
        "resources": [
            {
                "name": "idempotentjobs",
                "singularName": KIND.lower(),
                "namespaced": True,
                "kind": KIND,
                "verbs": ["create", "get"],
            }
        ],
    },
}


class _Discovery(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = _ANSWERS.get(self.path.partition("?")[0])
        body = json.dumps(answer or {"kind": "Status", "status": "Failure", "code": 404}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Writes nothing: pytest shows what a server prints."""


@contextmanager
def _discovery() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Discovery) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def read_by_kubectl(kubectl: Sequence[str], files: Mapping[str, bytes]) -> dict[str, Any]:
    """What kubectl reads in each file, by name; a file that it refuses is missing.

    files: content by a name that is also the object's metadata.name. A name that kubectl prints twice is a file of two objects of one
    name: such a file maps to a list."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-kubectl-") as folder, _discovery() as url:
        for name, content in files.items():
            (Path(folder) / f"{name}.yaml").write_bytes(content)
        command = [*kubectl, "create", "--dry-run=client", "--validate=false", "-o", "json", "-f", folder]
        done = subprocess.run(
            [*command, f"--server={url}", f"--cache-dir={folder}/cache", "--request-timeout=30s"],
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
            env={**os.environ, "KUBECONFIG": os.devnull, "HOME": folder},
        )
    found: dict[str, Any] = {}
    for each in _objects(done.stdout.decode()):
        name = each["metadata"]["name"]
        if each["metadata"].get("namespace") == "default":  # kubectl adds it
            del each["metadata"]["namespace"]
        found[name] = [found[name], each] if name in found else each
    said = done.stderr.decode(errors="replace")
    assert found or "d0.yaml" in said or not files, said
    refused = set(re.findall(r"/([\w-]+)\.yaml", said))
    return {name: each for name, each in found.items() if name not in refused}


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that kubectl printed one after the other, or as one List."""
    decoder, at = json.JSONDecoder(), 0
    while (at := at + len(text[at:]) - len(text[at:].lstrip())) < len(text):
        value, at = decoder.raw_decode(text, at)
        yield from value["items"] if value.get("kind") == "List" else [value]
