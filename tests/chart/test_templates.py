"""The rendered chart: golden files, and properties of every set of values.

To accept an intended change, run `SPARKONCE_UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/chart/test_templates.py`; git's diff then
shows what a release changes.
"""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from harness.helm import (
    BACKUPS,
    CHART,
    NAMESPACE,
    PROXY,
    ROOT,
    component_of,
    everything,
    helm,
    notes,
    one,
    pod_of,
    rendered,
    template,
)
from sparkonce import settings
from sparkonce.cli.app import program
from sparkonce.controller.controller import ControllerSettings
from sparkonce.gateway.serving import FINISH
from sparkonce.model.record import gateway_audience
from sparkonce.observe.gateway_metrics import GatewayMetrics
from sparkonce.observe.metrics import GAUGES, Metrics
from sparkonce.observe.reply_metrics import ReplyMetrics
from sparkonce.sink.allowed import AllowedOutputs
from sparkonce.store.etcd.address import PASSWORD, parsed
from sparkonce.store.etcd.layout import Layout
from sparkonce.store.ledger import REPORT_BYTES

pytestmark = pytest.mark.operator

HERE = Path(__file__).parent
VALUES = sorted((HERE / "values").glob("*.yaml"))
UPDATE = "SPARKONCE_UPDATE_GOLDEN"
MADE = re.compile(r"((?:ca\.crt|tls\.crt|tls\.key|sparkonce\.dev/(?:ca|renew-after)):) \S.*")
"""Lines that hold what the chart generates when it cannot look it up in a cluster: certificates, keys, and values that depend on them."""
every_set = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


def has_proxy(values: Path) -> bool:
    return bool(yaml.safe_load(values.read_text()).get("proxy"))


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The spec of each pod, by name."""
    found = {}
    for each in objects:
        if each["kind"] in {"Deployment", "StatefulSet"} or each["kind"] == "Job":
            found[each["metadata"]["name"]] = each["spec"]["template"]["spec"]
        elif each["kind"] == "CronJob":
            found[each["metadata"]["name"]] = each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            found[each["metadata"]["name"]] = each["spec"]
    return found


# --- files ---


@every_set
def test_lint_finds_nothing(values: Path) -> None:
    """`helm lint --strict` accepts the chart with each set of values."""
    done = helm("lint", "--strict", CHART, "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr


@every_set
def test_the_rendered_objects_are_golden(values: Path) -> None:
    """A change to the rendered objects shows in a golden file; the CRD, which is long, has its own test."""
    done = template(values, sets=["crds.install=false"])
    assert done.returncode == 0, done.stderr
    golden = HERE / "golden" / values.name
    text = MADE.sub(r"\1 made anew at each rendering", done.stdout)
    if os.environ.get(UPDATE):
        golden.write_text(text)
    assert text == golden.read_text(), f"if this is meant, run these tests with {UPDATE}=1"


def test_the_charts_crd_is_the_repositorys() -> None:
    """The copy in the chart is the output of `make crd`; rendered, it differs only by its labels and the annotation that keeps it when the
    release is uninstalled."""
    ours = (ROOT / "crds" / "idempotentjobs.yaml").read_text()
    assert (CHART / "files" / "crds" / "idempotentjobs.yaml").read_text() == ours, (
        "copy crds/ to charts/sparkonce/files/crds/"
    )
    installed = one(rendered(VALUES[0]), "CustomResourceDefinition", "idempotentjobs.sparkonce.dev")
    assert installed["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert installed["metadata"].pop("labels")["app.kubernetes.io/managed-by"] == "Helm"
    assert installed == yaml.safe_load(ours)


def test_the_chart_has_the_packages_version() -> None:
    """The package, the chart and the default image tag have one version."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version[1], version[1])


def test_every_value_has_a_comment_or_a_commented_section() -> None:
    """Each top-level value and each component explains its purpose."""
    text = (CHART / "values.yaml").read_text()
    for name in yaml.safe_load(text):
        block = re.search(rf"(?:^#.*\n)?^{name}:.*\n(?:^ .*\n|^\n)*", text, re.MULTILINE)
        assert block is not None
        assert "#" in block[0] or name == "nameOverride", f"{name} has no comment"


