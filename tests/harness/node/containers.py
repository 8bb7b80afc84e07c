"""The node's containerd and its images.

Its store is kept outside the checkout and reused: importing an image of a gigabyte takes twenty seconds, and a cluster starts in five. What
a killed run left in it (containers, their mounts) is removed before the next start, and so are images that this run does not need. One
cluster at a time uses it; `harness.node.cluster` holds the lock.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.binaries import cache
from harness.child import Child
from harness.kube_api import Json
from harness.node.images import PAUSE
from harness.node.network import BRIDGE, POD_NETWORK, Network
from harness.node.packages import CNI

START_TIMEOUT = 60.0
"""Seconds; it takes a fraction of one on free cores."""
TIMEOUT = 600.0
"""Seconds to import an image of a gigabyte: twenty on free cores."""
_CONFIG = """version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_bin}"
    conf_dir = "{cni_conf}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""
_POD_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "ipMasq": False,  # nothing leaves the machine
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": POD_NETWORK, "gateway": BRIDGE}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}


class Containers:
    """containerd in the node's network."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.root, self.state = cache() / "containerd", folder / "containerd"
        self.socket = folder / "containerd.sock"
        cni = folder / "cni"
        cni.mkdir()
        plugin = _POD_NETWORK["plugins"][0]
        assert isinstance(plugin, dict)
        plugin["ipam"]["dataDir"] = str(folder / "addresses")
        (cni / "10-pods.conflist").write_text(json.dumps(_POD_NETWORK))
        config = folder / "containerd.toml"
        config.write_text(
            _CONFIG.format(root=self.root, state=self.state, socket=self.socket, pause=PAUSE, cni_bin=CNI, cni_conf=cni)
        )
        command = network.inside(["containerd", "--config", str(config)])
        self.child = Child("containerd", command, folder / "containerd.log")

    def start(self, images: Mapping[str, Path]) -> None:
        """Starts with exactly these images, by name; reads an archive only if the store has no image of that name, or a different one."""
        self.child.start()
        self.until_it_answers()
        self._forget_containers()
        self._take_in(images)

    def until_it_answers(self) -> None:
        """Waits until it answers, since a kubelet that connects before that exits."""
        self.child.until(lambda: self._ctr("version", check=False) is not None, START_TIMEOUT)

    def _take_in(self, images: Mapping[str, Path]) -> None:
        wanted = images
        stamps = self.root / "sparkonce-images.json"  # the archive that each image came from
        known: dict[str, str] = json.loads(stamps.read_text()) if stamps.exists() else {}
        there = set((self._ctr("images", "ls", "-q") or "").split())
        for name in sorted(there - set(wanted)):
            self._ctr("images", "rm", "--sync", name)
        for name, archive in wanted.items():
            stamp = f"{archive.resolve()} {archive.stat().st_size} {archive.stat().st_mtime_ns}"
            if name in there and known.get(name) == stamp:
                continue
            # At most twice: layers shared with an older image of this name may be garbage-collected during the import.
            if self._ctr("images", "import", str(archive), check=False) is None:
                self._ctr("images", "import", str(archive))
            assert name in (self._ctr("images", "ls", "-q") or "").split(), f"{archive} holds no image named {name}"
            known[name] = stamp
        stamps.write_text(json.dumps({name: stamp for name, stamp in known.items() if name in wanted}))

    def _forget_containers(self) -> None:
        for name in (self._ctr("tasks", "ls", "-q") or "").split():
            self._ctr("tasks", "kill", "--signal", "SIGKILL", name, check=False)
            self._ctr("tasks", "rm", "--force", name, check=False)
        for name in (self._ctr("containers", "ls", "-q") or "").split():
            self._ctr("containers", "rm", name, check=False)
        for name in (self._ctr("snapshots", "ls", check=False) or "").splitlines()[1:]:
            key, _, kind = name.split()[0], None, name.split()[-1]
            if kind == "Active":
                self._ctr("snapshots", "rm", key, check=False)

    def process(self, pod: Json) -> int:
        """Pid of a pod's first container, as seen by this machine."""
        return self.pids()[pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]]

    def pids(self) -> dict[str, int]:
        """Pids of running containers, by their ids."""
        lines = (self._ctr("tasks", "ls") or "").splitlines()[1:]
        return {line.split()[0]: int(line.split()[1]) for line in lines if line.split()[2] == "RUNNING"}

    def close(self) -> None:
        """Ends containerd and all of its containers."""
        if self.child.running:
            with contextlib.suppress(subprocess.SubprocessError):
                self._forget_containers()
        self.child.kill()

    def _ctr(self, *arguments: str, check: bool = True) -> str | None:
        """Output of ctr; None if it failed, which is not an error."""
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode != 0 and check:
            raise AssertionError(f"'{' '.join(command)}' failed: {done.stderr.strip()}")
        return done.stdout if done.returncode == 0 else None


def unmount_below(folder: Path) -> None:
    """Unmounts what a killed kubelet left mounted."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((each for each in points if each.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", point], capture_output=True, timeout=TIMEOUT, check=False)


def remove(folder: Path) -> None:
    unmount_below(folder)
    shutil.rmtree(folder, ignore_errors=True)
