"""From the URL of a table on an object store to the store: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage.

A URL names a place and nothing else. Credentials, endpoint and region come from where the stores' own tools look for them (`AWS_*`,
`GOOGLE_*`, `AZURE_*`, profiles, the identity of the machine or pod), so nothing secret stands in a job, in its record or in a sentence
of ours. A URL that carries a user or a query is refused for the same reason. The path is taken as it is, not percent-decoded, because
that is what Hadoop's file systems do with the same text, and a table must be one place for both.

`s3://` and `s3a://` are one place. `az://` and `abfs(s)://` are one place. Spark gets the URL that Hadoop's connectors read.

Patience is bounded: a store that does not answer is `OutputUnavailable` after seconds. Whoever asked has ways to come again (a driver
its attempt, an owner its backoff); obstore's own three minutes would outlast the claim of whoever waits.
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

from sparkonce.errors import InvalidInput, OutputUnavailable, OutputUnsupported
from sparkonce.sink.objects import StoreObjects, no_container

if TYPE_CHECKING:
    from obstore.store import ClientConfig, GCSCredential, RetryConfig

SILENCE_SECONDS = 10
"""Without a byte of an answer: the request is given up."""
REQUEST_SECONDS = 120
"""One request, whole: the list of a million files takes longer than a slot."""
CONNECT_SECONDS = 4
RETRY_SECONDS = 8
"""After the first failure of a request; what is asked once more after that is the caller's choice."""
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
class Address:
    """A table's place on a store."""

    family: str
    """s3, gs or az."""
    bucket: str
    """Or container."""
    path: str
    """Of the table in it; empty for the bucket itself."""
    account: str = ""
    """Azure's."""
    host: str = ""
    """Azure's, after the account."""

    @property
    def uri(self) -> str:
        """One text per place, as Hadoop's connectors read it."""
        scheme = {"s3": "s3a", "gs": "gs", "az": "abfss"}[self.family]
        host = f"{self.bucket}@{self.account}{self.host}" if self.family == "az" else self.bucket
        return f"{scheme}://{host}/{self.path}".rstrip("/")


@dataclass(frozen=True, kw_only=True)
class _Family:
    called: str
    container: str
    credentials: str
    """What a person sets when the store refuses."""
    open: Callable[[Address], ObjectStore]


def parse(location: str, *, field: str) -> Address:
    """InvalidInput, OutputUnsupported: one sentence that begins with the field and repeats no credentials."""
    found = _URL.match(location)
    scheme = found["scheme"].lower() if found else location.partition(":")[0].lower()
    if found is None or scheme not in SCHEMES:
        raise OutputUnsupported(
            f"{field}: `{scheme}:` is no place this version writes to; give a folder or a URL that begins with "
            f"{', '.join(f'{each}://' for each in SCHEMES[:-1])} or {SCHEMES[-1]}://"
        )
    host, path = found["host"], (found["path"] or "").strip("/")
    if bad := _REFUSED.search(path):
        raise InvalidInput(
            f"{field}: the path of a table on a store must be without {bad[0]!r}, which Spark or a store takes for more than a letter"
        )
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise InvalidInput(f"{field}: {scheme}://.../{path} has an empty, `.` or `..` part; write the path plainly")
    if scheme in ("az", "abfs", "abfss"):
        return _azure_address(host, path, field)
    if not _BUCKET.match(host):
        raise InvalidInput(
            f"{field}: `{scheme}://` must be followed by the name of a bucket alone (credentials come from the environment), "
            f"as in {scheme}://bucket/orders"
        )
    return Address(family="gs" if scheme == "gs" else "s3", bucket=host, path=path)


def _azure_address(host: str, path: str, field: str) -> Address:
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
    return Address(family="az", bucket=container, path=path, account=account, host=f".{rest}" if rest else _AZURE_HOST)


def open_objects(address: Address) -> StoreObjects:
    """Asks no store. OutputUnavailable: what the environment says makes no sense (an unknown profile, an endpoint that is no URL)."""
    family = _FAMILIES[address.family]
    try:
        store = family.open(address)
    except (BaseError, ValueError, OSError) as error:
        raise OutputUnavailable(
            f"cannot open {address.uri}: the settings of {family.called} in the environment are refused "
            f"({type(error).__name__}); {family.credentials}"
        ) from None
    return StoreObjects(store, address.path, uri=address.uri, reason=lambda error: _reason(address, error))


def _client(endpoint: str | None) -> ClientConfig:
    return {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "read_timeout": timedelta(seconds=SILENCE_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        # Whoever sets an http:// endpoint has said that it is one.
        "allow_http": endpoint is not None and endpoint.lower().startswith("http://"),
    }


def _s3(address: Address) -> ObjectStore:
    endpoint = (
        os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    )
    more: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if _wants_profile():
        more["credential_provider"] = _profile(address)
    return S3Store(address.bucket, client_options=_client(endpoint), retry_config=_RETRIES, **more)


def _wants_profile() -> bool:
    """A profile is named, or there is a file of them and nothing that goes before it."""
    if os.environ.get("AWS_PROFILE"):
        return True
    before = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    if any(os.environ.get(name) for name in (*before, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE")):
        return False
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    return (Path(file) if file else Path.home() / ".aws" / "credentials").is_file()


def _profile(address: Address) -> Any:
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


def _gcs(address: Address) -> ObjectStore:
    # The name under which Google's own libraries know a server that stands in for theirs.
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    more: dict[str, Any] = {}
    if endpoint:
        endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
        more = {"base_url": endpoint, "skip_signature": True, "credential_provider": _no_token}
    return GCSStore(address.bucket, client_options=_client(endpoint), retry_config=_RETRIES, **more)


def _no_token() -> GCSCredential:
    """For a stand-in: `skip_signature` alone still asks for a token when it writes."""
    return {"token": "none", "expires_at": None}


def _azure(address: Address) -> ObjectStore:
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


def _reason(address: Address, error: Exception) -> str:
    """What is wrong and what to do, never the store's own text: that quotes addresses, signatures and keys."""
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