# --- what runs ---


@every_set
def test_every_container_may_nothing(values: Path) -> None:
    """For any values: not root, a read-only root file system, no capabilities, no privilege escalation, seccomp."""
    running = pods(rendered(values))
    assert len(running) >= 3
    for name, spec in running.items():
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name


@every_set
def test_a_rollout_takes_no_replica_away(values: Path) -> None:
    """Operators, gateways and proxies are replaced only once their successors are ready, have a disruption budget, and are spread over
    nodes."""
    objects = rendered(values)
    for component in ("operator", "gateway", *(["proxy"] if has_proxy(values) else [])):
        deployment = one(objects, "Deployment", component)
        assert deployment["spec"]["replicas"] >= 2
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
        selector = deployment["spec"]["selector"]["matchLabels"]
        assert one(objects, "PodDisruptionBudget", component)["spec"]["selector"]["matchLabels"] == selector
        (spread,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == selector
        assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


@every_set
def test_the_grace_period_is_longer_than_a_hand_over(values: Path) -> None:
    """On SIGTERM an operator finishes its writes, then revokes its lease; a gateway drains, then finishes its requests; a proxy drains,
    then has 30 s for requests and 25 s for its ledger. The grace period before SIGKILL is longer than that."""
    objects = rendered(values)
    operator = one(objects, "Deployment", "operator")["spec"]["template"]["spec"]
    assert operator["terminationGracePeriodSeconds"] > 2 * (ControllerSettings().drain + 10)
    gateway = one(objects, "Deployment", "gateway")["spec"]["template"]["spec"]
    (drain,) = (each for each in gateway["containers"][0]["args"] if each.startswith("--drain-seconds="))
    assert gateway["terminationGracePeriodSeconds"] > float(drain.partition("=")[2]) + FINISH
    if has_proxy(values):
        proxy = one(objects, "Deployment", "proxy")["spec"]["template"]["spec"]
        (drain,) = (each for each in proxy["containers"][0]["args"] if each.startswith("--drain-seconds="))
        assert proxy["terminationGracePeriodSeconds"] > float(drain.partition("=")[2]) + 30 + 25


@every_set
def test_the_programs_know_what_they_are_told(values: Path) -> None:
    """Each argument is an option of the command line, and the store's own code can parse its address."""
    commands = typer.main.get_command(program()).commands  # type: ignore[attr-defined] # of a group
    secrets = {PASSWORD: "secret"}
    for name, spec in pods(rendered(values)).items():
        for container in spec["containers"]:
            if container["name"] not in {"operator", "gateway", "proxy"}:
                continue
            command, *options = container["args"]
            known = {each for parameter in commands[command].params for each in parameter.opts}
            assert {each.partition("=")[0] for each in options} <= known, (
                f"{name} has options that {command} does not know"
            )
            environment = {each["name"]: each for each in container["env"]}
            mounted = {each["mountPath"] for each in container["volumeMounts"]}
            if command == "proxy" and values.stem == "tenants":
                assert environment["SPARKONCE_STORE"]["valueFrom"]["secretKeyRef"] == {
                    "name": "answers",
                    "key": "address",
                }
            elif values.stem == "postgresql":
                assert environment["SPARKONCE_STORE"]["valueFrom"]["secretKeyRef"] == {"name": "ledger", "key": "url"}
                assert "/etc/sparkonce/postgresql" in mounted
            else:
                said = parsed(environment["SPARKONCE_STORE"]["value"], secrets if PASSWORD in environment else {})
                assert len(said["endpoints"]) in {1, 2, 3}
                assert said["tls"] is None or "/etc/sparkonce/etcd" in mounted
            assert Layout(environment["SPARKONCE_INSTALL"]["value"]).root.startswith("/sparkonce/v1/")


def test_the_operators_store_is_the_bundled_etcd() -> None:
    """Every member is an endpoint, and the store's quota is the members' own."""
    objects = rendered(HERE / "values" / "trio.yaml")
    etcd = one(objects, "StatefulSet", "etcd")
    service = etcd["spec"]["serviceName"]
    assert one(objects, "Service", "etcd")["metadata"]["name"] == service
    hosts = [f"{etcd['metadata']['name']}-{number}.{service}.{NAMESPACE}.svc" for number in range(3)]
    command = etcd["spec"]["template"]["spec"]["containers"][0]["command"]
    members = next(each for each in command if each.startswith("--initial-cluster="))
    assert re.findall(r"https://([^:,]+):2380", members) == hosts
    for component in ("operator", "gateway", "proxy"):
        environment = one(objects, "Deployment", component)["spec"]["template"]["spec"]["containers"][0]["env"]
        store = parsed(next(each["value"] for each in environment if each["name"] == "SPARKONCE_STORE"), {})
        assert store["endpoints"] == [f"{host}:2379" for host in hosts]
        assert f"--quota-backend-bytes={store['quota']}" in command


def test_a_ledger_in_postgresql_takes_etcds_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of an etcd is rendered, rights and policies are those without it; operator, gateway, proxy and `helm test` have the same
    settings, which the programs understand, and files that libpq accepts."""
    objects = rendered(HERE / "values" / "postgresql.yaml")
    assert not [each["metadata"]["name"] for each in objects if component_of(each) == "etcd"]
    (rules,) = (each["spec"]["groups"] for each in objects if each["kind"] == "PrometheusRule")
    assert not [rule for group in rules for rule in group["rules"] if "etcd" in rule.get("alert", "").lower()]
    secrets = [rule for each in objects if each["kind"] in {"Role", "ClusterRole"} for rule in each.get("rules") or []]
    assert not [rule for rule in secrets if "secrets" in rule["resources"]]
    told = [one(objects, "Deployment", each)["spec"]["template"]["spec"] for each in ("operator", "gateway", "proxy")]
    (test,) = (each["spec"] for each in objects if each["kind"] == "Pod")
    for spec in (*told, test):
        environment = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
        (volume,) = (each["secret"] for each in spec["volumes"] if each["name"] == "postgresql-tls")
        assert volume == {"secretName": "ledger-tls", "defaultMode": 0o440}
        folder = "/etc/sparkonce/postgresql"
        assert {name: value for name, value in environment.items() if name.startswith("PG")} == {
            "PGSSLMODE": "verify-full",
            "PGSSLROOTCERT": f"{folder}/ca.crt",
            "PGSSLCERT": f"{folder}/tls.crt",
            "PGSSLKEY": f"{folder}/tls.key",
        }
        for name in ("SPARKONCE_POSTGRES_POOL", "SPARKONCE_POSTGRES_TIMEOUT"):
            monkeypatch.setenv(name, str(environment[name]))
        assert (settings.postgres_pool(), settings.postgres_timeout()) == (12, 1.5)
    assert "whose address is in the Secret ledger." in notes(tmp_path, ["postgresql.existingSecret=ledger"])


def test_drivers_reach_the_gateways_service() -> None:
    """The gateway's address that the operator passes to drivers is that of the Service, with the right scheme."""
    for values, scheme in (("bundled", "https"), ("tenants", "https")):
        objects = rendered(HERE / "values" / f"{values}.yaml")
        service = one(objects, "Service", "gateway")
        (port,) = service["spec"]["ports"]
        told = f"--gateway-url={scheme}://{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}"
        assert told in one(objects, "Deployment", "operator")["spec"]["template"]["spec"]["containers"][0]["args"]
        assert (
            service["spec"]["selector"].items()
            <= one(objects, "Deployment", "gateway")["spec"]["template"]["metadata"]["labels"].items()
        )


def test_the_operator_reads_the_list_of_the_values() -> None:
    """The list of outputs is mounted where the option names it, can be read by the operator's own code, and rolls out the operators when it
    changes."""
    values = HERE / "values" / "tenants.yaml"
    objects = rendered(values)
    pod = one(objects, "Deployment", "operator")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert "--outputs-allowed=/etc/sparkonce/outputs/allowed.yaml" in container["args"]
    assert "--ambient-credentials" in container["args"]
    assert "/etc/sparkonce/outputs" in {each["mountPath"] for each in container["volumeMounts"]}
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "outputs")
    made = next(each for each in objects if each["metadata"]["name"] == volume["configMap"]["name"])
    listed = AllowedOutputs.of(yaml.safe_load(made["data"]["allowed.yaml"]))
    assert listed.prefixes("team-a") == ("s3://lake/team-a/", "iceberg:lake.team-a", "/tables/a")
    other = one(rendered(values, sets=["outputs.allowed[1].prefixes={/tables/b}"]), "Deployment", "operator")
    assert other["spec"]["template"]["metadata"]["annotations"] != pod["metadata"]["annotations"]
    plain = one(rendered(HERE / "values" / "bundled.yaml"), "Deployment", "operator")["spec"]["template"]
    assert not {"--outputs-allowed", "--ambient-credentials"} & {
        each.partition("=")[0] for each in plain["spec"]["containers"][0]["args"]
    }


