"""Keeps a process from using the cloud identity of the machine that it runs on.

Clients of object stores (obstore, delta-rs, pyarrow, boto3 below pyiceberg) ask the cloud's metadata service for credentials when they were
given none. An operator would then act with the node's rights, on behalf of any tenant's job. Credentials given to the process itself stay
usable: variables, mounted files, tokens projected into its pod (web identity, federated tokens, container credentials), anonymous access.

This takes two measures, because no single variable applies to all clients. Opening a store without credentials of the process's own is
refused before a client exists (`given` repeats obstore's precedence). `forbid` sets the variables that boto3 and AWS's SDK obey, and points
the metadata addresses of the others to a closed port of this machine, because pyiceberg opens file systems by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path

from sparkonce.settings import AMBIENT

CLOSED = "127.0.0.1:1"
"""tcpmux, which nothing listens on: a connection is refused at once."""

REMEDY = "give them in the environment, or allow the machine's own (SPARKONCE_AMBIENT_CREDENTIALS=true)"

_FORBIDDEN = {
    AMBIENT: "false",
    "AWS_EC2_METADATA_DISABLED": "true",  # boto3, AWS's C++ SDK
    "AWS_METADATA_ENDPOINT": f"http://{CLOSED}",  # obstore, delta-rs
    "NO_GCE_CHECK": "true",  # google-auth
    "GCE_METADATA_HOST": CLOSED,
    "GCE_METADATA_IP": CLOSED,
    "GCE_METADATA_ROOT": CLOSED,
    "GOOGLE_RUNNING_ON_GCE_CHECK_OVERRIDE": "0",  # google-cloud-cpp
    "IDENTITY_ENDPOINT": f"http://{CLOSED}/",
    "MSI_ENDPOINT": f"http://{CLOSED}/",
    "AZURE_MSI_ENDPOINT": f"http://{CLOSED}/",
    "AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{CLOSED}",
}

_GIVEN: dict[str, tuple[tuple[str, ...], ...]] = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        ("AWS_SKIP_SIGNATURE",),
    ),
    "gs": (
        ("GOOGLE_SERVICE_ACCOUNT",),
        ("GOOGLE_SERVICE_ACCOUNT_PATH",),
        ("GOOGLE_SERVICE_ACCOUNT_KEY",),
        ("GOOGLE_APPLICATION_CREDENTIALS",),
        ("GOOGLE_SKIP_SIGNATURE",),
        ("STORAGE_EMULATOR_HOST",),
    ),
    "az": (
        ("AZURE_STORAGE_ACCOUNT_KEY",),
        ("AZURE_STORAGE_ACCESS_KEY",),
        ("AZURE_STORAGE_MASTER_KEY",),
        ("AZURE_STORAGE_SAS_KEY",),
        ("AZURE_STORAGE_SAS_TOKEN",),
        ("AZURE_STORAGE_TOKEN",),
        ("AZURE_SKIP_SIGNATURE",),
        ("AZURE_STORAGE_USE_EMULATOR",),
        ("AZURE_USE_AZURE_CLI",),
        ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"),
        ("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"),
        ("AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_TENANT_ID"),
    ),
}
_GCLOUD = Path(".config/gcloud/application_default_credentials.json")


def forbid(environ: MutableMapping[str, str]) -> None:
    """Sets this process's environment so that no client asks for the machine's identity. Call it before the first client is created."""
    environ.update(_FORBIDDEN)


def given(family: str, environ: Mapping[str, str], *, profile: bool, home: Path) -> bool:
    """Whether the environment has credentials for this family of stores (s3, gs or az). `profile`: an AWS profile applies; boto3 reads it,
    and does not ask the machine."""
    if family == "s3" and profile:
        return True
    if family == "gs" and (home / _GCLOUD).is_file():
        return True
    return any(all(environ.get(name) for name in names) for names in _GIVEN[family])
