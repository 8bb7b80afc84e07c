"""A complete Kubernetes with one node and the real Spark operator, from parts kept outside the checkout. Linux, root.

It has everything that a platform has: admission of service accounts, a scheduler, a kubelet that starts containers, services with addresses
and names, eviction from an unreachable node, and kubeflow's Spark operator, which runs spark-submit. It lacks further nodes, a load
balancer and a route to the outside (`harness.node.network`). Some periods are shorter than a platform's, each with its reason beside it.
The Spark operator runs as a process of the node and not in a pod, so that a test can kill it at an exact moment.

A lock allows one cluster at a time on a machine: two would not fit into memory, and they share the store of images. kind is not
the first choice, because it needs a Docker engine; `harness.node.given` supports it, and existing clusters.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trustme

from harness import spark_archive
from harness.apiserver import (
    ADMIN,
    TOKENS,
    established,
    yaml_document,
)
from harness.binaries import (
    COREDNS,
    SPARK_OPERATOR_PROGRAM,
    binary,
    find,
    one_at_a_time,
    spark_operator_crds,
    to_stderr,
)
from harness.child import Child, NotStarted
from harness.eventually import assert_eventually
from harness.kube_api import CRDS, Api, ApiError, Json, holds, path_of
from harness.node import packages, webhook
from harness.node.cgroups import Cgroups
from harness.node.containers import Containers, remove
from harness.node.images import archives
from harness.node.network import DNS, KUBERNETES, NODE, POD_NETWORK, SERVICE_NETWORK, Network, network
from harness.patience import completed
from harness.spark_archive import SHORT_LIVED
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS, Resource

NAME = "node"
"""Name of the node."""
PORT = 6443
START_TIMEOUT = 120.0
"""Seconds until the node is Ready: four on free cores."""
UNREACHABLE = 8
"""Seconds without a heartbeat until a node is NotReady, and from then until its pods are evicted (on a platform 50 and 300)."""
SPARK_NAMESPACES = ""
"""All namespaces."""
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
_FOLDER = "sparkonce-node-"


class RealCluster:
    """`api` for the test's own requests, `kubeconfig` for programs, `children` for faults: each part by its name."""

    def __init__(self, folder: Path, net: Network) -> None:
        self.folder, self.network = folder, net
        self.cgroups = Cgroups()
        self.containers = Containers(folder, net)
        self.kubeconfig = folder / "kubeconfig"
        self.url = f"https://{NODE}:{PORT}"
        self._certificates()
        self.api = Api(self.url, ca=folder / "ca.crt", token=ADMIN)
        self.children: dict[str, Child] = {"containerd": self.containers.child}
        for name, flags in self._parts().items():
            self._child(name, [*find(name), *flags])
        self._child("coredns", [str(binary(COREDNS)), "-conf", str(self._corefile())])
        submits = spark_environment(self.kubeconfig, NODE, str(PORT))
        program = str(binary(SPARK_OPERATOR_PROGRAM))
        self._child("spark-operator", [program, *spark_operator()], submits)
        self._child("spark-webhook", [program, *webhook.command(folder)], {"KUBECONFIG": str(self.kubeconfig)})

    # --- options of each part

    def _certificates(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.folder / "ca.crt")
        names = [NODE, "127.0.0.1", KUBERNETES, "localhost", "kubernetes", "kubernetes.default"]
        names += ["kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        for name, issued in {
            "apiserver": authority.issue_cert(*names),
            "kubelet": authority.issue_cert(NODE, "127.0.0.1", NAME),
            # The API server's own identity at the kubelet, for logs and exec.
            "kubelet-client": authority.issue_cert(
                "kube-apiserver", common_name="kube-apiserver", organization_name="system:masters"
            ),
            "accounts": authority.issue_cert("accounts"),
        }.items():
            issued.private_key_pem.write_to_path(self.folder / f"{name}.key")
            issued.cert_chain_pems[0].write_to_path(self.folder / f"{name}.crt")
        (self.folder / "tokens.csv").write_text(TOKENS)
        self.kubeconfig.write_text(json.dumps(self.kubeconfig_of(ADMIN)))

    def kubeconfig_of(self, token: str) -> dict[str, Any]:
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "ca.crt")}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        }

    def _parts(self) -> Mapping[str, Sequence[str]]:
        at = self.folder
        known = f"--kubeconfig={self.kubeconfig}"
        asks = [
            known,
            f"--authentication-kubeconfig={self.kubeconfig}",
            f"--authorization-kubeconfig={self.kubeconfig}",
        ]
        return {
            "etcd": [
                f"--data-dir={at / 'etcd'}",
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--log-level=warn",
                "--unsafe-no-fsync",  # data survives a kill, and no power failure is tested
            ],
            "kube-apiserver": [
                "--etcd-servers=http://127.0.0.1:2379",
                "--bind-address=0.0.0.0",
                f"--advertise-address={NODE}",
                f"--secure-port={PORT}",
                f"--service-cluster-ip-range={SERVICE_NETWORK}",
                f"--tls-cert-file={at / 'apiserver.crt'}",
                f"--tls-private-key-file={at / 'apiserver.key'}",
                f"--client-ca-file={at / 'ca.crt'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={at / 'accounts.key'}",
                f"--service-account-signing-key-file={at / 'accounts.key'}",
                f"--token-auth-file={at / 'tokens.csv'}",
                "--authorization-mode=Node,RBAC",
                "--allow-privileged=true",
                f"--kubelet-certificate-authority={at / 'ca.crt'}",
                f"--kubelet-client-certificate={at / 'kubelet-client.crt'}",
                f"--kubelet-client-key={at / 'kubelet-client.key'}",
                "--kubelet-preferred-address-types=InternalIP",
                f"--default-not-ready-toleration-seconds={UNREACHABLE}",
                f"--default-unreachable-toleration-seconds={UNREACHABLE}",
            ],
            "kube-controller-manager": [
                *asks,
                f"--service-account-private-key-file={at / 'accounts.key'}",
                f"--root-ca-file={at / 'ca.crt'}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                f"--node-monitor-grace-period={UNREACHABLE}s",
                "--node-monitor-period=2s",
                "--terminated-pod-gc-threshold=0",
                "--kube-api-qps=200",  # with its defaults, deleting a namespace would take a minute
                "--kube-api-burst=400",
            ],
            "kube-scheduler": [*asks, "--leader-elect=false"],
            "kubelet": [
                known,
                f"--config={self._kubelet_config()}",
                f"--hostname-override={NAME}",
                f"--node-ip={NODE}",
                f"--root-dir={at / 'kubelet'}",
                f"--cert-dir={at / 'kubelet-pki'}",
            ],
            "kube-proxy": [
                known,
                f"--hostname-override={NAME}",
                "--proxy-mode=iptables",
                f"--cluster-cidr={POD_NETWORK}",
                # Limits of the machine's connection table must not be changed.
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
            ],
        }

    def _kubelet_config(self) -> Path:
        path = self.folder / "kubelet.json"
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroups.root,
            "failCgroupV1": False,  # machines with cgroup v1 are supported, too
            "failSwapOn": False,
            "clusterDNS": [DNS],
            "clusterDomain": "cluster.local",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.folder / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self.containers.socket}",
            "tlsCertFile": str(self.folder / "kubelet.crt"),
            "tlsPrivateKeyFile": str(self.folder / "kubelet.key"),
            "podLogsDir": str(self.folder / "pod-logs"),
            "featureGates": {"KubeletInUserNamespace": True},  # it may not set limits of the machine
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "200Mi"},
            "imageGCHighThresholdPercent": 100,  # the harness itself removes images
            "maxPods": 200,
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "10s",
            "resolvConf": "",  # pods resolve names only within the cluster
        }
        path.write_text(json.dumps(config))
        return path

    def _corefile(self) -> Path:
        path = self.folder / "Corefile"
        path.write_text(
            f""".:53 {{
  errors
  kubernetes cluster.local {{
    kubeconfig {self.kubeconfig}
  }}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""
        )
        return path

    def _child(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        inside = self.network.inside(command)
        self.children[name] = Child(name, inside, self.folder / f"{name}.log", environment)

    # --- life

    def start(self, images: Mapping[str, Path]) -> None:
        """Starts everything: the node is Ready, names are resolved, SparkApplications are submitted. Raises NotStarted."""
        self.children["etcd"].start()
        self.children["kube-apiserver"].start()
        self.containers.start(images)
        self.children["kube-apiserver"].until(self.api.healthy, START_TIMEOUT)
        for name in ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"):
            self.children[name].start()
        kinds = [yaml_document(path) for path in spark_operator_crds()]  # our CRD comes with the chart
        for kind in kinds:
            self.api.apply(kind)
        self._names()
        self.children["coredns"].start()
        for kind in kinds:
            self.api.wait(CRDS, kind["metadata"]["name"], until=established, timeout=START_TIMEOUT)
        # The Spark operator exits for good if one of its kinds is missing at its first look.
        assert_eventually(lambda: all(map(self._discovered, kinds)), START_TIMEOUT)
        self.children["spark-operator"].start()
        self.children["kubelet"].until(self.node_ready, START_TIMEOUT)
        for body in webhook.objects():
            self.api.apply(body)
        self.children["spark-webhook"].start()
        self.children["spark-webhook"].until(lambda: webhook.ready(self.api), START_TIMEOUT)
        for name, child in self.children.items():
            if not child.running:
                raise NotStarted(f"{name} ended while the cluster started: {child.last_words()}")

    def start_again(self) -> None:
        """Starts every part again after all were killed, in their order, as a service supervisor does."""
        for name in ("etcd", "kube-apiserver", "containerd"):
            self.children[name].start()
        self.containers.until_it_answers()
        self.children["kube-apiserver"].until(self.serves, START_TIMEOUT)
        for child in self.children.values():
            if not child.running:
                child.start()
        kubelet = self.children["kubelet"]

        def ready() -> bool:
            if not kubelet.running:  # containerd answered before its Kubernetes plugin was ready
                kubelet.start()
            return self.node_ready()

        assert_eventually(ready, START_TIMEOUT, interval=0.5)

    def _discovered(self, kind: Json) -> bool:
        """Whether discovery of a group lists the resource, which happens later than it is established."""
        spec = kind["spec"]
        for version in spec["versions"]:
            try:
                found = self.api.request("GET", f"/apis/{spec['group']}/{version['name']}")
            except ApiError as problem:
                if problem.code == 404:
                    return False
                raise
            if spec["names"]["plural"] not in (each["name"] for each in found["resources"]):
                return False
        return True

    def _names(self) -> None:
        """A Service with this name and the address of a process of the node."""
        ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
        metadata = {"name": "kube-dns", "namespace": "kube-system"}
        self.api.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": DNS, "ports": ports}}
        )
        self.api.apply(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "kube-dns"}},
                "addressType": "IPv4",
                "ports": ports,
                "endpoints": [{"addresses": [NODE]}],
            }
        )

    def serves(self) -> bool:
        """Whether the API server answers for our kinds, too: after a restart it is ready some seconds earlier."""
        return self.api.healthy() and all(
            self.api.healthy(f"{path_of(each)}?limit=1") for each in (JOBS, SPARK_APPLICATIONS)
        )

    def node_ready(self) -> bool:
        return holds(self.api.get(NODES, NAME), "Ready")

    def restart(self, name: str) -> None:
        """Kills a part with SIGKILL and starts the same command again."""
        self.children[name].kill()
        self.children[name].start()

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True) -> str:
        """Standard output of kubectl. Raises AssertionError with its output if it fails."""
        command = [*find("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = completed(command, 300, given=given)
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout

    def close(self) -> None:
        self.api.close()
        for name in (
            "spark-operator", "spark-webhook", "coredns", "kube-scheduler", "kube-controller-manager", "kubelet", "kube-proxy",
        ):  # fmt: skip
            self.children[name].kill()
        self.containers.close()
        self.cgroups.close()
        for name in ("kube-apiserver", "etcd"):
            self.children[name].kill()

    def collect_logs(self, out: Path) -> None:
        """Collects the logs of every part and every pod, to investigate a failed test."""
        out.mkdir(parents=True, exist_ok=True)
        for child in self.children.values():
            with contextlib.suppress(OSError):
                shutil.copy(child.log, out)
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(self.folder / "pod-logs", out / "pods", dirs_exist_ok=True)


def spark_operator() -> list[str]:
    """The command that starts the Spark operator."""
    return [
        "controller",
        "start",
        f"--namespaces={SPARK_NAMESPACES}",
        "--leader-election=false",
        "--enable-metrics=false",
        "--enable-ui-service=false",
        "--health-probe-bind-address=127.0.0.1:8281",
        "--metrics-bind-address=0",
        "--zap-log-level=info",
    ]


def spark_environment(kubeconfig: Path, host: str, port: str) -> dict[str, str]:
    """Environment with which it submits to this API server."""
    import pyspark

    home = Path(pyspark.__file__).parent
    return {
        "KUBECONFIG": str(kubeconfig),
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "SPARK_HOME": str(home),
        "PYTHONPATH": str(home.parent),
        "SPARK_SUBMIT_OPTS": f"-Xmx256m {SHORT_LIVED} {spark_archive.options()}",
        "NO_PROXY": "*",
    }


@contextlib.contextmanager
def started_cluster(images: Callable[[], Mapping[str, Path]]) -> Iterator[RealCluster]:
    """A started cluster, removed completely afterwards. `images` is called once the lock is held, since archives are made from the code as
    of then and others are removed. Raises PartMissing, NotStarted, NetworkRefused."""
    packages.needed()
    with one_at_a_time("node.lock", to_stderr):
        _remove_leftovers()
        folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
        try:
            with network("sparkonce") as net:
                cluster = RealCluster(folder, net)
                try:
                    cluster.start(images())
                    yield cluster
                except BaseException:
                    if kept := os.environ.get("SPARKONCE_CLUSTER_LOGS"):
                        cluster.collect_logs(Path(kept))
                    raise
                finally:
                    cluster.close()
        finally:
            remove(folder)


def _remove_leftovers() -> None:
    """Removes leftovers of killed runs (while this run holds the lock, no other one lives): containers by their cgroup, shims by the folder
    in their command, mounts, files."""
    Cgroups().close()
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ProcessLookupError):
                if str(folder).encode() in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), 9)
        remove(folder)


def main(wait: Callable[[], None]) -> int:
    began = time.monotonic()
    with started_cluster(archives) as cluster:
        print(f"up in {time.monotonic() - began:.1f} s: export KUBECONFIG={cluster.kubeconfig}", file=sys.stderr)
        wait()
    return 0
