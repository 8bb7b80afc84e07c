"""The gateway's address outside the cluster, and its client certificates: what is rendered, and which values are refused."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from cryptography import x509

from chart.test_network_policy import admitted
from chart.test_templates import VALUES
from harness.helm import NAMESPACE, RELEASE, Release, documented, notes, one, rendered, template

pytestmark = pytest.mark.operator

HOST = "sparkonce.example.com"
BASE = ["etcd.bundled.enabled=true", f"gateway.public.host={HOST}"]
GATEWAY = f"{RELEASE}-sparkonce-gateway"
SERVICE = f"{GATEWAY}.{NAMESPACE}.svc"
KINDS = {"ingress": "Ingress", "httpRoute": "HTTPRoute", "tlsRoute": "TLSRoute"}
GATEWAY_API = "gateway.networking.k8s.io"


def enabled(name: str, section: str = "https") -> list[str]:
    parent = f"gateway.{name}.parentRefs[0]"
    named = [f"{parent}.name=public", f"{parent}.namespace=gateways", f"{parent}.sectionName={section}"]
    return [*BASE, f"gateway.{name}.enabled=true", *(named if name != "ingress" else [])]


def told(objects: list[dict[str, Any]]) -> dict[str, str]:
    """What the plugin reads."""
    data: dict[str, str] = one(objects, "ConfigMap", GATEWAY)["data"]
    return data


def test_without_one_there_is_none() -> None:
    """Off by default, and for values of the chart before; a host alone opens nothing."""
    for objects in (*(rendered(each) for each in VALUES), rendered(sets=BASE)):
        assert not {each["kind"] for each in objects} & {*KINDS.values(), "BackendTLSPolicy"}
        assert not {"publicUrl", "public-ca.crt", "clientCertificates"} & told(objects).keys()


def test_values_of_the_chart_before_render_what_they_did() -> None:
    """`helm upgrade --reuse-values` brings none of these values along."""
    # No certificate of etcd: its digest is in the pods' annotations, and it is new in each rendering.
    sets = [
        "etcd.bundled.enabled=true",
        "etcd.bundled.tls.enabled=false",
        "acceptInsecure=true",
        "networkPolicy.enabled=true",
    ]
    gone = [f"gateway.{each}=null" for each in ("public", *KINDS, "clientCertificates")]
    gone += ["rbac.teams=null", "rbac.portForward=null"]
    gone += [f"networkPolicy.{each}=null" for each in ("ingressNamespaceSelector", "ingressPodSelector")]

    def but_made(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without the gateway's certificates, which are new in each rendering."""
        return [each for each in objects if each["kind"] not in {"Secret", "ConfigMap"}]

    assert but_made(rendered(sets=[*sets, *gone])) == but_made(rendered(sets=sets))


def test_an_ingress_is_for_tls_and_peoples_routes_alone() -> None:
    """It always has the host under `tls`; /metrics and drivers' routes are not reached through it."""
    more = ["gateway.ingress.className=nginx", "gateway.ingress.tlsSecretName=web", "gateway.ingress.annotations.a=b"]
    made = one(rendered(sets=[*enabled("ingress"), *more]), "Ingress", GATEWAY)
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert made["spec"]["ingressClassName"] == "nginx"
    assert made["spec"]["tls"] == [{"hosts": [HOST], "secretName": "web"}]
    [rule] = made["spec"]["rules"]
    assert rule["host"] == HOST
    paths = {(each["path"], each["pathType"]) for each in rule["http"]["paths"]}
    assert paths == {("/v1/namespaces", "Prefix"), ("/v1/config", "Exact")}
    for each in rule["http"]["paths"]:
        assert each["backend"]["service"] == {"name": GATEWAY, "port": {"number": 8080}}
    plain = one(rendered(sets=enabled("ingress")), "Ingress", GATEWAY)
    assert plain["spec"]["tls"] == [{"hosts": [HOST]}]


