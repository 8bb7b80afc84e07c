"""All of kube-score's checks on the rendered chart, for the values of the tests and of docs/helm.md.

A finding that the chart keeps on purpose is a row of `EXCEPTIONS`. A row that is no longer needed fails the test, too. Annotations that
would silence kube-score inside the templates have no effect here, so the table is the only place for exceptions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.binaries import KUBE
from harness.helm import NAMESPACE, RELEASE, Release, documented
from harness.patience import completed
from harness.store_parts import KUBE_SCORE, program

VALUES = Path(__file__).parent / "values"
RELEASES = {
    **{path.stem: Release(values=path.read_text()) for path in sorted(VALUES.glob("*.yaml"))},
    **documented(),
}
OK = 10
"""kube-score's grade of an object that passes a check; lower are almost ok, warning and critical."""
TIMEOUT = 60.0
"""Seconds; kube-score takes one on a free core."""


@dataclass(frozen=True, order=True)
class Finding:
    release: str
    """The name of the values: a key of `RELEASES`."""
    object: str
    """Its kind, and its name without the release's."""
    check: str
    """As in `kube-score list`."""
    says: str


@dataclass(frozen=True)
class Kept:
    """Findings of one check on these objects that the chart keeps, all for the same reason."""

    check: str
    objects: Sequence[str]
    says: Sequence[str]
    reason: str
    releases: Sequence[str] = tuple(RELEASES)
    """Applies with these values only."""

    def has(self, found: Finding) -> bool:
        return (
            found.check == self.check
            and found.object in self.objects
            and found.says in self.says
            and found.release in self.releases
        )


OPERATOR, GATEWAY, PROXY, ETCD = "Deployment operator", "Deployment gateway", "Deployment proxy", "StatefulSet etcd"
PEERS, TEST, BACKUP = "Job etcd-peers", "Pod test", "CronJob etcd-backup"
SERVE = (OPERATOR, GATEWAY, PROXY, ETCD)
ALL = (*SERVE, PEERS, TEST, BACKUP)

NO_CPU_LIMIT = "a throttled process misses its keepalives or elections and loses its lease: CPU is shared by requests"
MEMORY = (
    "the request is the usual use, the limit is for lists of all keys or a large database; one-shot pods start anywhere"
)
NO_POLICY = "networkPolicy.enabled is the platform's decision: a policy may cut clients that the chart cannot know"
DISK = "the limit bounds logs and /tmp, the request is their usual size"
EXCEPTIONS = (
    Kept("container-resources", SERVE, ["CPU limit is not set"], NO_CPU_LIMIT),
    Kept("container-cpu-requests-equal-limits", SERVE, ["CPU requests does not match limits"], NO_CPU_LIMIT),
    Kept("container-resource-requests-equal-limits", SERVE, ["CPU requests does not match limits"], NO_CPU_LIMIT),
    Kept(
        "container-cpu-requests-equal-limits", (PEERS, TEST, BACKUP), ["CPU requests does not match limits"],
        "it runs for seconds and needs no CPU of its own; the limit is for a ResourceQuota that asks for one",
    ),
    Kept(
        "container-resource-requests-equal-limits", (PEERS, TEST, BACKUP), ["CPU requests does not match limits"],
        "it runs for seconds and needs no CPU of its own; the limit is for a ResourceQuota that asks for one",
    ),
    Kept("container-memory-requests-equal-limits", ALL, ["Memory requests does not match limits"], MEMORY),
    Kept("container-resource-requests-equal-limits", ALL, ["Memory requests does not match limits"], MEMORY),
    Kept(
        "container-ephemeral-storage-request-and-limit", [ETCD], ["Ephemeral Storage limit is not set"],
        "without persistence the ledger itself is ephemeral storage, and a limit would evict the pod with it",
    ),
    Kept(
        "container-ephemeral-storage-request-equals-limit", (OPERATOR, GATEWAY, PROXY, PEERS, TEST, BACKUP),
        ["Ephemeral Storage request does not match limit"], DISK,
    ),
    Kept(
        "container-image-pull-policy", ALL, ["ImagePullPolicy is not set to Always"],
        "a tag is a version and a digest cannot change; a pod starts from the node's copy while the registry is away",
    ),
    Kept(
        "deployment-has-host-podantiaffinity", (OPERATOR, GATEWAY, PROXY), ["Deployment does not have a host podAntiAffinity set"],
        "topologySpreadConstraints spread the replicas over nodes, and count only pods of the same revision",
    ),
    Kept(
        "statefulset-has-host-podantiaffinity", [ETCD], ["StatefulSet does not have a host podAntiAffinity set"],
        "topologySpreadConstraints spread the members over nodes; a cluster with fewer nodes still gets all of them", ["trio"],
    ),
    Kept(
        "pod-networkpolicy", (OPERATOR, GATEWAY, PROXY, TEST), ["The pod does not have a matching NetworkPolicy"], NO_POLICY,
        ["bundled", "to try it", "httpRoute", "ingress", "proxy"],
    ),
    Kept(
        "pod-networkpolicy", (OPERATOR, GATEWAY, PROXY, TEST), ["The pod does not have a matching egress NetworkPolicy"],
        "outputs, upstreams, the API server and the ledger can be anywhere, and a NetworkPolicy cannot name the API server",
        ["tenants", "trio", "platform", "postgresql"],
    ),
    Kept(
        "pod-networkpolicy", [PEERS], ["The pod does not have a matching egress NetworkPolicy"],
        "it has the label of the test pod, whose policy it shares", ["trio"],
    ),
    Kept(
        "pod-networkpolicy", [BACKUP], ["The pod does not have a matching egress NetworkPolicy"],
        "it reaches the members and a bucket, which can be anywhere", ["trio"],
    ),
    Kept(
        "pod-networkpolicy", [ETCD], ["The pod does not have a matching egress NetworkPolicy"],
        "members find each other by DNS, whose pods and ports differ by cluster: a wrong rule would end the quorum",
        ["bundled", "trio", "to try it", "httpRoute", "ingress", "proxy"],
    ),
    Kept(
        "container-security-context-user-group-id", [OPERATOR],
        ["The container is running with a low user ID", "The container running with a low group ID"],
        "these values choose the user of the Spark image, whose files are on the shared volume", ["tenants"],
    ),
)  # fmt: skip


