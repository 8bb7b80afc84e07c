"""Manifests: read as kubectl reads them, filled in, and refused in a sentence with file and line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.patience import promised
from sparkonce.model import manifest
from sparkonce.model.document.reader import read
from sparkonce.model.identity import fingerprint
from sparkonce.model.manifest import dump
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob

FLIGHTS = (
    (Path(__file__).parents[1] / "golden" / "flights.yaml")
    .read_text()  # written by a version that took numbers for text
    .replace("--rate, 0.5, --threads, 4, --strict, true]", '--rate, "0.5", --threads, "4", --strict, "true"]')
    .replace("partitions: 8", 'partitions: "8"')
    .replace("enabled: true", 'enabled: "true"')
)
PARAMS = {"year": "2013", "month": "01"}


def load(text: str = FLIGHTS, params: dict[str, str] | None = None, **outputs: str) -> IdempotentJob:
    return manifest.load(text, params=PARAMS if params is None else params, outputs=outputs, source="job.yaml")


def refusal(text: str, params: dict[str, str] | None = None, **outputs: str) -> str:
    with pytest.raises(InvalidJob) as refused:
        load(text, params, **outputs)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def edited(old: str, new: str) -> str:
    assert old in FLIGHTS
    return FLIGHTS.replace(old, new, 1)


def test_parameters_are_filled_in_everywhere() -> None:
    """Name, identity and arguments are filled in; a value stays text even if it looks like another type."""
    job = load()
    assert job.metadata.name == "flights-2013-01"
    assert job.spec.resource == "flights/2013-01"
    assert job.spec.template.spec["arguments"][1] == "01"  # type: ignore[index]


def test_a_parameter_is_no_yaml() -> None:
    """A value with YAML syntax stays one text: a parameter cannot add fields."""
    job = load(
        edited("image: registry.example/flights:7", "image: ${params.image}"),
        {**PARAMS, "image": "a: [b]\nc: ${params.year}"},
    )
    assert job.spec.template.spec["image"] == "a: [b]\nc: ${params.year}"


def test_defaults_and_escapes() -> None:
    """`:-` gives a default, which may be empty; `$${` gives `${`; other `${...}` are left to Spark."""
    text = edited(
        "image: registry.example/flights:7", 'image: "${params.a:-x:y}|${params.b:-}|$${params.c}|$${d}|${env:HOME}"'
    )
    assert load(text).spec.template.spec["image"] == "x:y||${params.c}|${d}|${env:HOME}"
    assert load(text, {**PARAMS, "a": "1", "b": "2"}).spec.template.spec["image"] == "1|2|${params.c}|${d}|${env:HOME}"
    assert manifest.parameters(text, source="") == {"year": None, "month": None, "a": "x:y", "b": ""}


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        (
            {"year": "2013"},
            "job.yaml:8: spec.resource: needs the parameter month, which is not given; add --param month=VALUE",
        ),
        ({**PARAMS, "mnth": "1"}, "job.yaml: --param mnth: is not a parameter of this manifest; did you mean month?"),
        (
            {**PARAMS, "zone": "1"},
            "job.yaml: --param zone: is not a parameter of this manifest; known here: month, year",
        ),
    ],
)
def test_parameters_must_fit(params: dict[str, str], sentence: str) -> None:
    """A missing parameter is named once, with the field that needs it; an unused one is probably misspelled."""
    assert refusal(edited("flights-${params.year}-${params.month}", "flights-${params.year}"), params) == sentence


def test_a_malformed_parameter_is_told() -> None:
    """`${params.a b}` is neither a parameter nor plain text: the job would run with it unchanged."""
    text = edited("image: registry.example/flights:7", "image: ${params.a b}")
    assert refusal(text).startswith(
        "job.yaml:15: spec.template.spec.image: has ${params.a b}, which is not a parameter"
    )


def test_outputs_are_overridden_before_anything_is_compared() -> None:
    """Another output folder is another job: the fingerprint covers the folder that is written to."""
    moved = load(flights="/elsewhere", rejects="/rejects")
    assert [output.location for output in moved.spec.outputs][:2] == ["/elsewhere", "/rejects"]
    assert moved.spec.outputs[1].kind == "delta"
    assert fingerprint(moved) != fingerprint(load())
    assert fingerprint(load(flights="out/flights")) == fingerprint(load())


def test_an_output_that_is_not_declared_cannot_be_overridden() -> None:
    """The error lists the declared outputs; a catalog's table cannot be replaced by a folder."""
    assert (
        refusal(FLIGHTS, flihgts="/x")
        == "job.yaml: --output flihgts: is not an output of this job; did you mean flights?"
    )
    assert refusal(FLIGHTS, x="/x").endswith("is not an output of this job; known here: flights, rejects, totals")
    assert refusal(FLIGHTS, totals="/x").endswith(
        "--output totals: is an Iceberg table, which a folder cannot stand for"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "job.yaml: is empty; it must hold one IdempotentJob"),
        ("# nothing\n---\n", "job.yaml: is empty; it must hold one IdempotentJob"),
        (FLIGHTS + "---\n" + FLIGHTS, "job.yaml:47: holds 2 documents; keep one IdempotentJob per file"),
        (edited("kind: Idem", "kind Idem"), "job.yaml:3: is not readable as YAML: while scanning a simple key could not find"),
        (edited("image: reg", "image: \treg\n\t"), ": is not readable as YAML: while scanning "),
        (edited("  outputs:", "  outputs: \x07"), "job.yaml:35: is not readable as YAML: unacceptable character #x0007"),
        (edited("  outputs:", "  operation: x\n  outputs:"), "job.yaml:35: spec.operation: duplicate key, first on line 7"),
        (edited("type: Python", "type: {[a]: b}"), "job.yaml:13: spec.template.spec.type: has a key that is not text"),
        (edited("type: Python", "type: &a [*a]"), "job.yaml:13: spec.template.spec.type[0]: refers to itself"),
        (edited("type: Python", "type: !!python/name:os.system x"), "job.yaml:13: spec.template.spec.type: has the YAML tag"),
        (edited("type: Python", "type: .inf"), "job.yaml:13: spec.template.spec.type: is .inf, which is not a JSON number"),
        (edited("type: Python", r'type: "\ud800"'), "job.yaml:13: spec.template.spec.type: is "),
        (edited("type: Python", "type: " + "[" * 2000), "job.yaml:13: is nested more than 100 levels deep"),
        (edited("type: Python", "type: " + "[" * 200 + "]" * 200), "job.yaml:13: is nested more than 100 levels deep"),
        (edited("  outputs:", "  outptus:"), "job.yaml:35: spec.outptus: is not a field here; did you mean outputs?"),
        (edited("path: out/flights", "pfad: out/flights"), "job.yaml:37: spec.outputs[0].slotLog.path: is required"),
        (edited("type: Python", "type: {on: b}"), "job.yaml:13: spec.template.spec.type: has the key on, which YAML does not read"),
        (edited("type: Python", "type: {1.0: b}"), "job.yaml:13: spec.template.spec.type: has the key 1.0, which YAML does not"),
        (edited("type: Python", "type: {~: b}"), "job.yaml:13: spec.template.spec.type: has the key ~, which YAML does not read as text"),
        (edited("type: Python", "type: !!set {a}"), "job.yaml:13: spec.template.spec.type: has the YAML tag tag:yaml.org,2002:set"),
        (edited("type: Python", "type: !!omap [a: b]"), "job.yaml:13: spec.template.spec.type: has the YAML tag tag:yaml.org,2002:omap"),
        (edited("type: Python", "type: !!map [a]"), "job.yaml:13: spec.template.spec.type: has the YAML tag tag:yaml.org,2002:map"),
        (edited("type: Python", "type: !!binary aGk="), "job.yaml:13: spec.template.spec.type: has the YAML tag tag:yaml.org,2002:binary"),
        (
            edited("type: Python", "type: !!int a"),
            "job.yaml:13: spec.template.spec.type: is 'a', which is not of type int; put it in quotes",
        ),
        (
            edited("type: Python", "type: !!bool a"),
            "job.yaml:13: spec.template.spec.type: is 'a', which is not of type bool; put it in quotes",
        ),
        (edited("type: Python", "type: {<<: 1}"), 'job.yaml:13: spec.template.spec.type["<<"]: must be a map, or a list of maps'),
        (edited("type: Python", "type: {<<: [1]}"), 'job.yaml:13: spec.template.spec.type["<<"]: must be a map, or a list of maps'),
        (edited("type: Python", "type: {<<: {a: 1}, <<: {b: 1}}"), 'job.yaml:13: spec.template.spec.type["<<"]: duplicate key, first on'),
        (edited("type: Python", "type: &a {<<: *a}"), 'job.yaml:13: spec.template.spec.type["<<"]: refers to itself'),
        (edited("type: Python", "type: &a {b: {<<: *a}}"), 'job.yaml:13: spec.template.spec.type.b["<<"]: refers to itself'),
        (edited("type: Python", r'type: "\U00110000"'), "job.yaml:13: spec.template.spec.type: is not readable as YAML: "),
        (edited("type: Python", r'type: {"\udc00": b}'), "job.yaml:13: spec.template.spec.type: "),
        ("a: 1\n...\n" + "%TAG !a! b\n" * 101 + "a: 1", "job.yaml: has more than 100 YAML directives"),
        ("%YAML 1." + "9" * 5000 + "\n---\n" + FLIGHTS, "job.yaml:1: is a YAML directive, which kubectl does not read; remove it"),
        (FLIGHTS + "#" * (1 << 20), "job.yaml: is larger than 1 MiB"),
        ("- a\n", "job.yaml:1: must be a map of fields, not a list"),
        ("just text", "job.yaml:1: must be a map of fields, not 'just text'"),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_told_with_its_line(text: str, sentence: str) -> None:
    """Broken YAML, a duplicate key, a second document or a value that JSON lacks gives one sentence with file, line and path."""
    assert sentence in refusal(text)