@pytest.mark.parametrize("field", ["prefixes={ftp://x}", "prefixes={lake/x}", "namespaces=team-a", "namespace=Team_A"])
def test_a_list_that_the_operator_would_refuse_is_refused_before(field: str) -> None:
    """The schema refuses it, with the path of the value."""
    done = template(sets=["etcd.bundled.enabled=true", f"outputs.allowed[0].{field}"])
    assert done.returncode != 0
    assert "outputs" in done.stderr
    assert "allowed" in done.stderr


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([], "settle runs in the jobs' own namespaces settle."),
        (["gateway.enabled=false"], "settle, and report through the gateway: enable it, or give the list."),
        (["watch.namespaces={a}"], ""),
        (["operator.settle=operator"], ""),
        (["outputs.allowed[0].prefixes={s3://lake}"], ""),
    ],
)
def test_the_notes_say_who_settles_for_several_namespaces(sets: list[str], said: str, tmp_path: Path) -> None:
    """Without a list of outputs the operator settles nothing itself, and settle runs need a gateway."""
    text = notes(tmp_path, ["etcd.bundled.enabled=true", *sets])
    assert ("No list says which outputs" in text) is bool(said)
    assert said in text


def gateway_volumes(objects: list[dict[str, Any]], component: str) -> dict[str, str]:
    """The Secrets that this component mounts, by volume name."""
    spec = one(objects, "Deployment", component)["spec"]["template"]["spec"]
    return {each["name"]: each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}


