"""From the header to the key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.errors import InvalidInput
from sparkonce.replies.keys import KeyPolicy, bucket_of, key_hash, key_of

V7 = "0198c0de-1234-7abc-9def-0123456789ab"
V4 = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("abc", "abc"),
        ('"abc"', "abc"),
        (' "abc" ', "abc"),
        ('"a\\"b\\\\c"', 'a"b\\c'),
        ('"abc";q=1;v="x"', "abc"),
        ('"a,b"', "a,b"),
        (V7.upper(), V7),
        (f'"{V7.upper()}"', V7),
        ("a:b/c;d=e", "a:b/c;d=e"),
        ("x" * 255, "x" * 255),
    ],
)
def test_r37_a_string_and_a_bare_token_are_one_key(value: str, key: str) -> None:
    """RFC 8941's string and what most clients send; R-37: a UUID in either case."""
    assert key_of([value]) == key


def test_no_header_is_no_key() -> None:
    """A request without the header has no key, which is no error."""
    assert key_of([]) is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([""], "is empty"),
        (["  "], "is empty"),
        (['""'], "1 to 255 visible ASCII"),
        (["x" * 256], "1 to 255 visible ASCII"),
        (['"' + "x" * 256 + '"'], "1 to 255 visible ASCII"),
        (['"a b"'], "without spaces"),
        (["a b"], "a space"),
        (["a,b"], "a comma"),
        (['"a", "b"'], "no string of RFC 8941"),
        (['"a'], "no string of RFC 8941"),
        (['"a\\x"'], "no string of RFC 8941"),
        (["schl\xfcssel"], "outside ASCII"),
        (["a", "b"], "2 Idempotency-Key headers"),
        (["a", "a"], "2 Idempotency-Key headers"),
    ],
)
def test_what_is_no_key_is_refused_in_one_sentence(values: list[str], sentence: str) -> None:
    """Empty, too long, not ASCII, or more than one key."""
    with pytest.raises(InvalidInput, match=sentence) as refused:
        key_of(values)
    assert "\n" not in str(refused.value)


def test_a_service_may_ask_for_uuids() -> None:
    """R-37 for `uuid7`, as Iceberg's specification has it: version 4 and other texts are refused."""
    assert key_of([V4], KeyPolicy.UUID) == V4
    assert key_of([V7], KeyPolicy.UUID7) == V7
    for value, policy in [("abc", KeyPolicy.UUID), (V7.replace("-", ""), KeyPolicy.UUID), (V4, KeyPolicy.UUID7)]:
        with pytest.raises(InvalidInput, match="UUID"):
            key_of([value], policy)


def test_hashes_never_change() -> None:
    """Golden: a ledger that was written by an earlier version is read."""
    assert key_hash("k", service="", caller="") == "c7d6069ec705c693cea2eb11b9fe73cb388fbe7d7bc59beebb53ac56b7557c68"
    assert bucket_of("") == "e623"


def test_parts_do_not_run_together() -> None:
    """R-31: no caller's key is another caller's, whatever they contain."""
    assert key_hash("bc", service="", caller="a") != key_hash("c", service="", caller="ab")
    assert key_hash("k", service="a", caller="b") != key_hash("k", service="b", caller="a")


@given(st.text(max_size=40) | st.text(alphabet='"\\\\ab;,= ', max_size=12))
def test_any_text_is_a_key_or_refused_and_both_spellings_agree(text: str) -> None:
    """Nothing else is raised; a key in quotes is the key without them."""
    try:
        key = key_of([text])
    except InvalidInput:
        return
    assert key is not None
    assert 1 <= len(key) <= 255
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert key_of([quoted]) == key
