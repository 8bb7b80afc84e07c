"""Address of the API server and our credentials: from a kubeconfig file, or from the pod's own service account.

One `KubeLogin` serves the client and the kopf trigger, so that they can never be two different users. `kubernetes.aio` reads the files
and runs credential programs; this module reads them again: bound service-account tokens live for an hour, a kubeconfig is edited, a
certificate is renewed. So each connection asks `access()`, which reads again once a minute and after `refused()`. If reading fails, the
previous credentials stay: the API server rejects them once they are no longer valid.

It does not merge several files of KUBECONFIG, does not write refreshed tokens back into a kubeconfig (two replicas would write one
file), and refuses `tls-server-name`, which kopf could not follow.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes.aio.client as kubernetes_client
import kubernetes.aio.config as kubernetes_config
from kubernetes.aio.client.rest import RESTClientObject

from sparkonce.errors import SparkonceError

_CONFIG: Any = kubernetes_config  # it has no annotations
LOOK_AGAIN = 60.0
"""Seconds between readings; the kubelet renews a token when a fifth of its lifetime is left, so a minute is early enough."""
NOT_SOONER = 1.0
"""Seconds between readings after refusals: a credential program may cost a second of CPU."""
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


class NoLogin(SparkonceError):
    """There is no usable kubeconfig and no service account; no request was sent."""


@dataclass(frozen=True)
class Access:
    """One reading of the credentials; equal ones open equivalent connections."""

    server: str
    authorization: str | None
    proxy: str | None
    tls: ssl.SSLContext | None

    def headers(self) -> dict[str, str]:
        return {} if self.authorization is None else {"Authorization": self.authorization}


class KubeLogin:
    """Reads the login. kubeconfig: None for the pod's service account if there is one, or else the file that kubectl would read."""

    def __init__(
        self,
        kubeconfig: Path | None = None,
        *,
        context: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """context: of the kubeconfig; its current one by default."""
        self._given, self._context_name, self._clock = kubeconfig, context, clock
        self._access: Access | None = None
        self._looked = 0.0
        self._refused = False
        self._loader: Any = None  # caches a credential program's answer until it expires
        self._changed: int | None = None  # modification time of the kubeconfig, in ns
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._certificate: tuple[Path, Path] | None = None
        self._one = threading.Lock()

    async def access(self) -> Access:
        """The credentials, read again once a minute and after `refused()`.

        Raises:
            NoLogin: they could never be read.
        """
        patience = NOT_SOONER if self._refused else LOOK_AGAIN
        if self._access is not None and self._clock() - self._looked < patience:
            return self._access
        self._looked, self._refused = self._clock(), False
        try:
            self._access = await self._read()
        except NoLogin:
            if self._access is None:
                raise
        return self._access

    async def namespace(self) -> str:
        """The namespace of the context, or `default`.

        Raises:
            NoLogin: the credentials could never be read.
        """
        await self.access()
        context = self._loader.current_context if self._loader is not None else {}
        return str(context.get("context", {}).get("namespace") or "default")

    async def certificate(self) -> tuple[Path, Path] | None:
        """The user's client certificate and its key, PEM files that last as long as this process; None without them.

        Raises:
            NoLogin: the credentials could never be read.
        """
        await self.access()
        return self._certificate

    def refused(self) -> None:
        """Reports a 401: the next connection reads the credentials again."""
        self._refused = True

    async def _read(self) -> Access:
        configuration = kubernetes_client.Configuration()
        path = self._file()
        try:
            if path is None:
                _CONFIG.load_incluster_config(client_configuration=configuration)
            else:
                await self._load(path, configuration)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the library raises arbitrary errors for a malformed file
            place = "the pod's service account" if path is None else str(path)
            raise NoLogin(f"cannot read the login to Kubernetes from {place}: {error}") from error
        return self._digested(configuration)

    def _file(self) -> Path | None:
        if self._given is None and os.environ.get(IN_CLUSTER):
            return None
        path = self._given or Path(os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
        if not path.is_file():
            raise NoLogin(
                f"there is no kubeconfig at {path}; name one with --kubeconfig, or run in a pod with a service account"
            )
        return path

    async def _load(self, path: Path, configuration: Any) -> None:
        changed = path.stat().st_mtime_ns
        if self._loader is None or changed != self._changed:
            self._loader = await _CONFIG.load_kube_config(
                config_file=str(path),
                context=self._context_name,
                client_configuration=configuration,
                persist_config=False,
            )
            self._changed = changed
        else:
            await self._loader.load_and_set(configuration)

    def _digested(self, configuration: Any) -> Access:
        if configuration.tls_server_name:
            raise NoLogin("tls-server-name in the kubeconfig is not supported: name the server as its certificate does")
        authorization = configuration.api_key.get("BearerToken")
        secure = configuration.host.startswith("https")
        files = configuration.cert_file, configuration.key_file
        self._certificate = (Path(files[0]), Path(files[1])) if all(files) else None
        return Access(
            server=configuration.host.rstrip("/"),
            authorization=authorization.strip() if authorization else None,
            proxy=configuration.proxy,
            tls=self._context(configuration) if secure else None,
        )

    def _context(self, configuration: Any) -> ssl.SSLContext:
        """The TLS context, the same object while the files are unchanged, so that connections are kept. The trigger calls this from its own
        thread, and two objects for one file would each look like new credentials to the other."""
        digest = hashlib.sha256(repr((configuration.verify_ssl, configuration.ca_cert_data)).encode())
        for name in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file):
            digest.update(b"|" + (Path(name).read_bytes() if name else b""))
        key = digest.hexdigest()
        with self._one:
            if key not in self._contexts:
                self._contexts = {key: RESTClientObject(configuration).ssl_context}
            return self._contexts[key]