def test_an_http_route_names_its_listener_and_reaches_the_gateway_over_tls() -> None:
    """People's routes alone; the policy beside it has the name and the CA of the gateway's certificate. The schema asks for a listener: a
    route without one would be served by that for plain HTTP, too."""
    objects = rendered(sets=enabled("httpRoute"))
    route, policy = one(objects, "HTTPRoute", GATEWAY), one(objects, "BackendTLSPolicy", GATEWAY)
    assert route["spec"]["parentRefs"] == [{"name": "public", "namespace": "gateways", "sectionName": "https"}]
    assert route["spec"]["hostnames"] == [HOST]
    [rule] = route["spec"]["rules"]
    assert [each["path"]["value"] for each in rule["matches"]] == ["/v1/namespaces", "/v1/config"]
    assert rule["backendRefs"] == [{"name": GATEWAY, "port": 8080}]
    [target] = policy["spec"]["targetRefs"]
    assert (target["kind"], target["name"]) == ("Service", GATEWAY)
    validation = policy["spec"]["validation"]
    assert validation["hostname"] == SERVICE
    [authority] = validation["caCertificateRefs"]
    assert told(objects)["ca.crt"]
    assert (authority["kind"], authority["name"]) == (
        "ConfigMap",
        one(objects, "ConfigMap", GATEWAY)["metadata"]["name"],
    )
    trusted = rendered(sets=[*enabled("httpRoute"), "gateway.tls.secretName=web", "gateway.tls.caKey="])
    assert one(trusted, "BackendTLSPolicy", GATEWAY)["spec"]["validation"] == {
        "hostname": SERVICE,
        "wellKnownCACertificates": "System",
    }
    unnamed = template(sets=[*BASE, "gateway.httpRoute.enabled=true", "gateway.httpRoute.parentRefs[0].name=public"])
    assert "at '/gateway/httpRoute/parentRefs/0': missing property 'sectionName'" in unnamed.stderr


@pytest.mark.parametrize(
    ("served", "version"),
    [
        ([], "v1"),
        (["v1alpha2"], "v1alpha2"),
        (["v1alpha2", "v1alpha3"], "v1alpha3"),
        (["v1alpha2", "v1alpha3", "v1"], "v1"),
    ],
)
def test_the_version_is_the_newest_that_the_cluster_serves(served: list[str], version: str) -> None:
    """TLSRoute was v1alpha2 before Gateway API 1.4, and v1 from 1.5 on; BackendTLSPolicy v1alpha3 before 1.4."""
    apis = [f"{GATEWAY_API}/{each}/TLSRoute" for each in served]
    made = one(rendered(sets=enabled("tlsRoute"), apis=apis), "TLSRoute", GATEWAY)
    assert made["apiVersion"] == f"{GATEWAY_API}/{version}"
    apis = [f"{GATEWAY_API}/{each}/BackendTLSPolicy" for each in served if each != "v1alpha2"]
    policy = one(rendered(sets=enabled("httpRoute"), apis=apis), "BackendTLSPolicy", GATEWAY)
    assert policy["apiVersion"] == f"{GATEWAY_API}/{'v1alpha3' if served == ['v1alpha2', 'v1alpha3'] else 'v1'}"


def test_a_tls_route_passes_tls_on_to_a_certificate_for_its_host() -> None:
    """The chart's own certificate, or cert-manager's, has the name; the plugin trusts the gateway's CA there. Without the route it has only
    the names inside the cluster."""
    objects = rendered(sets=enabled("tlsRoute", "tls"))
    route = one(objects, "TLSRoute", GATEWAY)
    assert (route["spec"]["hostnames"], route["spec"]["rules"]) == (
        [HOST],
        [{"backendRefs": [{"name": GATEWAY, "port": 8080}]}],
    )
    secret = one(objects, "Secret", "gateway-tls")
    assert secret["metadata"]["annotations"] == {"sparkonce.dev/public-host": HOST}
    assert HOST in names(secret)
    assert told(objects)["public-ca.crt"] == told(objects)["ca.crt"]
    managed = rendered(sets=[*enabled("tlsRoute"), "gateway.tls.certManager.enabled=true"])
    assert HOST in one(managed, "Certificate", "gateway-tls")["spec"]["dnsNames"]
    for other in ("ingress", "httpRoute"):
        secret = one(rendered(sets=enabled(other)), "Secret", "gateway-tls")
        assert HOST not in names(secret)
        assert "annotations" not in secret["metadata"]


