"""The codec reads a record or raises: no text is taken for an absent record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.errors import InvalidInput, RecordTooNew, RecordUnreadable, SparkonceError
from sparkonce.model.record import Beat, Record
from sparkonce.store.codec import DEPTH_LIMIT, DIGITS_LIMIT, VALUE_LIMIT, decode, encode, listed, name, record_of
from store.samples import address_of
from store.unreadable import BROKEN, NEWER, Text, dumped

ADDRESS = address_of("load-may")
RECORD = Record(
    realm=ADDRESS.realm,
    key_hash=ADDRESS.key_hash,
    key="load-may",
    generation=1,
    attempt=1,
    nonce="nonce-1",
    fingerprint="f" * 64,
    fingerprint_version=1,
)
REFUSED: dict[str, tuple[Text, type[SparkonceError]]] = {
    what: (text, RecordUnreadable) for what, text in BROKEN.items()
}
REFUSED |= {f"newer, {what}": (text, RecordTooNew) for what, text in NEWER.items()}


def test_a_record_is_read_as_it_was_written() -> None:
    """A record's text gives the same record, with the revision and epoch at which the store read it."""
    assert record_of(ADDRESS, dumped(RECORD), revision=7, epoch=2) == RECORD.model_copy(
        update={"revision": 7, "epoch": 2}
    )


@pytest.mark.parametrize(("text", "error"), REFUSED.values(), ids=REFUSED)
def test_every_other_text_is_an_error(text: Text, error: type[SparkonceError]) -> None:
    """RecordUnreadable for a damaged record, RecordTooNew for one that requires a newer reader, whether or not the rest of it parses: one
    line that names the record; in a listing the same line appears with its address."""
    with pytest.raises(error) as raised:
        record_of(ADDRESS, text(RECORD), revision=7, epoch=2)
    said = str(raised.value)
    assert name(ADDRESS) in said
    assert "\n" not in said
    page = listed([(ADDRESS, text(RECORD), 7)], epoch=2, more=False)
    assert (list(page.records), list(page.unreadable)) == ([], [(ADDRESS, said)])


def beat(progress: object) -> Beat:
    return Beat(attempt=1, nonce="n", by="driver", progress={"value": progress})


def nested(depth: int) -> object:
    """`depth` lists, each inside the next."""
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [1, DEPTH_LIMIT - 2, 100, 220, 254, 300, 100_000])
def test_what_is_written_can_be_read_back(depth: int) -> None:
    """A value up to the depth limit is read back as it was written; a deeper one is not written. (Without the limit a beat nested 220 deep
    could be written, and then no verb could read its key.)"""
    said = beat(nested(depth))
    if depth <= DEPTH_LIMIT - 2:  # the beat and its progress add two levels
        assert decode(Beat, encode(said), where="here") == said
        return
    with pytest.raises(InvalidInput, match=r"nested|cannot be stored"):
        encode(said)


@pytest.mark.parametrize(
    ("progress", "says"),
    [
        ("x" * VALUE_LIMIT, "keeps at most"),
        ("é" * (VALUE_LIMIT // 2), "keeps at most"),
        (10**DIGITS_LIMIT, "digits"),
        ([-(10**DIGITS_LIMIT)], "digits"),
        ("\ud800", "cannot be stored"),
        (object(), "cannot be stored"),
    ],
)
def test_what_cannot_be_read_back_is_not_written(progress: object, says: str) -> None:
    """Values that are too large, numbers beyond a double and text that is not UTF-8 are refused before anything is written."""
    with pytest.raises(InvalidInput, match=says):
        encode(beat(progress))


def test_a_long_number_is_found_wherever_it_stands() -> None:
    """Only some characters of a text are looked at first: a number of the shortest length that is refused is found at each distance from
    its beginning, and one that has a digit less is written."""
    for before in range(DIGITS_LIMIT + 1):
        with pytest.raises(InvalidInput, match="digits"):
            encode(beat(["x" * before, 10**DIGITS_LIMIT]))
        encode(beat(["x" * before, 10**DIGITS_LIMIT - 1]))


def test_long_digits_in_a_text_are_no_number() -> None:
    """Only numbers are limited: a string of digits is kept."""
    said = beat("7" * 1000)
    assert decode(Beat, encode(said), where="here") == said


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=30,
)


@given(_JSON)
def test_any_value_is_refused_or_read_back(progress: object) -> None:
    """Any value that a driver reports is refused, or read back as it was."""
    said = beat(progress)
    try:
        text = encode(said)
    except InvalidInput:
        return
    assert decode(Beat, text, where="here") == said
