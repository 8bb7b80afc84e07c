"""Object stores on loopback, each with one empty bucket called `lake`, started by the tests and not assumed to exist.

Each is a process that dies with the test run. It is found only through the environment that a user would set: `environment` is what a test,
and each process that it starts, must have. A test reaches the server through a proxy by `at(address)`.

`gcs` is fake-gcs-server behind `gcs_front`, because it does not support the part of Google's API that obstore writes with.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from harness.child import Child, free_port
from harness.store_parts import FAKE_GCS, VERSITYGW, azurite, program

BUCKET = "lake"
ACCESS, SECRET = "harness", "harness-secret"
S3_KEYS = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's well-known credentials, from its documentation."""
START = 30.0
"""Seconds until a server answers; Node.js takes a few on a busy machine."""

_NOT_OURS = (
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
)
"""Settings of the user who runs the tests, which would lead to another server."""


@dataclass(frozen=True, kw_only=True)
class StoreServer:
    name: str
    scheme: str
    address: str
    """host:port."""
    endpoint: str
    """Name of the variable with the server's address."""
    suffix: str = ""
    """Suffix of the endpoint's URL."""
    credentials: Mapping[str, str] = field(default_factory=dict)
    child: Child | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {**self.credentials, self.endpoint: f"http://{self.address}{self.suffix}"}

    def url(self, table: str) -> str:
        return f"{self.scheme}://{BUCKET}/{table}"

    def at(self, address: str) -> StoreServer:
        """The same server at another address."""
        return replace(self, address=address)

    def use(self, patch: pytest.MonkeyPatch) -> None:
        """Makes it the store of this process and of those that it starts."""
        for name in _NOT_OURS:
            patch.delenv(name, raising=False)
        for name, value in self.environment.items():
            patch.setenv(name, value)


def s3_environment(address: str) -> dict[str, str]:
    """Environment for the S3-compatible server at this address, started or not."""
    return {**S3_KEYS, "AWS_ENDPOINT_URL_S3": f"http://{address}"}


@contextmanager
def versitygw(folder: Path, address: str = "") -> Iterator[StoreServer]:
    """An S3-compatible server over a folder, on which S3's create-if-absent is tested. On loopback if no address is given."""
    address = address or f"127.0.0.1:{free_port()}"
    data = folder / "versitygw"
    data.mkdir()
    command = [str(program(VERSITYGW)), "--port", address, "--access", ACCESS, "--secret", SECRET, "posix", str(data)]
    with _running("versitygw", command, folder) as child:
        server = StoreServer(
            name="versitygw",
            scheme="s3",
            address=address,
            endpoint="AWS_ENDPOINT_URL_S3",
            credentials=S3_KEYS,
            child=child,
        )
        _until_there(lambda: make_s3_bucket(server), child)
        yield server


@contextmanager
def moto(folder: Path, *, ignores_preconditions: bool = False) -> Iterator[StoreServer]:
    """moto's S3, which can ignore conditions as servers did in earlier years."""
    address = f"127.0.0.1:{free_port()}"
    flags = ["--ignore-if-none-match"] if ignores_preconditions else []
    command = [sys.executable, str(Path(__file__).with_name("moto_server.py")), address, *flags]
    with _running("moto", command, folder) as child:
        server = StoreServer(
            name="moto",
            scheme="s3",
            address=address,
            endpoint="AWS_ENDPOINT_URL_S3",
            credentials=S3_KEYS,
            child=child,
        )
        _until_there(lambda: make_s3_bucket(server), child)
        yield server


@contextmanager
def azure(folder: Path) -> Iterator[StoreServer]:
    """Azurite, with its blobs in memory."""
    port = free_port()
    flags = ["--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    command = [*azurite(), *flags, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with _running("azurite", command, folder) as child:
        server = StoreServer(
            name="azurite",
            scheme="az",
            address=f"127.0.0.1:{port}",
            endpoint="AZURE_STORAGE_ENDPOINT",
            suffix=f"/{ACCOUNT}",
            credentials={"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY},
            child=child,
        )
        _until_there(lambda: _make_container(server), child)
        yield server


@contextmanager
def gcs(folder: Path) -> Iterator[StoreServer]:
    """fake-gcs-server behind our front, with its objects in memory."""
    behind, address = free_port(), f"127.0.0.1:{free_port()}"
    flags = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(behind), "-log-level", "error"]
    command = [str(program(FAKE_GCS)), *flags, "-public-host", f"127.0.0.1:{behind}"]
    front = [sys.executable, str(Path(__file__).with_name("gcs_front.py")), address, f"127.0.0.1:{behind}"]
    with _running("fake-gcs-server", command, folder) as child, _running("gcs-front", front, folder) as fronting:
        server = StoreServer(name="gcs", scheme="gs", address=address, endpoint="STORAGE_EMULATOR_HOST", child=fronting)
        body = f'{{"name": "{BUCKET}"}}'.encode()
        _until_there(lambda: _post(f"http://127.0.0.1:{behind}/storage/v1/b?project=p", body), child)
        _until_there(lambda: _get(f"http://{address}/storage/v1/b/{BUCKET}"), fronting)
        yield server


STORES: dict[str, Callable[[Path], AbstractContextManager[StoreServer]]] = {
    "versitygw": versitygw,
    "azurite": azure,
    "gcs": gcs,
}


@contextmanager
def _running(name: str, command: Sequence[str], folder: Path) -> Iterator[Child]:
    folder.mkdir(exist_ok=True)
    child = Child(name, command, folder / f"{name}.log")
    child.start()
    try:
        yield child
    finally:
        child.kill()


def _until_there(ask: Callable[[], None], child: Child) -> None:
    def answered() -> bool:
        try:
            ask()
        except OSError as error:
            raise AssertionError(str(error)) from None
        return True

    child.until(answered, START, interval=0.1)


def make_s3_bucket(server: StoreServer, bucket: str = BUCKET) -> None:
    """Creates the bucket. Raises OSError while the server does not answer."""
    import boto3  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    client = boto3.client(
        "s3",
        endpoint_url=f"http://{server.address}",
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(connect_timeout=2, read_timeout=5, retries={"max_attempts": 0}),
    )
    try:
        client.create_bucket(Bucket=bucket)
    except ClientError as error:
        if not error.response["Error"]["Code"].startswith("BucketAlready"):
            raise OSError(str(error)) from None
    except BotoCoreError as error:
        raise OSError(str(error)) from None


def _make_container(server: StoreServer) -> None:
    """Creates the container with one signed request, since Azure's client is not among our dependencies."""
    now = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    version = "2021-08-06"
    signed = (
        f"PUT{chr(10) * 12}x-ms-date:{now}\nx-ms-version:{version}\n/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": now,
        "x-ms-version": version,
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
    }
    address = f"http://{server.address}/{ACCOUNT}/{BUCKET}?restype=container"
    _send(urllib.request.Request(address, method="PUT", headers=headers))


def _post(address: str, body: bytes) -> None:
    _send(urllib.request.Request(address, data=body, method="POST", headers={"Content-Type": "application/json"}))


def _get(address: str) -> None:
    _send(urllib.request.Request(address))


def _send(request: urllib.request.Request) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        direct.open(request, timeout=5).close()
    except urllib.error.HTTPError as answer:
        if answer.code != 409:  # it exists already: the first answer came late
            raise OSError(f"{answer.code} {answer.read()[:300]!r}") from None


def no_proxy(patch: pytest.MonkeyPatch) -> None:
    """Reaches loopback directly, whatever proxy the machine has."""
    for name in ("NO_PROXY", "no_proxy"):
        patch.setenv(name, ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"])))