def names(secret: dict[str, Any]) -> list[str]:
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return list(found.value.get_values_for_type(x509.DNSName))


@pytest.mark.parametrize("name", KINDS)
def test_the_plugin_is_told_the_address(name: str, tmp_path: Path) -> None:
    """Its URL with a port that is not the usual one, and the CA of the controller's certificate, if people's machines do not trust it."""
    objects = rendered(sets=enabled(name))
    assert told(objects)["publicUrl"] == f"https://{HOST}"
    assert ("public-ca.crt" in told(objects)) is (name == "tlsRoute")
    pem = trustme.CA().cert_pem.bytes().decode()
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"gateway": {"public": {"ca": pem, "port": 8443}}}))
    objects = rendered(values, sets=enabled(name))
    assert told(objects)["publicUrl"] == f"https://{HOST}:8443"
    assert (told(objects)["public-ca.crt"] == pem) is (name != "tlsRoute")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["gateway.ingress.enabled=true", "gateway.public.host="], "needs gateway.public.host"),
        (["gateway.ingress.enabled=true", "gateway.tlsRoute.enabled=true"], "enable one of them"),
        (["gateway.httpRoute.enabled=true"], "needs gateway.httpRoute.parentRefs"),
        (["gateway.tlsRoute.enabled=true"], "needs gateway.tlsRoute.parentRefs"),
        (["gateway.ingress.enabled=true", "gateway.tls.enabled=false"], "tokens go in plain text"),
        ([*enabled("httpRoute"), "gateway.tls.enabled=false"], "tokens go in plain text"),
        ([*enabled("tlsRoute"), "gateway.tls.enabled=false", "acceptInsecure=true"], "set gateway.tls.enabled=true"),
        (["gateway.clientCertificates.enabled=true"], "needs the CA that signs people's certificates"),
        (
            ["gateway.clientCertificates.enabled=true", "gateway.clientCertificates.secretName=s", "gateway.tls.enabled=false"],
            "needs TLS at the gateway",
        ),
    ],
)  # fmt: skip
def test_values_that_would_not_work_are_refused(sets: list[str], said: str) -> None:
    """In a sentence that names the value to set."""
    done = template(sets=[*BASE, *sets])
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize(
    "host", ["https://sparkonce.example.com", "*.example.com", "sparkonce.example.com:8443", "a b"]
)
def test_a_host_is_a_name(host: str) -> None:
    """Refused by the schema, with its path."""
    assert "at '/gateway/public/host'" in template(sets=[*BASE, f"gateway.public.host={host}"]).stderr


def test_plain_text_behind_a_controller_needs_a_decision() -> None:
    """With `acceptInsecure`, where a mesh encrypts what the gateway does not: no BackendTLSPolicy then."""
    sets = [*enabled("httpRoute"), "gateway.tls.enabled=false", "acceptInsecure=true"]
    objects = rendered(sets=sets)
    assert one(objects, "HTTPRoute", GATEWAY)
    assert not [each for each in objects if each["kind"] == "BackendTLSPolicy"]