def test_the_gateway_serves_tls_by_default() -> None:
    """Its certificate is for the Service's name, signed by a CA that drivers and `kubectl sparkonce` are given; the Secret does not contain
    the CA's key."""
    objects = rendered(HERE / "values" / "bundled.yaml")
    name = one(objects, "Service", "gateway")["metadata"]["name"]
    data = {key: base64.b64decode(text) for key, text in one(objects, "Secret", "gateway-tls")["data"].items()}
    assert set(data) == {"ca.crt", "tls.crt", "tls.key"}
    certificate, authority = (x509.load_pem_x509_certificate(data[key]) for key in ("tls.crt", "ca.crt"))
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"{name}.{NAMESPACE}.svc" in names.get_values_for_type(x509.DNSName)
    key = serialization.load_pem_private_key(data["tls.key"], None)
    assert key.public_key() == certificate.public_key()
    assert key.public_key() != authority.public_key()
    told = one(objects, "ConfigMap", "gateway")["data"]
    assert told["ca.crt"].encode() == data["ca.crt"]
    environment = one(objects, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]["env"]
    install = next(each["value"] for each in environment if each["name"] == "SPARKONCE_INSTALL")
    assert told["audience"] == gateway_audience(install)
    operator = one(objects, "Deployment", "operator")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--gateway-url={told['url']}" in operator
    assert "--gateway-ca=/etc/sparkonce/gateway/ca.crt" in operator
    assert gateway_volumes(objects, "gateway")["tls"] == gateway_volumes(objects, "operator")["gateway-ca"]


