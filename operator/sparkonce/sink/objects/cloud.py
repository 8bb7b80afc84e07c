"""Opens tables on object stores by URL: S3 and compatible stores, Google Cloud Storage, Azure Blob Storage.

A URL is a location and nothing else. Credentials, endpoint and region come from where the stores' own tools look for them (`AWS_*`,
`GOOGLE_*`, `AZURE_*`, profiles, the identity of the machine unless `ambient` forbids it), so no job, record or message contains a secret.
A URL with a user or a query is refused for the same reason. The path is not percent-decoded, because Hadoop's file systems do not decode
it either, and both must mean the same table.

`s3://` and `s3a://` are equivalent, and so are `az://` and `abfs(s)://`. Spark gets the URL that Hadoop's connectors read.

Timeouts are short: a store that does not answer is `OutputUnavailable` after seconds. Callers retry in their own way (a driver its attempt,
an operator with backoff); obstore's default of three minutes would outlast the lease of the waiting process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError, NotSupportedError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from sparkonce import settings
from sparkonce.errors import InvalidInput, OutputUnavailable, OutputUnsupported
from sparkonce.sink.objects import ambient
from sparkonce.sink.objects.protocol import StoreObjects, no_container

if TYPE_CHECKING:
    from obstore.store import ClientConfig, GCSCredential, RetryConfig

SILENCE_SECONDS = 10
"""A request without a byte of response for this long is abandoned."""
REQUEST_SECONDS = 120
"""One whole request: reading the list of a million files takes longer than reading a slot."""
CONNECT_SECONDS = 4
RETRY_SECONDS = 8
"""Total time for retries of a request, counted from its first failure; later retries are up to the caller."""
_RETRIES: RetryConfig = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=RETRY_SECONDS),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}

_URL = re.compile(r"^(?P<scheme>[A-Za-z0-9]+)://(?P<host>[^/]*)(?P<path>/.*)?$", re.DOTALL)
_BUCKET = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_REFUSED = re.compile(r"[\x00-\x1f\x7f%#?*\[\]{}\\]")
_AZURE_HOST = ".dfs.core.windows.net"

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


@dataclass(frozen=True, kw_only=True)
class StoreLocation:
    """Location of a table on a store."""

    family: str
    """s3, gs or az."""
    bucket: str
    """Bucket, or container."""
    path: str
    """Path of the table in the bucket; empty for the bucket itself."""
    account: str = ""
    """Storage account; Azure only."""
    host: str = ""
    """Host name after the account; Azure only."""

    @property
    def uri(self) -> str:
        """Canonical URL for Hadoop's connectors: equal locations have equal URLs."""
        scheme = {"s3": "s3a", "gs": "gs", "az": "abfss"}[self.family]
        host = f"{self.bucket}@{self.account}{self.host}" if self.family == "az" else self.bucket
        return f"{scheme}://{host}/{self.path}".rstrip("/")


@dataclass(frozen=True, kw_only=True)
class _Family:
    called: str
    container: str
    credentials: str
    """What to do when the store refuses access; part of error messages."""
    open: Callable[[StoreLocation], ObjectStore]


def parse(location: str, *, field: str) -> StoreLocation:
    """Parses the URL of a table. Errors begin with `field` and never repeat credentials.

    Raises:
        InvalidInput: not the URL of a table.
        OutputUnsupported: a scheme that is not supported.
    """
    found = _URL.match(location)
    scheme = found["scheme"].lower() if found else location.partition(":")[0].lower()
    if found is None or scheme not in SCHEMES:
        raise OutputUnsupported(
            f"{field}: unsupported scheme `{scheme}:`; give a folder or a URL that begins with "
            f"{', '.join(f'{each}://' for each in SCHEMES[:-1])} or {SCHEMES[-1]}://"
        )
    host, path = found["host"], (found["path"] or "").strip("/")
    if bad := _REFUSED.search(path):
        raise InvalidInput(
            f"{field}: the path of a table on a store must not contain {bad[0]!r}, which Spark or a store does not read literally"
        )
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise InvalidInput(f"{field}: {scheme}://.../{path} has an empty, `.` or `..` part; write the path plainly")
    if scheme in ("az", "abfs", "abfss"):
        return _azure_location(host, path, field)
    if not _BUCKET.match(host):
        raise InvalidInput(
            f"{field}: `{scheme}://` must be followed by the name of a bucket alone (credentials come from the environment), "
            f"as in {scheme}://bucket/orders"
        )
    return StoreLocation(family="gs" if scheme == "gs" else "s3", bucket=host, path=path)


def _azure_location(host: str, path: str, field: str) -> StoreLocation:
    container, _, server = host.partition("@")
    account, _, rest = server.partition(".")
    account = account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    if not account:
        raise InvalidInput(
            f"{field}: the URL names no storage account; write abfss://container@account{_AZURE_HOST}/orders or set "
            "AZURE_STORAGE_ACCOUNT_NAME"
        )
    if not _BUCKET.match(container) or not _BUCKET.match(account) or not re.fullmatch(r"[A-Za-z0-9.-]*", rest):
        raise InvalidInput(f"{field} is not the URL of a table; write abfss://container@account{_AZURE_HOST}/orders")
    return StoreLocation(
        family="az", bucket=container, path=path, account=account, host=f".{rest}" if rest else _AZURE_HOST
    )