def findings(name: str, folder: Path) -> Iterator[Finding]:
    """All findings of kube-score on the release `name`."""
    made = RELEASES[name].template(folder)
    assert made.returncode == 0, made.stderr
    file = folder / "rendered.yaml"
    file.write_text(made.stdout)
    major, minor, _ = KUBE.version.split(".", 2)
    command = [str(program(KUBE_SCORE)), "score", "--all-default-optional", "--disable-ignore-checks-annotations"]
    command += [
        "--disable-optional-checks-annotations",
        f"--kubernetes-version={major}.{minor}",
        "--output-format=json",
    ]
    done = completed([*command, file], TIMEOUT)
    scored: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(scored) >= 8, f"kube-score looked at {len(scored)} objects: {done.stderr}"
    for each in scored:
        kind = each["type_meta"]["kind"]
        title = f"{kind} {each['object_meta']['name'].removeprefix(f'{RELEASE}-sparkonce-')}"
        assert each["object_meta"]["namespace"] == NAMESPACE, title
        for check in each["checks"]:
            if check["grade"] < OK and not check["skipped"]:
                for comment in check["comments"]:
                    yield Finding(name, title, check["check"]["id"], comment["summary"])


@pytest.mark.parametrize("name", list(RELEASES))
def test_the_linter_finds_what_is_kept_on_purpose_and_nothing_else(name: str, tmp_path: Path) -> None:
    """Every finding of kube-score has a reason in the table, and every row for these values has a finding."""
    found = set(findings(name, tmp_path))
    unexplained = sorted(each for each in found if not any(kept.has(each) for kept in EXCEPTIONS))
    assert not unexplained, "fix these or give a reason in EXCEPTIONS:\n" + "\n".join(map(str, unexplained))
    workloads = {each.object for each in found}  # has every workload: nothing sets ImagePullPolicy to Always
    unused = [
        (kept.check, target, says)
        for kept in EXCEPTIONS
        if name in kept.releases
        for target in kept.objects
        if target in workloads
        for says in kept.says
        if not any(each.check == kept.check and each.object == target and each.says == says for each in found)
    ]
    assert not unused, f"kube-score finds nothing of this any more, take it out of EXCEPTIONS: {unused}"


def test_every_exception_is_for_one_finding_and_has_a_reason() -> None:
    """No finding has two rows, every row is about an object of the chart, and each reason is long enough to be a sentence."""
    rows = [
        (release, target, kept.check, says)
        for kept in EXCEPTIONS
        for release in kept.releases
        for target in kept.objects
        for says in kept.says
    ]
    assert len(set(rows)) == len(rows)
    assert {target for _, target, _, _ in rows} == set(ALL)
    assert all(len(kept.reason.split()) >= 8 for kept in EXCEPTIONS)
