"""values.schema.json covers every value of the chart, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.helm import CHART, PROXY, template

pytestmark = pytest.mark.operator

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
FREE = {"kubernetes": {"valueFrom", "nodeAffinity", "podAffinity", "podAntiAffinity", "global"}}
"""Structures of Kubernetes itself, which the API server validates."""


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    return SCHEMA["definitions"][reference.rpartition("/")[2]] if reference else schema


def sections(schema: dict[str, Any], values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all objects in the default values whose fields the schema names."""
    schema = resolved(schema)
    if not isinstance(values, dict) or "properties" not in schema:
        return
    yield path
    for name, value in values.items():
        yield from sections(schema["properties"][name], value, (*path, name))


def unknown(schema: dict[str, Any], values: Any, path: str = "") -> list[str]:
    """Values that the schema does not name, and fields of the schema that have no default value."""
    schema = resolved(schema)
    if not isinstance(values, dict) or "properties" not in schema:
        return []
    wrong = [f"{path}.{name}" for name in values.keys() ^ (schema["properties"].keys() - FREE["kubernetes"])]
    optional = path.rpartition(".")[2] in {"resources", "podSecurityContext", "affinity"} or path.endswith("Selector")
    both = values.keys() & schema["properties"].keys()
    more = [each for name in both for each in unknown(schema["properties"][name], values[name], f"{path}.{name}")]
    return ([] if optional else wrong) + more


def open_objects(schema: Any, path: str = "") -> Iterator[str]:
    """Paths at which the schema accepts any field."""
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" and "additionalProperties" not in schema:
        yield path
    for kind in ("properties", "definitions"):
        for name, inner in schema.get(kind, {}).items():
            yield from open_objects(inner, f"{path}.{name}")
    yield from open_objects(schema.get("items"), f"{path}[]")


def test_schema_and_values_name_the_same() -> None:
    """The schema names each default value, and each field of the schema has a default."""
    assert unknown(SCHEMA, DEFAULTS) == []


def test_the_schema_is_closed() -> None:
    """Every object names its fields or describes its values, except for structures of Kubernetes itself."""
    assert sorted(open_objects(SCHEMA)) == [
        ".affinity.nodeAffinity",
        ".affinity.podAffinity",
        ".affinity.podAntiAffinity",
        ".env[].valueFrom",
        ".global",
        ".operator.extraVolumeMounts[]",
        ".operator.extraVolumes[]",
        ".podSecurity.sysctls[]",
        ".resources.claims[]",
    ]


def test_a_typo_anywhere_is_refused(tmp_path: Path) -> None:
    """A field that does not exist, in all sections at once: Helm names every one of them and renders nothing."""
    paths = list(sections(SCHEMA, DEFAULTS))
    assert len(paths) > 30
    values: dict[str, Any] = {"etcd": {"bundled": {"enabled": True}}}
    for path in paths:
        place = values
        for name in path:
            place = place.setdefault(name, {})
        place["enbaled"] = True
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = template(file)
    assert done.returncode != 0
    assert done.stdout == ""
    for path in paths:
        assert (
            f"at '{''.join(f'/{name}' for name in path)}': additional properties 'enbaled' not allowed" in done.stderr
        )


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("etcd.bundled.replicas=2", "/etcd/bundled/replicas"),
        ("etcd.bundled.quotaBytes=1000", "/etcd/bundled/quotaBytes"),
        ("operator.replicas=0", "/operator/replicas"),
        ("operator.leaseSeconds=1", "/operator/leaseSeconds"),
        ("operator.terminationGracePeriodSeconds=1", "/operator/terminationGracePeriodSeconds"),
        ("logFormat=xml", "/logFormat"),
        ("operator.settle=never", "/operator/settle"),
        ("gateway.port=80", "/gateway/port"),
        ("image.digest=latest", "/image/digest"),
        ("etcd.external.endpoints={http://etcd:2379}", "/etcd/external/endpoints/0"),
        ("etcd.external.endpoints={me:secret@etcd:2379}", "/etcd/external/endpoints/0"),
        ("watch.namespaces={Team_A}", "/watch/namespaces/0"),
        ("install=a/b", "/install"),
        ("etcd.bundled.enabled=maybe", "/etcd/bundled/enabled"),
        ("proxy.upstream=orders:3000", "/proxy/upstream"),
        ("proxy.upstream=http://me:secret@orders", "/proxy/upstream"),
        ("proxy.profile=delta", "/proxy/profile"),
        ("proxy.methods={post}", "/proxy/methods/0"),
        ("proxy.lifetimeHours=0", "/proxy/lifetimeHours"),
        ("proxy.advertise=idempotency", "/proxy/advertise"),
        ("proxy.port=80", "/proxy/port"),
        ("proxy.upstreamCa.key=../ca.crt", "/proxy/upstreamCa/key"),
    ],
)
def test_a_value_that_cannot_work_is_refused(value: str, where: str) -> None:
    """Values that the programs would refuse, or that would lose records, are refused with their path before anything is installed."""
    done = template(sets=[value])
    assert done.returncode != 0
    assert f"at '{where}'" in done.stderr


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("proxy.methods={POST}", "methods"),
        ("proxy.required=true", "required"),
        ("proxy.rerun=true", "rerun"),
        ("proxy.advertise=/idempotency", "advertise"),
    ],
)
def test_the_profile_iceberg_decides_what_takes_keys(value: str, field: str) -> None:
    """With the profile these values are refused with their path, as the program refuses their options; without it they are taken."""
    sets = ["etcd.bundled.enabled=true", *PROXY, value]
    done = template(sets=[*sets, "proxy.profile=iceberg"])
    assert done.returncode != 0
    assert f"at '/proxy/{field}'" in done.stderr
    assert template(sets=sets).returncode == 0
