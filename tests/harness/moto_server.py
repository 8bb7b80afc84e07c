"""moto's S3 server as a program: `moto_server.py HOST:PORT [--ignore-if-none-match]`.

With the flag it overwrites objects that a client asked it only to create, as S3-compatible servers did before conditional writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


def main(address: str, *flags: str) -> None:
    """Serves until it is killed."""
    host, _, port = address.rpartition(":")
    known = DomainDispatcherApplication(create_backend_app)

    def forgetful(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        answer: Iterable[bytes] = known(environ, start_response)
        return answer

    run_simple(host, int(port), forgetful if "--ignore-if-none-match" in flags else known, threaded=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
