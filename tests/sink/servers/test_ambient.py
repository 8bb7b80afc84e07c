"""The machine's own identity: an operator never requests credentials from the metadata service unless its administrator allows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.child import free_port
from harness.metadata import Metadata, metadata
from harness.patience import completed
from sparkonce.sink.objects import ambient

S3, GS, AZ = "s3://lake/t", "gs://lake/t", "abfss://c@acct.dfs.core.windows.net/t"
PYARROW = {
    "s3": "S3FileSystem(region='us-east-1', endpoint_override=os.environ['NOWHERE']).get_file_info('b/x')",
    "gs": "GcsFileSystem(retry_time_limit=datetime.timedelta(seconds=1)).get_file_info('b/x')",
    "az": "AzureFileSystem('acct').get_file_info('c/x')",
}


def environment(played: Metadata, home: Path, more: Mapping[str, str]) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
    nowhere = f"http://127.0.0.1:{free_port()}"  # no store answers: only requests for credentials matter
    stores = {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": nowhere, "NOWHERE": nowhere, "HOME": str(home)}
    return own | stores | played.variables | dict(more)


def asks(code: str, played: Metadata, home: Path, *, forbidden: bool, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, since clients read their environment once."""
    first = "import os\nfrom sparkonce.sink.objects import ambient\n" + ("ambient.forbid(os.environ)\n" * forbidden)
    return completed([sys.executable, "-c", first + code], 60, env=environment(played, home, more))


def probes(location: str, kind: str = "slotLog") -> str:
    return (
        "from sparkonce.blocking import run\n"
        "from sparkonce.sink.open import open_or_absent\n"
        "from sparkonce.sink.protocol import Declared\n"
        "from sparkonce.sink.protocol import SinkKey\n"
        f"sink = open_or_absent(Declared(name='rows', kind={kind!r}, location={location!r}), base=None)\n"
        "print(getattr(sink, 'why', ''))\n"
        "run(sink.find(SinkKey(key_hash='0' * 64, output='rows', generation=1)))\n"
    )


CLIENTS = {
    **{f"slot log on {place[:2]}": probes(place) for place in (S3, GS, AZ)},
    **{f"delta on {place[:2]}": probes(place, "delta") for place in (S3, GS, AZ)},
    **{f"pyarrow on {name}": f"import datetime\nfrom pyarrow.fs import *\n{code}" for name, code in PYARROW.items()},
    "boto3": "import boto3\nboto3.Session().get_credentials()",
}


@pytest.mark.parametrize("client", CLIENTS)
def test_the_machine_is_asked_only_if_it_may_be(client: str, tmp_path: Path) -> None:
    """Every client by which an output is reached requests credentials from the metadata service by default, as in a driver, and never in an
    operator."""
    with metadata() as played:
        asks(CLIENTS[client], played, tmp_path, forbidden=False)
        assert played.calls, "this client never asks, so the test proves nothing"
        played.calls.clear()
        done = asks(CLIENTS[client], played, tmp_path, forbidden=True)
        assert played.calls == []
    if "on" in client and "pyarrow" not in client:
        assert "this process has no credentials of its own for" in done.stdout
        assert ambient.REMEDY in done.stdout


def test_the_place_has_one_name_whether_it_can_be_opened_or_not(tmp_path: Path) -> None:
    """The URI in a result is the same whether or not the process that settled could open the place."""
    shows = probes(S3).replace("getattr(sink, 'why', '')", "sink.uri, type(sink).__name__")
    with metadata() as played:
        assert asks(shows, played, tmp_path, forbidden=True).stdout.split() == ["s3a://lake/t", "Absent"]
        assert asks(shows, played, tmp_path, forbidden=False).stdout.split() == ["s3a://lake/t", "SlotLogSink"]


@pytest.mark.parametrize(
    ("place", "given"),
    [
        (S3, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}),
        (S3, {"AWS_SKIP_SIGNATURE": "true"}),
        (S3, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/dev/null", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}),
        (
            S3,
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/dev/null",
            },
        ),
        (GS, {"STORAGE_EMULATOR_HOST": "127.0.0.1:1"}),
        (GS, {"GOOGLE_SKIP_SIGNATURE": "true"}),
        (AZ, {"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}),
        (AZ, {"AZURE_CLIENT_ID": "i", "AZURE_TENANT_ID": "t", "AZURE_FEDERATED_TOKEN_FILE": "/dev/null"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else value[:2],
)
def test_what_was_given_to_the_process_is_used(place: str, given: dict[str, str], tmp_path: Path) -> None:
    """Environment variables, mounted files and projected tokens were given to the process deliberately: the store is opened with them, and
    the metadata service is not contacted."""
    with metadata() as played:
        done = asks(probes(place), played, tmp_path, forbidden=True, **given)
        assert "no credentials of its own" not in done.stdout + done.stderr
        assert played.calls == []


@pytest.mark.parametrize(
    "half",
    [
        {"AWS_ACCESS_KEY_ID": "k"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/dev/null"},
        {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/"},
        {"AWS_PROFILE": "machine"},
    ],
    ids=" ".join,
)
def test_half_of_it_does_not_open_a_way_around(half: dict[str, str], tmp_path: Path) -> None:
    """With an incomplete set of variables, or a profile that takes the machine's role as its source, the metadata service is still not
    contacted."""
    config = tmp_path / "config"
    config.write_text("[profile machine]\nrole_arn = arn:aws:iam::1:role/r\ncredential_source = Ec2InstanceMetadata\n")
    with metadata() as played:
        for kind in ("slotLog", "delta"):
            done = asks(probes(S3, kind), played, tmp_path, forbidden=True, AWS_CONFIG_FILE=str(config), **half)
            assert done.returncode != 0
        assert played.calls == []