@pytest.mark.parametrize(
    ("sets", "kinds", "secret"),
    [
        (["gateway.tls.secretName=mine"], set(), "mine"),
        (["gateway.tls.secretName=mine", "gateway.tls.enabled=null", "gateway.tls.certManager=null"], set(), "mine"),
        (["gateway.tls.enabled=null", "gateway.tls.certManager=null"], {"Secret"}, "gateway-tls"),
        (["gateway.tls.certManager.enabled=true"], {"Issuer", "Certificate"}, "gateway-tls"),
        (
            ["gateway.tls.certManager.enabled=true", "gateway.tls.certManager.issuerRef.name=corporate"],
            {"Certificate"},
            "gateway-tls",
        ),
        (["gateway.tls.enabled=false"], set(), ""),
    ],
    ids=["own", "values of before", "values of before without TLS", "cert-manager", "its issuer", "plain"],
)
def test_where_the_certificate_comes_from(sets: list[str], kinds: set[str], secret: str) -> None:
    """If the values name a Secret it is used and none is made, also with the values of earlier charts; cert-manager issues the certificate
    if it is enabled."""
    objects = rendered(sets=["etcd.bundled.enabled=true", *sets])
    gateways = [each for each in objects if component_of(each) == "gateway"]
    assert {each["kind"] for each in gateways} & {"Secret", "Issuer", "Certificate"} == kinds
    mounted = gateway_volumes(objects, "gateway").get("tls", "")
    assert mounted.endswith(secret)
    assert bool(mounted) == bool(secret)
    assert one(objects, "ConfigMap", "gateway")["data"]["url"].startswith("https://" if secret else "http://")


NEW = (
    "acceptInsecure",
    "outputs",
    "etcd.bundled.tls",
    "etcd.bundled.networkPolicy",
    "gateway.tls.enabled",
    "gateway.tls.certManager",
    "gateway.acceptApiServerTokens",
    "gateway.maxReportBytes",
    "kubeflow",
    "etcd.bundled.backup",
    "image.registry",
    "etcd.bundled.image.registry",
    "commonLabels",
    "priorityClassName",
    "networkPolicy.prometheusPodSelector",
    "postgresql",
    "metrics.prometheusRule.runbookUrl",
    "metrics.prometheusRule.pendingSeconds",
    "metrics.prometheusRule.runningSeconds",
    "metrics.prometheusRule.backupSeconds",
    "proxy",
    "networkPolicy.proxyNamespaceSelector",
)
"""Values that earlier releases did not have: `helm upgrade --reuse-values` leaves them out."""


def test_values_of_before_mean_the_defaults() -> None:
    """Without the new values the objects are the same as with the defaults: what is not given means the secure choice."""
    sets = ["etcd.bundled.enabled=true", "etcd.bundled.replicas=3", "networkPolicy.enabled=true"]
    sets += ["metrics.serviceMonitor.enabled=true", "metrics.prometheusRule.enabled=true"]
    usual, before = (
        MADE.sub(r"\1 made", template(sets=[*sets, *(f"{name}=null" for name in more)]).stdout) for more in ((), NEW)
    )
    assert "etcd-client" in usual
    assert before == usual


def test_the_room_for_reports_is_a_value(tmp_path: Path) -> None:
    """`gateway.maxReportBytes` reaches the gateway without rounding; its default is the gateway's own. A release that sets the variable
    through `extraEnv`, as earlier charts required, keeps its value, which an option would override."""
    name = "--max-report-bytes="

    def told(*values: Path, sets: tuple[str, ...] = ()) -> list[str]:
        deployment = one(rendered(*values, sets=["etcd.bundled.enabled=true", *sets]), "Deployment", "gateway")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return [each for each in container["args"] if each.startswith(name)]

    assert told() == [f"{name}{REPORT_BYTES}"]
    assert told(sets=("gateway.maxReportBytes=1234567890",)) == [f"{name}1234567890"]
    own = tmp_path / "own.yaml"
    own.write_text(
        'gateway: {extraEnv: [{name: OTHER, value: a}, {name: SPARKONCE_MAX_REPORT_BYTES, value: "2097152"}]}'
    )
    assert told(own) == []
    for wrong in (
        "1048575",
        "1Mi",
        "1.5",
        "8589934593",
    ):  # less than one attempt may report, no number of bytes, more than etcd keeps
        done = template(sets=["etcd.bundled.enabled=true", f"gateway.maxReportBytes={wrong}"])
        assert done.returncode != 0, wrong
        assert "maxReportBytes" in done.stderr, wrong


