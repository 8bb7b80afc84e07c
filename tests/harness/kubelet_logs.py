"""A kubelet's port for logs, which the API server finds through the node of the fake's pods: every driver has the same log."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from harness.apiserver import Cluster
from harness.kubeflow.states import NODE
from sparkonce.launch.kubernetes import Resource

NODES = Resource("", "v1", "nodes", "Node", namespaced=False)


class Logs:
    """The log that the kubelet serves for every driver, and the requests to it."""

    def __init__(self) -> None:
        self.text, self.asked = "", list[str]()


@contextmanager
def served_logs(cluster: Cluster) -> Iterator[Logs]:
    served = Logs()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            asked = parse_qs(urlsplit(self.path).query)
            lines = served.text.splitlines(keepends=True)
            content = "".join(lines[-int(asked["tailLines"][0]) :] if "tailLines" in asked else lines).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cluster.certificates.crt, cluster.certificates.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        cluster.api.create(NODES, {"metadata": {"name": NODE}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_address[1]}},
        }
        cluster.api.patch(NODES, f"{NODE}/status", {"status": status})
        try:
            yield served
        finally:
            cluster.api.delete(NODES, NODE)
            server.shutdown()
            thread.join()
