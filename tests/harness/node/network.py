"""The node's network: a network namespace, connected to this machine's by one pair of interfaces.

Everything of the cluster runs in it, so its bridge, rules and service addresses belong to it alone, and deleting the namespace removes them
all. There is no route to the outside: no masquerading, no default route, no forwarded DNS query. Servers that tests start beside the
cluster (an object store, a proxy) listen at `HOST`, which pods reach.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.patience import completed

HOST, NODE = "10.88.76.1", "10.88.76.2"
"""The two ends of the pair: this machine's, and the cluster's. Kubernetes knows the node by the second."""
POD_NETWORK, BRIDGE = "10.88.77.0/24", "10.88.77.1"
SERVICE_NETWORK, DNS, KUBERNETES = "10.96.0.0/16", "10.96.0.10", "10.96.0.1"
TIMEOUT = 30.0
"""Seconds for one call of ip, which takes milliseconds."""


class NetworkRefused(Exception):
    """The kernel refuses, or something that exists already is in the way."""


@dataclass(frozen=True)
class Network:
    namespace: str

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs this one in the namespace. `ip netns exec` was rejected, since it mounts a new /sys without cgroups."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--", *command]

    def run(self, *command: str) -> str:
        """Output of the command. Raises NetworkRefused."""
        return _run(*self.inside(command))

    def cut(self, interface: str) -> None:
        """Cuts the network of a pod until it is healed."""
        self.run("ip", "link", "set", interface, "down")

    def heal(self, interface: str) -> None:
        """Restores the network of a pod, which may be gone by now together with its interface."""
        with contextlib.suppress(NetworkRefused):
            self.run("ip", "link", "set", interface, "up")


@contextlib.contextmanager
def network(namespace: str) -> Iterator[Network]:
    """The network, removed afterwards; leftovers of a killed run are removed before. Raises NetworkRefused."""
    made, outside = Network(namespace), f"{namespace}-h"
    _remove(namespace, outside)
    _run("ip", "netns", "add", namespace)
    try:
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "node0", "netns", namespace)
        _run("ip", "address", "add", f"{HOST}/30", "dev", outside)
        _run("ip", "link", "set", outside, "up")
        _run("ip", "route", "replace", POD_NETWORK, "via", NODE)
        for command in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "address", "add", f"{NODE}/30", "dev", "node0"],
            ["ip", "link", "set", "node0", "up"],
            ["sysctl", "-qw", "net.ipv4.ip_forward=1"],
            ["sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1"],
            # A packet for a service needs a route before its address is rewritten; without this one there is none.
            ["ip", "route", "add", SERVICE_NETWORK, "via", HOST],
        ):
            _run(*made.inside(command))
        yield made
    finally:
        _remove(namespace, outside)


def _remove(namespace: str, outside: str) -> None:
    for command in (["ip", "link", "delete", outside], ["ip", "netns", "delete", namespace]):
        completed(command, TIMEOUT)


def _run(*command: str) -> str:
    done = completed(command, TIMEOUT)
    if done.returncode != 0:
        raise NetworkRefused(f"'{' '.join(command)}' failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
