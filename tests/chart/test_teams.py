"""What the chart gives to the people of a namespace: accounts for the gateway, and roles that hold what each command needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chart.test_templates import VALUES
from harness.helm import NAMESPACE, RELEASE, notes, one, rendered, template
from harness.plugin_rights import ROLES, documented_commands
from sparkonce.cli.kubectl.release import ACCOUNT, READER
from sparkonce.gateway.keys import RIGHTS

pytestmark = pytest.mark.operator

CLUSTER = f"{NAMESPACE}-{RELEASE}-sparkonce"
TEAM = ["etcd.bundled.enabled=true", "rbac.teams[0].namespace=team-a"]
LEADS = ["rbac.teams[0].admins[0].kind=Group", "rbac.teams[0].admins[0].name=leads"]


def rules(role: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    """Group, resource, name and verb."""
    return {
        (group, resource, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def aggregated(objects: Iterable[dict[str, Any]], role: str) -> set[tuple[str, str, str, str]]:
    """What Kubernetes' controller adds to its own role; `admin` has what `edit` has, and that what `view` has."""
    below = ROLES[: ROLES.index(role) + 1]
    labels = {f"rbac.authorization.k8s.io/aggregate-to-{each}" for each in below}
    return {
        rule
        for each in objects
        if each["kind"] == "ClusterRole" and any(each["metadata"]["labels"].get(name) == "true" for name in labels)
        for rule in rules(each)
    }


def test_each_documented_command_is_allowed_from_its_role_on() -> None:
    """The rights of docs/kubernetes-cli.md are in the role that it names, and not in the one below; no role has a right on a subresource
    that no route asks for."""
    objects = rendered(sets=TEAM[:1])
    held = {
        role: {(resource, verb) for group, resource, _, verb in aggregated(objects, role) if group == "sparkonce.dev"}
        for role in ROLES
    }
    for command in documented_commands():
        needed = {(right.resource, right.verb) for right in command.rights}
        if command.by_file:
            needed = {("idempotentjobs", verb) for verb in ("get", "create", "patch")}
        for role in ROLES:
            assert (needed <= held[role]) is command.is_for(role), (command.text, role)
    known = {right.resource for right in RIGHTS.values()} | {"idempotentjobs/status"}
    assert {resource for rights in held.values() for resource, _ in rights} == known


def test_a_role_holds_what_the_plugin_asks_for() -> None:
    """`view` and `edit` of the chart suffice by themselves: tokens of the account that stands for them, of no other, and a driver's log."""
    objects = rendered(sets=[*TEAM[:1], "rbac.aggregateToUserRoles=false", *TEAM[1:]])
    for role, account in (("view", READER), ("edit", ACCOUNT)):
        found = rules(one(objects, "ClusterRole", f"{CLUSTER}-{role}"))
        assert {each for each in found if each[0] != "sparkonce.dev"} == {
            ("", "serviceaccounts/token", account, "create"),
            ("", "pods", "", "get"),
            ("", "pods/log", "", "get"),
        }
        assert not any("aggregate" in label for label in one(objects, "ClusterRole", role)["metadata"]["labels"])


def test_a_team_gets_the_accounts_that_the_plugin_uses() -> None:
    """One for each role, bound to it in the team's namespace alone; no pod gets their tokens by itself."""
    objects = rendered(sets=TEAM)
    for account, role in ((ACCOUNT, "edit"), (READER, "view")):
        made = one(objects, "ServiceAccount", account)
        assert (made["metadata"]["namespace"], made["automountServiceAccountToken"]) == ("team-a", False)
        bound = one(objects, "RoleBinding", f"{RELEASE}-sparkonce-{role}")
        assert bound["metadata"]["namespace"] == "team-a"
        assert bound["roleRef"]["name"] == f"{CLUSTER}-{role}"
        assert bound["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "team-a"}]
    assert one(objects, "ClusterRole", f"{CLUSTER}-admin")
    assert not [each for each in objects if each["metadata"]["name"].endswith(("-admin-edit", "-admin-admin"))]


def test_who_may_forget_is_outside_the_teams_namespace() -> None:
    """Everyone with `edit` makes tokens of each account of the namespace: the administrators' is in the release's, where its tokens are for
    the subjects that are named, and for that account alone."""
    objects = rendered(sets=[*TEAM, *LEADS])
    account = one(objects, "ServiceAccount", "team-a-admin")
    assert account["metadata"]["namespace"] == NAMESPACE
    for role in ("edit", "admin"):
        bound = one(objects, "RoleBinding", f"sparkonce-admin-{role}")
        assert (bound["metadata"]["namespace"], bound["roleRef"]["name"]) == ("team-a", f"{CLUSTER}-{role}")
        assert bound["subjects"] == [{"kind": "ServiceAccount", "name": "team-a-admin", "namespace": NAMESPACE}]
    tokens = one(objects, "Role", "team-a-admin")
    assert rules(tokens) == {("", "serviceaccounts/token", "team-a-admin", "create")}
    bound = one(objects, "RoleBinding", "team-a-admin")
    assert tokens["metadata"]["namespace"] == bound["metadata"]["namespace"] == NAMESPACE
    assert bound["subjects"] == [{"kind": "Group", "name": "leads", "apiGroup": "rbac.authorization.k8s.io"}]


def test_a_port_forward_is_for_those_who_are_named() -> None:
    """Without subjects there is no such role; a service account among them needs its namespace."""
    assert not [each for each in rendered(sets=TEAM) if each["metadata"]["name"].endswith("-forward")]
    named = ["rbac.portForward[0].kind=ServiceAccount", "rbac.portForward[0].name=ci"]
    done = template(sets=[*TEAM, *named])
    assert "the service account ci among the subjects of rbac needs its namespace" in done.stderr
    objects = rendered(sets=[*TEAM, *named, "rbac.portForward[0].namespace=build"])
    role = one(objects, "Role", "gateway-forward")
    assert role["metadata"]["namespace"] == NAMESPACE
    assert rules(role) == {
        ("", "services", f"{RELEASE}-sparkonce-gateway", "get"),
        ("", "pods", "", "get"),
        ("", "pods", "", "list"),
        ("", "pods/portforward", "", "get"),
        ("", "pods/portforward", "", "create"),
    }
    assert one(objects, "RoleBinding", "gateway-forward")["subjects"] == [
        {"kind": "ServiceAccount", "name": "ci", "namespace": "build"}
    ]


def test_values_of_the_chart_before_give_no_accounts() -> None:
    """Nobody is given anything that is not asked for; with `rbac.create: false` nothing is made at all."""
    for values in VALUES:
        accounts = {each["metadata"]["name"] for each in rendered(values) if each["kind"] == "ServiceAccount"}
        assert not accounts & {ACCOUNT, READER}
    objects = rendered(sets=[*TEAM, *LEADS, "rbac.create=false"])
    assert not [each for each in objects if each["kind"] in {"Role", "ClusterRole", "RoleBinding"}]


def test_the_notes_say_how_a_team_calls_the_gateway(tmp_path: Path) -> None:
    """With the release's namespace, the Service where its name is not the usual one, and the first team."""
    told = notes(tmp_path, TEAM)
    assert f"export SPARKONCE_GATEWAY_NAMESPACE={NAMESPACE}" in told
    assert f"export SPARKONCE_GATEWAY_SERVICE={RELEASE}-sparkonce-gateway" in told
    assert "kubectl sparkonce list -n team-a" in told
