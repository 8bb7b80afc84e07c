"""A real Kubernetes API in about three seconds: etcd, kube-apiserver and two controllers, without a node that could run anything.

Everything that the operator relies on is real: storage with one global revision, optimistic concurrency, watches, admission by schema and
CEL, RBAC, tokens, garbage collection by owner references, and deletion of namespaces. There is no scheduler, no kubelet and no automatic
service account (a pod needs none here): `harness.kubeflow` plays the node.

Each pytest process has its own. Sharing one between two workers would save half a gigabyte and 3 s, but tests that kill or freeze it
would break the other worker's tests. etcd writes to memory and without fsync: nothing here outlives the test run.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trustme
import yaml

from harness.binaries import component, spark_operator_crds
from harness.child import Child, NotStarted, free_port
from harness.etcd import Etcd, running
from harness.eventually import assert_eventually
from harness.kube_api import CRDS, Api, holds
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS, Resource

ROOT = Path(__file__).resolve().parents[2]
OUR_CRD = ROOT / "crds" / "idempotentjobs.yaml"

START_TIMEOUT = 60.0
"""Seconds: three on free cores, and up to twenty beside nine other test runs on the same two cores."""
TRIES = 3
"""Attempts to start: another process may take the port between the check and the server's bind."""

ADMIN, STRANGER = "admin-token", "stranger-token"
"""Bearer tokens: of a member of system:masters, and of an authenticated user without rights."""
EDITOR, VIEWER, LEAD = "editors-token", "viewers-token", "leads-token"
"""Of the users `editor` and `viewer`, and of `lead` in the group `leads`: people to whom a test gives roles."""
TOKENS = f"""{ADMIN},admin,admin,"system:masters"
{STRANGER},stranger,stranger,""
{EDITOR},editor,editor,""
{VIEWER},viewer,viewer,""
{LEAD},lead,lead,"leads"
"""

_FOLDER = "sparkonce-cluster-"
_CONTROLLERS = "garbage-collector-controller,namespace-controller"


class Certificates:
    """Our own CA, and one certificate for all servers on loopback."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.crt, self.key = folder / "ca.crt", folder / "server.crt", folder / "server.key"
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost", "kubernetes.default.svc")
        authority.cert_pem.write_to_path(self.ca)
        issued.private_key_pem.write_to_path(self.key)
        issued.cert_chain_pems[0].write_to_path(self.crt)


class ApiServer:
    """One kube-apiserver on an etcd; its address stays the same over `kill` and `start`."""

    def __init__(
        self, folder: Path, *, etcd_url: str, certificates: Certificates, name: str = "kube-apiserver"
    ) -> None:
        self.certificates = certificates
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        tokens = folder / "tokens.csv"
        tokens.write_text(TOKENS)
        flags = [
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={certificates.crt}",
            f"--tls-private-key-file={certificates.key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={certificates.key}",
            f"--service-account-signing-key-file={certificates.key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",  # it refuses to publish a loopback address
            "--disable-admission-plugins=ServiceAccount",  # no controller creates a namespace's default account here
            "--allow-privileged",
        ]
        self.child = Child(name, [*component("kube-apiserver"), *flags], folder / f"{name}.log")
        self._api = self.client()

    def client(self, token: str = ADMIN, *, user_agent: str = "sparkonce-tests") -> Api:
        """Another client; the caller closes it."""
        return Api(self.url, ca=self.certificates.ca, token=token, user_agent=user_agent)

    def begin(self) -> None:
        self.child.start()

    def start(self) -> None:
        """Starts the server; it serves and is ready when this returns."""
        self.begin()
        self.until_ready()

    def until_ready(self) -> None:
        self.child.until(self._api.healthy, START_TIMEOUT)

    def kill(self) -> None:
        """SIGKILL: a graceful stop takes a minute while watches are open."""
        self.child.kill()

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        self._api.close()
        self.kill()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stops the server with SIGSTOP during the block: connections stay open, nothing is answered."""
        self.child.freeze()
        try:
            yield
        finally:
            self.child.thaw()


