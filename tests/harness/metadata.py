"""Plays the metadata services of three clouds, which give a machine's credentials to each process on it."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Metadata:
    """A metadata service that counts its calls."""

    def __init__(self, address: str) -> None:
        self.address, self.calls = address, list[str]()

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that lead the clouds' clients to it, instead of 169.254.169.254."""
        url = f"http://{self.address}"
        return {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": url,
            "AWS_METADATA_ENDPOINT": url,
            "GCE_METADATA_HOST": self.address,
            "GCE_METADATA_ROOT": self.address,
            "GCE_METADATA_IP": self.address,
            "IDENTITY_ENDPOINT": f"{url}/msi",
            "MSI_ENDPOINT": f"{url}/msi",
            "AZURE_MSI_ENDPOINT": f"{url}/msi",
            "AZURE_POD_IDENTITY_AUTHORITY_HOST": url,
        }


@contextmanager
def metadata() -> Iterator[Metadata]:
    class Answers(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            played.calls.append(f"{self.command} {self.path}")
            body = b"role"
            if "security-credentials/role" in self.path:
                names = ("AccessKeyId", "SecretAccessKey", "Token")
                told = {"Code": "Success", "Expiration": "2099-01-01T00:00:00Z", "LastUpdated": "2020-01-01T00:00:00Z"}
                body = json.dumps(told | dict.fromkeys(names, "of-the-machine")).encode()
            elif "computeMetadata" in self.path or "msi" in self.path:
                body = json.dumps(
                    {"access_token": "of-the-machine", "expires_in": 3600, "token_type": "Bearer"}
                ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Metadata-Flavor", "Google")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = answer  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:  # type: ignore[override,unused-ignore]
            """Logs nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    played = Metadata(f"127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield played
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