def test_a_digest_takes_the_place_of_each_tag() -> None:
    """Containers, hooks and `helm test` of all components name the image by its digest alone, even if a tag is given."""
    operator, etcd = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
    sets = ["etcd.bundled.enabled=true", "etcd.bundled.replicas=3", "gateway.enabled=true", *PROXY]
    sets += [
        f"image.digest={operator}",
        "image.tag=v1",
        f"etcd.bundled.image.digest={etcd}",
        "etcd.bundled.image.tag=v1",
    ]
    pods = [
        each if each["kind"] == "Pod" else each["spec"]["template"]
        for each in rendered(sets=sets)
        if each["kind"] in {"Pod", "Job", "Deployment", "StatefulSet"}
    ]
    images = {
        box["image"] for pod in pods for part in ("initContainers", "containers") for box in pod["spec"].get(part, [])
    }
    assert images == {f"sparkonce/operator@{operator}", f"sparkonce/etcd@{etcd}"}


def test_a_spark_operator_inside_is_for_the_chart_of_a_release() -> None:
    """A checkout has no chart of kubeflow's: to ask for it is refused with what to do; values of kubeflow's chart alone do no harm. What is
    watched must be what it runs, and a misspelt value is refused."""
    bundled = ["etcd.bundled.enabled=true"]
    refused = template(sets=[*bundled, "kubeflow.enabled=true"])
    assert refused.returncode != 0
    assert "kubeflow.enabled=true needs the chart of a release" in refused.stderr
    assert template(sets=[*bundled, "kubeflow.controller.replicas=2"]).returncode == 0
    apart = [*bundled, "kubeflow.enabled=true", "watch.namespaces={a,b}", "kubeflow.spark.jobNamespaces={a}"]
    assert "kubeflow.spark.jobNamespaces lacks b, which is watched" in template(sets=apart).stderr
    everywhere = [*bundled, "kubeflow.enabled=true", "kubeflow.spark.jobNamespaces={a}"]
    assert (
        'kubeflow.spark.jobNamespaces lacks "" (all namespaces), which is watched' in template(sets=everywhere).stderr
    )
    typo = template(sets=[*bundled, "kubeflow.enbaled=true"])
    assert "at '/kubeflow': additional properties 'enbaled' not allowed" in typo.stderr


def test_backups_are_kept_somewhere() -> None:
    """On a claim of the chart's, which outlives the release, on one of the user's, or in a bucket alone; nowhere is refused."""
    sets = ["etcd.bundled.enabled=true", "etcd.bundled.backup.enabled=true"]
    claim = one(rendered(sets=sets), "PersistentVolumeClaim", "etcd-backup")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"

    def volume(*more: str) -> dict[str, Any]:
        objects = rendered(sets=[*sets, *more])
        (found,) = (
            each for each in pods(objects)["spark-sparkonce-etcd-backup"]["volumes"] if each["name"] == "backup"
        )
        assert bool([each for each in objects if each["kind"] == "PersistentVolumeClaim"]) is not bool(more)
        return dict(found)

    assert volume()["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    assert volume("etcd.bundled.backup.persistence.existingClaim=mine")["persistentVolumeClaim"] == {
        "claimName": "mine"
    }
    bucket = ("etcd.bundled.backup.persistence.enabled=false", "etcd.bundled.backup.bucket=s3://backups/ledger")
    assert volume(*bucket)["emptyDir"] == {}
    nowhere = template(sets=[*sets, bucket[0]])
    assert nowhere.returncode != 0
    assert "keeps its snapshots nowhere" in nowhere.stderr


