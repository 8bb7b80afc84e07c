"""The proxy in the chart: what its values tell the program, where its ledger is, what watches it, and which values are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.helm import (
    CHART,
    NAMESPACE,
    PROXY,
    RELEASE,
    Release,
    component_of,
    documented,
    notes,
    one,
    rendered,
    template,
)

pytestmark = pytest.mark.operator

HERE = Path(__file__).parent
BASE = ["etcd.bundled.enabled=true", *PROXY]
NAME = f"{RELEASE}-sparkonce-proxy"
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())["proxy"]


def spec_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The spec of the proxy's pods."""
    return dict(one(objects, "Deployment", NAME)["spec"]["template"]["spec"])


def arguments(objects: list[dict[str, Any]]) -> list[str]:
    (container,) = spec_of(objects)["containers"]
    return list(container["args"])


def secrets(spec: dict[str, Any]) -> dict[str, str]:
    """The Secrets that a pod mounts, by the path of the mount."""
    (container,) = spec["containers"]
    volumes = {each["name"]: each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}
    return {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"] if each["name"] in volumes}


def test_without_the_value_there_is_no_proxy() -> None:
    """Off by default: no object, no peer of the ledger and no argument of `helm test` is about a proxy."""
    done = template(sets=["etcd.bundled.enabled=true", "networkPolicy.enabled=true", "crds.install=false"])
    assert done.returncode == 0, done.stderr
    assert "proxy" not in done.stdout
    assert {component_of(each) for each in rendered(sets=BASE)} >= {"proxy"}


def test_a_proxy_is_told_what_the_values_say() -> None:
    """With the defaults it has the options of any service; each value becomes its option, and an option that is not set is left out."""
    plain = arguments(rendered(sets=BASE))
    assert plain == [
        "proxy",
        "--upstream=http://orders:3000",
        "--service=platform/spark-sparkonce-proxy",
        "--listen=0.0.0.0:8080",
        "--http=0.0.0.0:8081",
        "--timeout=60",
        "--drain-seconds=5",
        "--log-format=json",
    ]
    filled = arguments(rendered(HERE / "values" / "tenants.yaml"))
    assert filled == [
        "proxy",
        "--upstream=https://orders.example.com",
        "--service=platform/spark-sparkonce-proxy",
        "--listen=0.0.0.0:8443",
        "--http=0.0.0.0:8081",
        "--methods=POST,PUT",
        "--required",
        "--rerun",
        "--lifetime=0.5",
        "--timeout=20",
        "--advertise=/idempotency",
        "--upstream-ca=/etc/sparkonce/upstream-ca/root.pem",
        "--tls-cert=/etc/sparkonce/tls/tls.crt",
        "--tls-key=/etc/sparkonce/tls/tls.key",
        "--drain-seconds=10",
        "--log-format=json",
    ]
    assert "--profile=iceberg" in arguments(rendered(HERE / "values" / "trio.yaml"))


def test_values_that_are_not_given_mean_the_defaults() -> None:
    """`helm upgrade --reuse-values --set proxy.enabled=true,proxy.upstream=...` after a chart without a proxy renders what a fresh
    installation does; false and zero are kept."""
    # Without the certificates that Helm would draw anew for each rendering.
    sets = [
        "etcd.bundled.enabled=true",
        "etcd.bundled.tls.enabled=false",
        "acceptInsecure=true",
        "gateway.tls.secretName=mine",
        *PROXY,
    ]
    given = {each.partition("=")[0].partition(".")[2] for each in PROXY}
    missing = [f"proxy.{name}=null" for name in DEFAULTS if name not in given]
    assert len(missing) > 20
    before, usual = (template(sets=[*sets, "crds.install=false", *more]).stdout for more in (missing, []))
    assert NAME in usual
    assert before == usual
    objects = rendered(sets=[*sets, "proxy.podDisruptionBudget=false", "proxy.drainSeconds=0"])
    assert "--drain-seconds=0" in arguments(objects)
    assert NAME not in {each["metadata"]["name"] for each in objects if each["kind"] == "PodDisruptionBudget"}


def test_clients_and_probes_have_a_port_each() -> None:
    """The Service leads to the port of requests, and to that of metrics, at which the pods are probed in plain text, also with TLS."""
    for values, scheme in (("trio", "http"), ("tenants", "https")):
        objects = rendered(HERE / "values" / f"{values}.yaml")
        (container,) = spec_of(objects)["containers"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        said = dict(each.split("=") for each in container["args"] if each.startswith(("--listen=", "--http=")))
        assert said == {"--listen": f"0.0.0.0:{ports['http']}", "--http": f"0.0.0.0:{ports['metrics']}"}
        served = {
            each["name"]: (each["port"], each["targetPort"]) for each in one(objects, "Service", NAME)["spec"]["ports"]
        }
        assert served == {scheme: (ports["http"], "http"), "metrics": (ports["metrics"], "metrics")}
        for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}


def test_helm_test_asks_whether_the_proxy_is_ready() -> None:
    """The pod of `helm test` asks at the port for probes, whatever the other port serves, and only if there is a proxy."""
    address = f"http://{NAME}.{NAMESPACE}.svc:8081/readyz"
    for sets, there in ((BASE, True), ([*BASE, "proxy.tls.secretName=mine"], True), (BASE[:1], False)):
        pod = one(rendered(sets=sets), "Pod", "-test")["spec"]
        (ready,) = (each for each in pod["containers"] if each["name"] == "ready")
        assert (address in ready["args"]) is there


# --- the ledger ---


@pytest.mark.parametrize("values", ["trio", "postgresql"])
def test_answers_are_in_the_ledger_of_the_release(values: str) -> None:
    """Without a Secret of its own the proxy has the gateway's settings and certificates of the ledger."""
    objects = rendered(HERE / "values" / f"{values}.yaml")
    proxy, gateway = (one(objects, "Deployment", each)["spec"]["template"]["spec"] for each in ("proxy", "gateway"))
    ours, theirs = (
        {each["name"]: each for each in spec["containers"][0]["env"] if each["name"] != "POD_NAME"}
        for spec in (proxy, gateway)
    )
    assert ours == theirs
    assert "SPARKONCE_STORE" in ours
    folder = f"/etc/sparkonce/{'postgresql' if values == 'postgresql' else 'etcd'}"
    assert secrets(proxy)[folder] == secrets(gateway)[folder]


def test_a_ledger_of_its_own_is_in_a_secret() -> None:
    """Its address comes from the Secret, a PostgreSQL is verified as `postgresql.tls` says, and neither the password nor the certificate of
    the release's ledger is in the pod."""
    plain = spec_of(rendered(HERE / "values" / "tenants.yaml"))
    environment = {each["name"]: each for each in plain["containers"][0]["env"]}
    assert environment["SPARKONCE_STORE"]["valueFrom"]["secretKeyRef"] == {"name": "answers", "key": "address"}
    assert environment["PGSSLMODE"]["value"] == "verify-full"
    assert "SPARKONCE_ETCD_PASSWORD" not in environment
    assert set(secrets(plain)) == {"/etc/sparkonce/tls", "/etc/sparkonce/upstream-ca"}
    sets = [*BASE, "proxy.store.existingSecret=answers", "postgresql.tls.secretName=ca", "postgresql.pool=3"]
    own = spec_of(rendered(sets=sets))
    assert secrets(own) == {"/etc/sparkonce/postgresql": "ca"}
    environment = {each["name"]: each for each in own["containers"][0]["env"]}
    assert environment["PGSSLROOTCERT"]["value"] == "/etc/sparkonce/postgresql/ca.crt"
    assert environment["SPARKONCE_POSTGRES_POOL"]["value"] == "3"


# --- the upstream ---


@pytest.mark.parametrize("kind", ["secret", "configMap"])
def test_the_upstreams_ca_is_one_file(kind: str) -> None:
    """It is mounted, under its key, where the option names it; other keys of the Secret or ConfigMap are not in the pod."""
    https = ["proxy.upstream=https://orders", f"proxy.upstreamCa.{kind}Name=mine", "proxy.upstreamCa.key=root.pem"]
    objects = rendered(sets=[*BASE, *https])
    spec = spec_of(objects)
    (volume,) = (each for each in spec["volumes"] if each["name"] == "upstream-ca")
    source = volume[kind]
    assert source.get("secretName", source.get("name")) == "mine"
    assert source["items"] == [{"key": "root.pem", "path": "root.pem"}]
    (mount,) = (each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "upstream-ca")
    assert f"--upstream-ca={mount['mountPath']}/root.pem" in arguments(objects)


# --- what watches ---


RULE = """groups:
  - name: sparkonce-proxy
    rules:
      - alert: SparkonceProxyTest
        expr: absent(up{$proxy} == 1)
        annotations: {summary: none}
"""


@pytest.mark.parametrize("there", [True, False])
def test_rules_about_the_proxy_are_about_this_releases(there: bool, tmp_path: Path) -> None:
    """In rules/proxy.yaml `$proxy` matches the Service that the ServiceMonitor selects; without a proxy neither is rendered."""
    chart = Path(shutil.copytree(CHART, tmp_path / "sparkonce"))
    (chart / "rules" / "proxy.yaml").write_text(RULE)
    sets = [
        *(BASE if there else BASE[:1]),
        "metrics.prometheusRule.enabled=true",
        "metrics.serviceMonitor.enabled=true",
    ]
    objects = rendered(sets=sets, chart=chart)
    rules = [rule for group in one(objects, "PrometheusRule", "")["spec"]["groups"] for rule in group["rules"]]
    expressions = [rule["expr"] for rule in rules if rule.get("alert") == "SparkonceProxyTest"]
    assert expressions == ([f'absent(up{{namespace="{NAMESPACE}",service="{NAME}"}} == 1)'] if there else [])
    monitors = [each["spec"] for each in objects if each["kind"] == "ServiceMonitor" and component_of(each) == "proxy"]
    assert bool(monitors) is there
    for monitor in monitors:
        service = one(objects, "Service", NAME)
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        (endpoint,) = monitor["endpoints"]
        assert (endpoint["port"], endpoint["path"]) == ("metrics", "/metrics")


# --- what people read ---


@pytest.mark.parametrize(
    ("sets", "address", "how"),
    [
        ([], "http://{}.platform.svc:8080", "send an Idempotency-Key"),
        (["proxy.profile=iceberg"], "http://{}.platform.svc:8080", "spark.sql.catalog.NAME.uri"),
        (["proxy.tls.secretName=mine", "proxy.port=8443"], "https://{}.platform.svc:8443", "send an Idempotency-Key"),
    ],
)
def test_the_notes_say_where_clients_point(sets: list[str], address: str, how: str, tmp_path: Path) -> None:
    """The notes give the address of the Service and how a client is pointed there."""
    text = notes(tmp_path, [*BASE, *sets])
    assert f"The proxy serves {address.format(NAME)} before http://orders:3000" in text
    assert how in text


def test_the_guides_catalog_is_rendered(tmp_path: Path) -> None:
    """The values of docs/helm.md render a proxy before the catalog, and the page points Spark at that release's Service."""
    guide: Release = documented()["proxy"]
    values = tmp_path / "values.yaml"
    values.write_text(guide.values)
    objects = rendered(values, sets=guide.sets, release=("sparkonce", "sparkonce"))
    (container,) = one(objects, "Deployment", "proxy")["spec"]["template"]["spec"]["containers"]
    assert "--profile=iceberg" in container["args"]
    service = one(objects, "Service", "proxy")
    port = service["spec"]["ports"][0]
    address = f"{port['name']}://{service['metadata']['name']}.sparkonce.svc:{port['port']}"
    assert f"spark.sql.catalog.lake.uri={address}" in (CHART.parents[1] / "docs" / "helm.md").read_text()


# --- refused values ---


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["proxy.upstream="], "proxy.enabled needs proxy.upstream"),
        (
            ["proxy.upstream=https://a", "proxy.upstreamCa.secretName=a", "proxy.upstreamCa.configMapName=b"],
            "proxy.upstreamCa.secretName and proxy.upstreamCa.configMapName are both set",
        ),
        (["proxy.upstreamCa.secretName=a"], "proxy.upstreamCa is for an https upstream"),
        (["proxy.port=8081"], "choose another"),
        (["proxy.drainSeconds=11"], "proxy.terminationGracePeriodSeconds=70"),
        (["proxy.terminationGracePeriodSeconds=64"], "set at least 65"),
        (["proxy.store.existingSecret=a", "postgresql.tls.mode=require"], "set postgresql.tls.mode=verify-full"),
    ],
)
def test_a_proxy_that_cannot_work_is_refused(sets: list[str], said: str) -> None:
    """Values that are missing, contradict each other, or would cut requests off are refused with a sentence that names the value to set."""
    done = template(sets=[*BASE, *sets])
    assert done.returncode != 0
    assert said in done.stderr
    assert template(sets=[*BASE, "proxy.drainSeconds=10"]).returncode == 0
