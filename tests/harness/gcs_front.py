"""A front for fake-gcs-server: `gcs_front.py HOST:PORT TARGET`.

obstore writes to Google Cloud Storage through its XML API (`PUT /bucket/object` with `x-goog-if-generation-match`); fake-gcs-server
supports uploads in the JSON API only. This front forwards each such PUT as an upload of the JSON API with `ifGenerationMatch`, and
everything else unchanged. It decides nothing: the server itself answers whether an object may be created.
"""

from __future__ import annotations

import http.client
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit

HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """Sends head and body together: the second of two small packets would wait for an acknowledgement of the first."""
    disable_nagle_algorithm = True
    target = ""

    def do_PUT(self) -> None:
        bucket, _, name = urlsplit(self.path).path.lstrip("/").partition("/")
        query = f"uploadType=media&name={quote(unquote(name), safe='')}"
        condition = self.headers.get("x-goog-if-generation-match")
        if condition is not None:
            query += f"&ifGenerationMatch={condition}"
        self._hand_on("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", upload=True)

    def do_GET(self) -> None:
        self._hand_on("GET", self.path)

    def do_HEAD(self) -> None:
        self._hand_on("HEAD", self.path)

    def do_DELETE(self) -> None:
        bucket, _, name = urlsplit(self.path).path.lstrip("/").partition("/")
        self._hand_on("DELETE", f"/storage/v1/b/{bucket}/o/{quote(unquote(name), safe='')}")

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def _hand_on(self, method: str, path: str, *, upload: bool = False) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP | {"host"}}
        server = http.client.HTTPConnection(self.target, timeout=30)
        try:
            server.request(method, path, body=body or (b"" if upload else None), headers=headers)
            answer = server.getresponse()
            data = answer.read()
        finally:
            server.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        if upload and answer.status == 200 and answer.getheader("ETag") is None:
            self.send_header("ETag", '"none"')  # obstore requires one; nothing here reads it
        self.send_header(
            "Content-Length",
            answer.getheader("Content-Length") or str(len(data)) if method == "HEAD" else str(len(data)),
        )
        self.end_headers()
        if method != "HEAD":
            self.wfile.write(data)


def main(address: str, target: str) -> None:
    """Serves until it is killed."""
    host, _, port = address.rpartition(":")
    Front.target = target
    ThreadingHTTPServer((host, int(port)), Front).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