def test_the_policy_admits_the_controller_that_is_selected(tmp_path: Path) -> None:
    """And otherwise only the namespaces of jobs, of which the notes warn."""
    sets = [*enabled("ingress"), "networkPolicy.enabled=true", "watch.namespaces={team-a}"]
    space = "networkPolicy.ingressNamespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=web"
    pods = "networkPolicy.ingressPodSelector.matchLabels.app=controller"

    def may(*more: str, namespace: str = "web", pod: str = "controller") -> bool:
        return admitted(rendered(sets=[*sets, *more]), "gateway", "http", namespace, {"app": pod})

    assert not may()
    assert may(space) and may(space, pods) and may(space, pod="other")
    assert not may(space, pods, pod="other") and not may(space, pods, namespace="other")
    off = [each for each in sets if "ingress.enabled" not in each]
    assert not admitted(rendered(sets=[*off, space]), "gateway", "http", "web", {"app": "controller"})
    assert "may shut out the controller that serves" in notes(tmp_path / "a", sets)
    assert "may shut out the controller that serves" not in notes(tmp_path / "b", [*sets, space])


def test_client_certificates_are_checked_against_the_ca_that_is_given(tmp_path: Path) -> None:
    """As text, whose change replaces the pods, or from a Secret, of which only the CA is mounted. The plugin shows one only where it gets
    through to the gateway."""
    pem = trustme.CA().cert_pem.bytes().decode()
    given = {"enabled": True, "ca": pem}

    def release(**client_certificates: Any) -> list[dict[str, Any]]:
        values = yaml.safe_dump({"gateway": {"clientCertificates": client_certificates}})
        done = Release(values=values).template(tmp_path, sets=["etcd.bundled.enabled=true"])
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = one(objects, "Deployment", GATEWAY)["spec"]["template"]
        return made

    objects = release(**given)
    assert one(objects, "ConfigMap", "gateway-client-ca")["data"] == {"ca.crt": pem}
    assert told(objects)["clientCertificates"] == "true"
    spec = pod(objects)["spec"]
    assert "--client-ca=/etc/sparkonce/client-ca/ca.crt" in spec["containers"][0]["args"]
    [volume] = (each for each in spec["volumes"] if each["name"] == "client-ca")
    assert volume["configMap"]["name"] == f"{GATEWAY}-client-ca"
    other = release(enabled=True, ca=trustme.CA().cert_pem.bytes().decode())
    assert pod(objects)["metadata"]["annotations"] != pod(other)["metadata"]["annotations"]
    secret = release(enabled=True, secretName="people", caKey="root.pem")
    [volume] = (each for each in pod(secret)["spec"]["volumes"] if each["name"] == "client-ca")
    assert volume["secret"] == {"secretName": "people", "items": [{"key": "root.pem", "path": "root.pem"}]}
    assert "--client-ca=/etc/sparkonce/client-ca/root.pem" in pod(secret)["spec"]["containers"][0]["args"]
    both = Release(values=yaml.safe_dump({"gateway": {"clientCertificates": {**given, "secretName": "people"}}}))
    assert "set either gateway.clientCertificates.ca or" in both.template(tmp_path, sets=BASE).stderr
    for name in KINDS:
        values = tmp_path / "people.yaml"
        values.write_text(yaml.safe_dump({"gateway": {"clientCertificates": given}}))
        assert ("clientCertificates" in told(rendered(values, sets=enabled(name)))) is (name == "tlsRoute")


def test_the_guides_addresses_are_rendered(tmp_path: Path) -> None:
    """The blocks of docs/helm.md, whose annotations name this release's Secret and Service when it is called as the guide calls it."""
    for name in ("httpRoute", "ingress"):
        done = documented()[name].template(tmp_path)
        assert done.returncode == 0, done.stderr
        assert {KINDS[name]} <= {each["kind"] for each in yaml.safe_load_all(done.stdout) if each}
    values = tmp_path / "values.yaml"
    values.write_text(documented()["ingress"].values)
    objects = rendered(values, sets=BASE[:1], release=("sparkonce", "sparkonce"))
    annotations = one(objects, "Ingress", "sparkonce-gateway")["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/proxy-ssl-"
    secret = one(objects, "Secret", "gateway-tls")["metadata"]
    assert annotations[f"{prefix}secret"] == f"{secret['namespace']}/{secret['name']}"
    assert annotations[f"{prefix}name"] in names(one(objects, "Secret", "gateway-tls"))