def test_aliases_cannot_make_a_huge_document() -> None:
    """Ten lines that expand to 10^9 entries are refused quickly."""
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert refusal("\n".join(lines)).endswith(
        "holds more than 20000 values, aliases expanded; move long lists into a file that the job reads"
    )


MERGES = ["a0: &a0 {k: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 1}}" for n in range(1, 300))]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(MERGES),
        "\n".join(f"a{n}: &a{n} {{<<: *a{max(n - 1, 0)}, k{n}: {{<<: *a{max(n - 1, 0)}}}}}" for n in range(300)),
        "- " * 100_000,
        "[" * 1_000_000,
        "---\n" * 200_000,
        "".join(f"%TAG !a{n}! b\n" for n in range(40_000)),
    ],
    ids=["merges", "merges in merges", "dashes", "brackets", "documents", "directives"],
)
def test_a_small_text_takes_no_time(text: str) -> None:
    """A text that would take hours, gigabytes or the whole stack to build is measured first, and refused within a CPU second."""
    began = time.process_time()
    assert refusal(text)
    assert time.process_time() - began < promised(1.0)


def test_an_output_is_placed_without_any_parameter() -> None:
    """In a manifest without parameters an output's folder can be replaced, too, and an undeclared output is refused."""
    text = manifest.render(FLIGHTS, params=PARAMS, source="job.yaml")
    assert load(text, {}, flights="/x") == load(flights="/x")
    assert "--output fligths: is not an output of this job; did you mean flights?" in refusal(text, {}, fligths="/x")