class Cluster:
    """The cluster of an api test: `api` for the test's own requests, `kubeconfig` for the programs under test, `server` for faults."""

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        self.folder, self.etcd = folder, etcd
        self.certificates = Certificates(folder)
        self.server = ApiServer(folder, etcd_url=self._etcd_url, certificates=self.certificates)
        self.api = self.server.client()
        self.kubeconfig = self.kubeconfig_for(self.server.url)
        flags = [
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={_CONTROLLERS}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",  # with its defaults, deleting a tree of objects would take seconds
            "--kube-api-burst=2000",
        ]
        command = [*component("kube-controller-manager"), *flags]
        self.controllers = Child("kube-controller-manager", command, folder / "kube-controller-manager.log")
        self._more: list[ApiServer] = []

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def _etcd_url(self) -> str:
        return f"http://{self.etcd.one.address}"

    def start(self) -> None:
        """Starts everything; both CRDs are served and known to the garbage collector when this returns. Raises NotStarted."""
        self.server.begin()
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        self.server.child.until(lambda: self.api.healthy(crds), START_TIMEOUT)
        self.apply_crds()
        self.server.until_ready()
        # After the CRDs: the garbage collector discovers kinds only at its start and then twice a minute.
        self.controllers.start()

    def apply_crds(self) -> None:
        """Applies our CRD from `crds/` and the SparkApplication of kubeflow's module; both are served when this returns."""
        paths = [OUR_CRD, *(each for each in spark_operator_crds() if each.name.endswith("_sparkapplications.yaml"))]
        for path in paths:
            self.api.apply(yaml_document(path))
        for each in (JOBS, SPARK_APPLICATIONS):
            self.api.wait(CRDS, f"{each.plural}.{each.group}", until=established, timeout=START_TIMEOUT)
            assert_eventually(lambda each=each: self.serves(each), START_TIMEOUT)  # type: ignore[misc] # a default in a lambda has no type

    def serves(self, resource: Resource) -> bool:
        return self.api.healthy(f"/apis/{resource.group}/{resource.version}/{resource.plural}?limit=1")

    def another_server(self) -> ApiServer:
        """A second API server on the same etcd, ready; it ends with the cluster or by its `close`."""
        name = f"kube-apiserver-{len(self._more) + 2}"
        server = ApiServer(self.folder, etcd_url=self._etcd_url, certificates=self.certificates, name=name)
        self._more.append(server)
        server.start()
        return server

    def kubeconfig_for(self, url: str, *, token: str = ADMIN) -> Path:
        """A kubeconfig for this address (a proxy, a second server) and token, with the CA inside."""
        ca = base64.b64encode(self.certificates.ca.read_bytes()).decode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority-data": ca}}],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        }
        handle, path = tempfile.mkstemp(prefix="kubeconfig-", dir=self.folder)
        with open(handle, "w") as file:  # noqa: PTH123 # it is a descriptor
            json.dump(document, file)
        return Path(path)

    def close(self) -> None:
        self.api.close()
        self.controllers.kill()
        for server in [*self._more, self.server]:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def started_cluster() -> Iterator[Cluster]:
    """A started cluster in a temporary folder, in memory where possible; everything is removed afterwards. Raises NotStarted."""
    with folder_in_memory() as folder, running(folder) as etcd:
        for attempt in range(1, TRIES + 1):
            place = folder / f"cluster-{attempt}"
            place.mkdir()
            with Cluster(place, etcd) as cluster:
                try:
                    cluster.start()
                except NotStarted as failed:
                    if attempt == TRIES or "address already in use" not in str(failed):
                        raise
                else:
                    yield cluster
                    return


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder in memory that is removed afterwards; leftovers of a killed test run, which occupy memory, are removed by the next."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        memory = Path(tempfile.gettempdir())
    for left in memory.glob(f"{_FOLDER}*"):
        owner = left.name.removeprefix(_FOLDER).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=memory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def established(crd: dict[str, Any]) -> bool:
    return holds(crd, "Established")


def yaml_document(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's reads 800 kB in a tenth of the time
    document = yaml.load(path.read_bytes(), Loader=loader)
    assert isinstance(document, dict)
    return document