def open_objects(address: StoreLocation) -> StoreObjects:
    """The objects of a table; sends no request.

    Raises:
        OutputUnavailable: invalid settings in the environment (an unknown profile, an endpoint that is not a URL).
    """
    family = _FAMILIES[address.family]
    if not settings.ambient_credentials() and not _given(address.family):
        raise OutputUnavailable(
            f"cannot open {address.uri}: this process has no credentials of its own for {family.called}; {ambient.REMEDY}"
        )
    try:
        store = family.open(address)
    except (BaseError, ValueError, OSError) as error:
        raise OutputUnavailable(
            f"cannot open {address.uri}: the settings of {family.called} in the environment are refused "
            f"({type(error).__name__}); {family.credentials}"
        ) from None
    return StoreObjects(store, address.path, uri=address.uri, reason=lambda error: _reason(address, error))


def _given(family: str) -> bool:
    return ambient.given(family, os.environ, profile=_uses_profile(), home=_home())


def _client(endpoint: str | None) -> ClientConfig:
    return {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "read_timeout": timedelta(seconds=SILENCE_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        # An http:// endpoint was set on purpose.
        "allow_http": endpoint is not None and endpoint.lower().startswith("http://"),
    }


def _s3(address: StoreLocation) -> ObjectStore:
    endpoint = (
        os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    )
    more: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if _uses_profile():
        more["credential_provider"] = _profile(address)
    return S3Store(address.bucket, client_options=_client(endpoint), retry_config=_RETRIES, **more)


def _uses_profile() -> bool:
    """Whether AWS profiles apply: one is named, or a credentials file exists and no setting takes precedence over it."""
    if os.environ.get("AWS_PROFILE"):
        return True
    before = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    if any(os.environ.get(name) for name in (*before, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE")):
        return False
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    return (Path(file) if file else _home() / ".aws" / "credentials").is_file()


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a container's user without an entry and without HOME
        return Path("/")


def _profile(address: StoreLocation) -> Any:
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise OutputUnavailable(
            f"cannot open {address.uri}: AWS profiles are read by boto3, which is not installed; install boto3 or set AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY"
        ) from None
    import botocore.exceptions  # type: ignore[import-untyped,unused-ignore]

    try:
        return Boto3CredentialProvider()
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise OutputUnavailable(
            f"cannot open {address.uri}: the AWS profile cannot be used ({type(error).__name__}); {_FAMILIES['s3'].credentials}"
        ) from None


def _gcs(address: StoreLocation) -> ObjectStore:
    # The variable by which Google's own libraries are pointed to an emulator.
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    more: dict[str, Any] = {}
    if endpoint:
        endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
        more = {"base_url": endpoint, "skip_signature": True, "credential_provider": _no_token}
    return GCSStore(address.bucket, client_options=_client(endpoint), retry_config=_RETRIES, **more)


def _no_token() -> GCSCredential:
    """Token for emulators: with `skip_signature` alone obstore still requests one for writes."""
    return {"token": "none", "expires_at": None}


def _azure(address: StoreLocation) -> ObjectStore:
    endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT")
    more: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    return AzureStore(
        address.bucket, account_name=address.account, client_options=_client(endpoint), retry_config=_RETRIES, **more
    )


_FAMILIES = {
    "s3": _Family(
        called="S3",
        container="bucket",
        credentials="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the pod a role that may read and write it",
        open=_s3,
    ),
    "gs": _Family(
        called="Google Cloud Storage",
        container="bucket",
        credentials="set GOOGLE_APPLICATION_CREDENTIALS, or give the pod a service account that may read and write it",
        open=_gcs,
    ),
    "az": _Family(
        called="Azure",
        container="container",
        credentials="set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY or AZURE_CLIENT_ID with its secret, or give the pod an identity "
        "that may read and write it",
        open=_azure,
    ),
}

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_METADATA = re.compile(r"169\.254\.|metadata\.google|Could not find|oauth2|/identity/|IMDS|imds|msi", re.IGNORECASE)
_SILENT = re.compile(r"error sending request|timed? ?out|connection|dns", re.IGNORECASE)


def _reason(address: StoreLocation, error: Exception) -> str:
    """What is wrong and what to do; never the store's own text, which quotes addresses, signatures and keys."""
    family, text = _FAMILIES[address.family], str(error)
    status = found[1] if (found := _STATUS.search(text)) else ""
    if no_container(error):
        return f"the {family.container} {address.bucket} does not exist; create it or correct the location"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in ("401", "403"):
        if _METADATA.search(_first_address(text)):
            return f"there are no credentials; {family.credentials}"
        return f"the store refuses these credentials; {family.credentials}"
    if _METADATA.search(_first_address(text)):
        return f"there are no credentials; {family.credentials}"
    if isinstance(error, FileNotFoundError):
        return f"the {family.container} {address.bucket} does not exist; create it or correct the location"
    if status == "501" or isinstance(error, NotSupportedError):
        return "the store cannot do that; put the output on another store"
    if status:
        return f"the store answers {status}; look at its own log, or try again later"
    if _SILENT.search(text):
        return "the store does not answer; check its endpoint and the network, or try again later"
    return f"the store's client fails ({type(error).__name__}); look at its own log, or try again later"


def _first_address(text: str) -> str:
    found = re.search(r"performing [A-Z]+ (\S+)", text)
    return found[1].partition("?")[0] if found else ""
