"""Keys: golden values, and which requests share a key and which do not."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.manifests import job
from harness.patience import completed
from sparkonce.model.identity import DERIVED, Binding, derive, explicit
from sparkonce.model.spec import JobSpec
from sparkonce.model.validation import InvalidJob

GOLDEN = Path(__file__).parents[1] / "golden" / "keys.json"
UUID = "0191D6C8-91A4-7C3B-8F0E-2D1B5A6C7E8F"
VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40)


def spec(**fields: Any) -> JobSpec:
    template = job().spec.template
    return JobSpec.model_validate({"template": template, **fields})


@pytest.mark.parametrize("golden", json.loads(GOLDEN.read_text()), ids=lambda golden: str(golden["text"]))
def test_golden_keys_never_change(golden: dict[str, Any]) -> None:
    """Ledgers hold these texts and hashes: a changed value would run finished jobs again."""
    key = derive(spec(**golden["spec"]), golden["realm"], content_digests=golden["contents"])
    assert (key.text, key.key_hash) == (golden["text"], golden["keyHash"])


def test_hash_is_over_tagged_length_prefixed_parts() -> None:
    """The hash is SHA-256 over the domain tag and the parts of the key, each after its length as eight bytes, most significant first."""
    key = derive(spec(operation="load", resource="flights"), "etl")
    parts = [DERIVED, "etl", "load", "flights", "1"]
    octets = b"".join(len(part).to_bytes(8, "big") + part.encode() for part in parts)
    assert key.key_hash == hashlib.sha256(octets).hexdigest()
    assert key.hash20 == key.key_hash[:20]
    assert key.binding == Binding("load", "flights", "etl")


def test_case_of_a_uuid_does_not_split_a_key() -> None:
    """A UUID in upper or lower case is one key; other texts are case-sensitive."""
    assert explicit(UUID, "r") == explicit(UUID.lower(), "r")
    assert explicit(UUID, "r").text == UUID.lower()
    assert explicit("Load", "r").key_hash != explicit("load", "r").key_hash
    assert explicit("{" + UUID + "}", "r").text == "{" + UUID + "}"


def test_a_clients_key_is_the_key_whatever_it_is_for() -> None:
    """Operation and resource beside a client's key change neither text nor hash; the record keeps them as what the key is for."""
    bare, said = (
        derive(spec(idempotencyKey="k"), "r"),
        derive(spec(idempotencyKey="k", operation="a", resource="b"), "r"),
    )
    assert (
        (bare.text, bare.key_hash)
        == (said.text, said.key_hash)
        == (explicit("k", "r").text, explicit("k", "r").key_hash)
    )
    assert (bare.binding, said.binding) == (Binding(None, None, "r"), Binding("a", "b", "r"))


def test_the_default_revision_is_revision_1() -> None:
    """A revision that is written out as the default gives the same key; another revision gives another."""
    output = [{"name": "a", "slotLog": {"path": "a/{revision}"}}]
    absent, one, two = (
        derive(spec(operation="a", resource="b", outputs=output, **more), "r")
        for more in ({}, {"revision": "1"}, {"revision": "2"})
    )
    assert absent == one
    assert two.key_hash != one.key_hash
    assert two.text == "a/b@2"


def test_a_listed_content_is_part_of_the_key() -> None:
    """If keyFrom lists the application file, another file is another job; a missing digest is refused, not ignored."""
    keyed = spec(operation="a", resource="b", keyFrom=["Image", "ApplicationFile"])
    turned = spec(operation="a", resource="b", keyFrom=["ApplicationFile", "Image"])
    digests = {"ApplicationFile": "AB" * 32, "Image": "cd" * 32}
    key = derive(keyed, "r", content_digests=digests)
    assert key == derive(turned, "r", content_digests={"Image": "cd" * 32, "ApplicationFile": "ab" * 32})
    assert key.text == f"a/b@1+{'ab' * 6}+{'cd' * 6}"
    assert key.key_hash != derive(keyed, "r", content_digests={**digests, "Image": "ce" * 32}).key_hash
    assert key.key_hash != derive(spec(operation="a", resource="b"), "r", content_digests=digests).key_hash
    with pytest.raises(InvalidJob, match=r"spec\.keyFrom: asks for the digest of Image"):
        derive(keyed, "r", content_digests={"ApplicationFile": "ab" * 32})


def test_readable_texts_may_collide_and_hashes_do_not() -> None:
    """`a/b`+`c`, `a`+`b/c` and the explicit key with the same text are three keys, and each realm has its own."""
    keys = [
        derive(spec(operation="a/b", resource="c"), "r"),
        derive(spec(operation="a", resource="b/c"), "r"),
        derive(spec(idempotencyKey="a/b/c@1"), "r"),
        derive(spec(idempotencyKey="a/b/c@1"), "other"),
    ]
    assert {key.text for key in keys} == {"a/b/c@1"}
    assert len({key.key_hash for key in keys}) == len(keys)


@given(st.lists(st.tuples(VISIBLE, VISIBLE), min_size=2, max_size=2, unique=True))
def test_two_bindings_are_two_keys(pairs: list[tuple[str, str]]) -> None:
    """Different (operation, resource) never share a hash, wherever their texts are split."""
    first, second = (derive(spec(operation=a, resource=b), "r").key_hash for a, b in pairs)
    assert first != second


@pytest.mark.parametrize("realm", ["", "a b", "a/b", "ä", "x" * 256])
def test_a_realm_is_one_step_of_a_path(realm: str) -> None:
    """A realm with a slash could reach into another realm's keys, an empty one into all: both are refused."""
    with pytest.raises(ValueError, match="realm"):
        explicit("k", realm)


@pytest.mark.parametrize("text", ["", "a b", "ä", "a\n", "x" * 256])
def test_a_key_is_visible_ascii(text: str) -> None:
    """Characters that cannot be typed or seen are refused."""
    with pytest.raises(ValueError, match="visible ASCII"):
        explicit(text, "r")


def test_a_job_image_without_yaml_can_key_and_fingerprint() -> None:
    """Spec, key and fingerprint are imported without PyYAML: a driver's image has none."""
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "import sparkonce.model.spec, sparkonce.model.identity, sparkonce.launch.submit\n"
    )
    done = completed([sys.executable, "-c", code], 60)  # seconds; importing takes one
    assert done.returncode == 0, done.stderr
