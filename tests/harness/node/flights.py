"""examples/kubernetes on a real cluster, with the exact commands of its README: a namespace, the raw data, its jobs, its tables.

The data is on a shared volume (a folder of the node behind the example's claim), or in a bucket of a server beside the cluster. Tables are
read from this machine, as any reader would: from the volume's folder, or from the bucket over HTTP. The example's files are not repeated
here: manifests are rendered by `sparkonce render`, and only names that a user would choose (image, namespace) are filled in.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
import yaml
from pyarrow import fs

from harness.eventually import assert_eventually
from harness.kube_api import Json
from harness.node.cluster import RealCluster
from harness.node.images import SPARK
from harness.node.scene import ENDED
from harness.patience import completed
from harness.store_servers import StoreServer, make_s3_bucket
from sparkonce.launch.kubernetes import JOBS, NAMESPACES, SPARK_APPLICATIONS, Resource

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
HERE, SCRIPTS = EXAMPLES / "kubernetes", EXAMPLES / "flights"
IMAGE = "sparkonce/spark:0.1.0"
"""The example's name for the image."""
BUCKET = "flights"
PATIENCE = 600.0
"""Seconds for a job with an executor and its settle run; usually thirty on free cores."""
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)


class JobEnded(RuntimeError):
    """A job ended in another phase than the expected one."""


@dataclass
class Flights:
    cluster: RealCluster
    namespace: str
    server: StoreServer | None
    """None: the data is on the shared volume."""
    applications: set[str] = field(default_factory=set)
    """Names of all applications seen, including settle runs."""

    @property
    def folder(self) -> Path:
        """The folder of this machine behind the volume."""
        return self.cluster.folder / "volumes" / self.namespace

    # --- the steps of the README

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, given=given)

    def set_up(self, raw: Path) -> None:
        """Creates account, storage, scripts and raw data."""
        self.cluster.api.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        self.kubectl("apply", "-f", str(HERE / "account.yaml"))
        if self.server is None:
            self._fill_volume(raw)
        else:
            self._fill_bucket(self.server, raw)

    def send(self, file: str, *, name: str = "", **params: str) -> str:
        """Applies a manifest; returns its name. `name` replaces the manifest's, as another user would choose it."""
        place = (HERE / "s3" if self.server else HERE) / file
        given = [f"--param={each}={value}" for each, value in {"image": SPARK, **params}.items()]
        command = [sys.executable, "-m", "sparkonce", "render", str(place), *given]
        rendered = completed(command, 60)
        assert rendered.returncode == 0, rendered.stderr
        job = yaml.safe_load(rendered.stdout)
        job["metadata"]["name"] = name or job["metadata"]["name"]
        self.kubectl("apply", "-f", "-", given=yaml.safe_dump(job))
        return str(job["metadata"]["name"])

    def status(self, name: str) -> Json:
        status = (self.cluster.api.get(JOBS, name, self.namespace) or {}).get("status") or {}
        assert isinstance(status, dict)
        return status

    def until(self, name: str, phase: str, timeout: float = PATIENCE) -> Json:
        """Waits for this phase; returns the status. Raises JobEnded, AssertionError."""

        def look() -> Json:
            found = self.cluster.api.list(SPARK_APPLICATIONS, self.namespace)
            self.applications |= {str(each["metadata"]["name"]) for each in found}
            status = self.status(name)
            if status.get("phase") in ENDED and status["phase"] != phase:
                raise JobEnded(f"{name} is {status['phase']}: {status.get('message')}")
            assert status.get("phase") == phase, f"{name} is {status.get('phase')}: {status.get('message')}"
            return status

        return assert_eventually(look, timeout, interval=0.2)

    def table(self, name: str) -> pa.Table:
        """The table as any reader sees it."""
        from sparkonce.sink.slotlog.snapshot import Table

        if self.server is None:
            return ds.dataset(Table(self.folder / "lake" / name).files()).to_table()
        with _environment(self.server):
            files = Table(f"s3://{BUCKET}/lake/{name}").files()
        keys = [f"{urlsplit(each).netloc}{urlsplit(each).path}" for each in files]
        return ds.dataset(keys, filesystem=_file_system(self.server)).to_table()

    def remove(self) -> None:
        """Deletes the namespace without waiting until it is empty."""
        self.cluster.api.delete(NAMESPACES, self.namespace)
        self.cluster.api.delete(VOLUMES, self.namespace)

    # --- where the data is

    def _fill_volume(self, raw: Path) -> None:
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o777)  # jobs run as a user of the image
        for place in (self.cluster.folder, self.folder.parent):
            place.chmod(0o755)
        self.cluster.api.apply(self._volume())
        self.kubectl("apply", "-f", "-", given=(HERE / "volume.yaml").read_text().replace(IMAGE, SPARK))
        self.kubectl("wait", "--for=condition=Ready", "pod/files", "--timeout=120s")
        self.kubectl("exec", "files", "--", "mkdir", "-p", "/flights/jobs")
        self.kubectl("cp", str(raw), "files:/flights/raw")
        for script in ("load_month.py", "delays.py"):
            self.kubectl("cp", str(SCRIPTS / script), f"files:/flights/jobs/{script}")

    def _volume(self) -> Json:
        """The volume that a platform's storage class would provide."""
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": self.namespace},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany"],
                "claimRef": {"namespace": self.namespace, "name": "flights"},
                "hostPath": {"path": str(self.folder)},
            },
        }

    def _fill_bucket(self, server: StoreServer, raw: Path) -> None:
        keys = [f"--from-literal={name}={value}" for name, value in server.environment.items()]
        self.kubectl("create", "secret", "generic", "flights-store", *keys)
        make_s3_bucket(server, BUCKET)
        bucket = _file_system(server)
        fs.copy_files(str(raw), f"{BUCKET}/raw", destination_filesystem=bucket)
        with tempfile.TemporaryDirectory() as folder:
            for script in ("load_month.py", "delays.py"):
                (Path(folder) / script).write_text((SCRIPTS / script).read_text())
            fs.copy_files(folder, f"{BUCKET}/jobs", destination_filesystem=bucket)


def _file_system(server: StoreServer) -> fs.S3FileSystem:
    known = server.credentials
    return fs.S3FileSystem(
        access_key=known["AWS_ACCESS_KEY_ID"],
        secret_key=known["AWS_SECRET_ACCESS_KEY"],
        region=known["AWS_REGION"],
        endpoint_override=server.address,
        scheme="http",
        allow_bucket_creation=False,
    )


@contextmanager
def _environment(server: StoreServer) -> Iterator[None]:
    """Sets the environment of this process while it reads from the server."""
    before = {name: os.environ.get(name) for name in server.environment}
    os.environ.update(server.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