@pytest.mark.parametrize("cert_manager", [False, True])
def test_common_labels_are_on_everything_and_in_no_selector(cert_manager: bool) -> None:
    """Each object and pod has them beside its own labels; a component's labels win over them. Selectors and volume claims are unchanged."""
    sets = everything()
    if cert_manager:
        sets += ["etcd.bundled.tls.certManager.enabled=true", "gateway.tls.certManager.enabled=true"]
    own = "operator.podLabels.team=ledger"
    plain = rendered(sets=sets)
    labelled = rendered(sets=[*sets, "commonLabels.team=platform", "commonLabels.cost-centre=c-12", own])
    assert len(plain) == len(labelled) > 30
    for before, after in zip(plain, labelled, strict=True):
        title = f"{after['kind']} {after['metadata']['name']}"
        pods = [(before, after)]
        if (was := pod_of(before)) not in (None, before) and (made := pod_of(after)) is not None:
            pods.append((was, made))
        for number, (was, made) in enumerate(pods):
            team = "ledger" if title == "Deployment spark-sparkonce-operator" and number else "platform"
            labels = {**was["metadata"].get("labels", {}), "team": team, "cost-centre": "c-12"}
            assert made["metadata"]["labels"] == labels, title
        if after["kind"] in {"Deployment", "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"}:
            assert after["spec"].get("selector") == before["spec"].get("selector"), title
        if after["kind"] == "StatefulSet":
            assert after["spec"]["volumeClaimTemplates"] == before["spec"]["volumeClaimTemplates"], title


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("app\\.kubernetes\\.io/component", "mine"),
        ("helm\\.sh/chart", "mine"),
        ("rbac\\.authorization\\.k8s\\.io/aggregate-to-view", "yes"),
        ("team", "no spaces"),
    ],
)
def test_common_labels_cannot_replace_the_charts_own(label: str, value: str) -> None:
    """Selectors and Kubernetes' aggregated roles depend on these: refused with the path, as is an invalid label value."""
    done = template(sets=["etcd.bundled.enabled=true", f"commonLabels.{label}={value}"])
    assert done.returncode != 0
    assert "at '/commonLabels" in done.stderr


def images_of(objects: list[dict[str, Any]]) -> set[str]:
    return {box["image"] for pod in map(pod_of, objects) if pod is not None for box in pod["spec"]["containers"]}


def test_a_registry_is_in_front_of_every_image() -> None:
    """`image.registry` applies to the operator, the gateway, the proxy, etcd, the hooks and `helm test`; etcd may have its own; a digest is
    kept."""
    sets = [
        "etcd.bundled.enabled=true",
        "etcd.bundled.replicas=3",
        "image.registry=mirror.example.com:5000/spark",
        *PROXY,
    ]
    mirror, version = "mirror.example.com:5000/spark", yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    operator, etcd = f"{mirror}/sparkonce/operator:{version}", f"{mirror}/sparkonce/etcd:{version}"
    assert images_of(rendered(sets=sets)) == {operator, etcd}
    digest = f"sha256:{'a' * 64}"
    more = ["etcd.bundled.image.registry=other.example.com", f"etcd.bundled.image.digest={digest}"]
    assert images_of(rendered(sets=[*sets, *more])) == {operator, f"other.example.com/sparkonce/etcd@{digest}"}
    for wrong in ("https://mirror.example.com", "mirror.example.com/"):
        done = template(sets=["etcd.bundled.enabled=true", f"image.registry={wrong}"])
        assert "at '/image/registry'" in done.stderr, wrong


def test_every_pod_pulls_with_the_secrets() -> None:
    """Workloads, the hook Job before an upgrade and `helm test` all have the pull secrets of a private registry."""
    for pod in filter(None, map(pod_of, rendered(sets=[*everything(), "imagePullSecrets[0].name=login"]))):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "login"}], pod["metadata"]


def test_a_components_priority_wins_over_the_releases() -> None:
    """`priorityClassName` applies to the operator, the gateway, the proxy and etcd unless they set their own; by default there is none."""

    def classes(*sets: str) -> dict[str, str | None]:
        objects = rendered(sets=["etcd.bundled.enabled=true", *PROXY, *sets])
        kinds = {"Deployment", "StatefulSet"}
        return {
            component_of(each): each["spec"]["template"]["spec"].get("priorityClassName")
            for each in objects
            if each["kind"] in kinds
        }

    assert classes() == {"operator": None, "gateway": None, "proxy": None, "etcd": None}
    own = ("etcd.bundled.priorityClassName=higher", "proxy.priorityClassName=low")
    assert classes("priorityClassName=high", *own) == {
        "operator": "high", "gateway": "high", "proxy": "low", "etcd": "higher",
    }  # fmt: skip