def test_a_rendered_manifest_is_the_same_job() -> None:
    """The manifest rendered for a cluster is the job that ran here, with nothing added and nothing left to fill in."""
    text = manifest.render(FLIGHTS, params=PARAMS, outputs={"flights": "/x"}, source="job.yaml")
    assert "${" not in text
    again = manifest.load(text, params={}, source="rendered")
    assert again == load(flights="/x")
    assert yaml.safe_load(text)["spec"]["template"]["spec"]["driver"]["env"][1]["value"] == "2013-01-01"


def test_a_manifest_that_is_no_job_is_not_rendered() -> None:
    """A manifest that would be refused here is not printed for kubectl."""
    with pytest.raises(InvalidJob, match="outptus"):
        manifest.render(edited("  outputs:", "  outptus:"), params=PARAMS, source="")


@given(
    st.text(max_size=12)
    | st.sampled_from(["1e5", "y", "0x1", "12:30", "2013-01-01", "~", "", "1_0", ".5", "<<", "=", "- a", "null"])
)
def test_text_stays_text_when_it_is_written(text: str) -> None:
    """Any value is the same text for PyYAML and for our reader."""
    written = dump({"a": text, "b": [text]})
    assert yaml.safe_load(written) == {"a": text, "b": [text]}
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert read(written, source="").data == {"a": text, "b": [text]}