# --- what watches ---


def test_rules_and_dashboards_are_the_files() -> None:
    """The PrometheusRule has the groups of rules/, the ConfigMaps have each dashboard and Grafana's label; neither exists unless
    enabled."""
    sets = ["etcd.bundled.enabled=true", BACKUPS, *PROXY]
    sets += ["metrics.prometheusRule.enabled=true", "metrics.grafanaDashboard.enabled=true"]
    objects = rendered(sets=sets)
    groups = [
        group
        for path in sorted((CHART / "rules").glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]
    installed = one(objects, "PrometheusRule", "sparkonce")["spec"]["groups"]
    names = [[rule.get("alert") or rule["record"] for rule in group["rules"]] for group in groups]
    assert [[rule.get("alert") or rule["record"] for rule in group["rules"]] for group in installed] == names
    dashboards = {path.name: json.loads(path.read_text()) for path in (CHART / "dashboards").glob("*.json")}
    maps = [
        each for each in objects if each["kind"] == "ConfigMap" and "grafana_dashboard" in each["metadata"]["labels"]
    ]
    assert {name: json.loads(text) for each in maps for name, text in each["data"].items()} == dashboards
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in maps} == {"1"}
    usual = rendered(sets=sets[:1])
    assert not {each["kind"] for each in usual} & {"PrometheusRule", "ServiceMonitor"}
    assert not [each for each in usual if "grafana_dashboard" in each["metadata"].get("labels", {})]


def test_every_metric_that_is_asked_for_exists() -> None:
    """Alerts and panels use only sparkonce metrics that operators, gateways and proxies have, so that a renamed metric fails here and is
    not silent."""
    ours: set[str] = {f"sparkonce_{name}" for name in (*GAUGES, "jobs", "oldest_job_seconds")}
    for registry in (Metrics().registry, GatewayMetrics(announced=lambda: True).registry, ReplyMetrics().registry):
        for metric in registry.collect():
            endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(metric.type, [""])
            ours |= {metric.name + ending for ending in endings}
    files = [*(CHART / "rules").glob("*.yaml"), *(CHART / "dashboards").glob("*.json")]
    asked = {name for path in files for name in re.findall(r"\bsparkonce_[a-z_]+\b", path.read_text())}
    assert asked
    assert asked <= ours, f"nobody has {', '.join(sorted(asked - ours))}"


# --- refused values ---


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([], "set etcd.external.endpoints to yours, or etcd.bundled.enabled=true"),
        (["etcd.bundled.enabled=true", "etcd.external.endpoints={a:2379}"], "both set"),
        (["etcd.bundled.enabled=true", "postgresql.existingSecret=ledger"], "leave etcd.bundled.enabled and"),
        (["postgresql.existingSecret=ledger", "postgresql.tls.mode=require"], "set postgresql.tls.mode=verify-full"),
        (["postgresql.existingSecret=l", "postgresql.tls.clientCertificate=true"], "postgresql.tls.secretName"),
        (["etcd.external.endpoints={a:2379}"], "set etcd.external.tls.enabled=true"),
        (["etcd.external.endpoints={a:2379}", "etcd.external.tls.enabled=true"], "set etcd.external.tls.clientCert"),
        (["etcd.bundled.enabled=true", "etcd.bundled.tls.enabled=false"], "or set acceptInsecure=true"),
        (
            ["etcd.external.endpoints={a:2379}", "etcd.external.auth.user=me", "acceptInsecure=true"],
            "etcd.external.auth.passwordSecret.name",
        ),
        (
            [
                "etcd.external.endpoints={a:2379}",
                "etcd.external.tls.enabled=true",
                "etcd.external.tls.clientCertificate=true",
            ],
            "etcd.external.tls.secretName",
        ),
    ],
)
def test_a_decision_that_is_missing_is_asked_for(sets: list[str], said: str) -> None:
    """Incomplete or contradictory values are refused with a sentence that names the value to set."""
    done = template(sets=sets)
    assert done.returncode != 0
    assert said in done.stderr
