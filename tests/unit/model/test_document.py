"""Documents are read as kubectl 1.34.4 reads them: its results were recorded here, and tests/api/test_documents.py compares with kubectl
itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from harness.documents import draw
from sparkonce.errors import InvalidInput
from sparkonce.model.document import yaml_reader
from sparkonce.model.document.reader import decoded, read, read_all
from sparkonce.model.validation import InvalidJob

KUBECTL: Sequence[tuple[str, object]] = (
    ("08", 8), ("0123", 83), ("-0123", -83), ("0o17", 15), ("0O17", 15), ("-0o7", -7), ("0x1F", 31), ("0X1f", 31), ("-0x1F", -31),
    ("0b11", 3), ("-0b11", -3), ("0b-1", -1), ("0B11", 3), ("0x_", "0x_"), ("0b", "0b"), ("0o", "0o"), ("0x", "0x"), ("00", 0),
    ("1.10", 1.1), ("1_000", 1000), ("1__0", 10), ("_1", "_1"), ("1_", 1), ("-0", 0), ("-0.0", 0), ("+1", 1), ("+0.5", 0.5),
    ("1e3", 1000), ("1E-3", 0.001), ("1e", "1e"), ("1e400", "1e400"), (".1e400", ".1e400"), ("1e-400", 0), (".5_0", 0.5),
    ("._5", "._5"), (".5", 0.5), ("5.", 5), (".", "."), ("9007199254740993", 9007199254740993),
    ("9223372036854775807", 9223372036854775807), ("-9223372036854775808", -9223372036854775808),
    ("0xfffffffffffffffff", "0xfffffffffffffffff"), ("12:30:45", "12:30:45"), ("12:30", "12:30"), ("1:2", "1:2"),
    ("190:20:30.15", "190:20:30.15"), ("2024-05-01", "2024-05-01"), ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z"),
    ("2024-5-1", "2024-5-1"), ("2001-12-14 21:59:43.10", "2001-12-14 21:59:43.10"), ("2024-13-45", "2024-13-45"), ("y", True),
    ("Y", True), ("n", False), ("N", False), ("yes", True), ("Yes", True), ("YES", True), ("yEs", "yEs"), ("no", False), ("NO", False),
    ("on", True), ("On", True), ("ON", True), ("off", False), ("OFF", False), ("true", True), ("True", True), ("TRUE", True),
    ("tRUE", "tRUE"), ("false", False), ("~", None), ("null", None), ("Null", None), ("NULL", None), ("nULL", "nULL"), ("", None),
    ("-.nan", "-.nan"), ("inf", "inf"), ("nan", "nan"), ("Infinity", "Infinity"), ("=", "="), ("<<", "<<"), ("a:b", "a:b"),
    ("http://x/y", "http://x/y"), ("#a", None), ("a #b", "a"), ("a#b", "a#b"), ("|", ""), (">", ""), (" a", "a"), ("a ", "a"),
    ("1,000", "1,000"), ("1.2.3", "1.2.3"), ("4.1", 4.1), ("0.1.", "0.1."), ("0x1p-2", "0x1p-2"), ("5 # said", 5), ("a:b:c", "a:b:c"),
    ("0.1", 0.1), ("-1e3", -1000), ("007", 7), ("0_7", 7), ("0x1_f", 31), ("1e+3", 1000), ("+.5e1", 5), ("1_0.5_0", 10.5),
    ("1.5_", 1.5), ("12e03", 12000), ("2013-01-01 10:00", "2013-01-01 10:00"), ("!!str 08", "08"), ("!!int 0x10", 16), ("!!float 3", 3),
    ("!!null ''", None), ("!!bool yes", True), ("--1", "--1"), ("1.", 1), ("1.0", 1), ("100.0", 100),
)  # fmt: skip
"""A value as written after `v: `, and what `kubectl create --dry-run=client -o json` prints for it."""

LARGE = "is a number that Kubernetes does not keep digit by digit; put it in quotes"


def one(text: str) -> Any:
    return read(text, source="job.yaml").data


def refusal(text: str | bytes) -> str:
    with pytest.raises(InvalidInput) as refused:
        one(text if isinstance(text, str) else decoded(text, source="job.yaml"))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(("text", "value"), KUBECTL, ids=[text for text, _ in KUBECTL])
def test_a_scalar_is_what_kubectl_reads(text: str, value: object) -> None:
    """This covers octal, binary, underscores, exponents, words, dates and clock times in YAML, which JSON does not have."""
    found = one(f"v: {text}\n")["v"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "9007199254740993.0",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "0xffffffffffffffff",
        ),
        *("+9999999999999999999", "1e16", "1e300", "9" * 300),
    ],
)
def test_a_number_that_an_api_server_changes_is_refused(text: str) -> None:
    """kubectl prints 9223372036854776000 for 9223372036854775808, so the written digits would be lost."""
    assert refusal(f"spec: {{v: {text}}}\n") == f"job.yaml:1: spec.v: {LARGE}"
    if text[0] not in "+0":
        assert refusal(f'{{"spec": {{"v": {text}}}}}') == f"job.yaml:1: spec.v: {LARGE}"


@pytest.mark.parametrize("text", [".inf", "-.INF", "+.Inf", ".nan", ".NaN", ".NAN"])
def test_what_is_no_json_number_is_refused(text: str) -> None:
    """kubectl refuses it, too."""
    assert refusal(f"v: {text}") == f"job.yaml:1: v: is {text}, which is not a JSON number; put it in quotes"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: |\n  x", {"a": "x\n"}),
        ("a: |-\n  x", {"a": "x"}),
        ("a: x\r\nb: |\r\n  c\r\n  d\r\n", {"a": "x", "b": "c\nd\n"}),
        ("# said\n---\na: 1\n---\n# nothing\n", {"a": 1}),
        ("--- # said\na: 1\n...\n", {"a": 1}),
        ("a: 1\n---\n---\n...\n", {"a": 1}),
        ("a: {b: 1, c:d, e: http://x/y:z}", {"a": {"b": 1, "c:d": None, "e": "http://x/y:z"}}),
        ("a: http://x/y?z=1", {"a": "http://x/y?z=1"}),
        ('a: ["x?y", {? b : c}]', {"a": ["x?y", {"b": "c"}]}),
        ("{a: 08, 'b': y}", {"a": 8, "b": True}),
        ("\u00a0{'a': 1}", {"a": 1}),
        ('{"a": 1} # said', {"a": 1}),
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ('{"a": NaN}', {"a": "NaN"}),
        ("-5: a\n0: b", {"-5": "a", "0": "b"}),
        ('"<<": 5', {"<<": 5}),
    ],
)
def test_a_document_is_what_kubectl_reads(text: str, value: object) -> None:
    """The last line gets a line break, separators and comments are no documents, and text that begins like JSON may be YAML."""
    assert one(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{\n\t"a":\t[1,\r\n\t2]\n}\n', {"a": [1, 2]}),
        (r'{"a": "\ud83d\ude9a \u00e9 \/ \u0000"}', {"a": "\U0001f69a \u00e9 / \0"}),
        ('{"a": "\u2028\ufeff\x7f"}', {"a": "\u2028\ufeff\x7f"}),
        (
            ' \n\t{"a": {"b": [], "c": {}, "": null}, "d": [true, false]}',
            {"a": {"b": [], "c": {}, "": None}, "d": [True, False]},
        ),
        ('{"a": [8.0, 1e3, -0, -0.0, 1.10, 0.5e-1]}', {"a": [8, 1000, 0, 0, 1.1, 0.05]}),
        (
            '{"a": 9223372036854775807, "on": 1, "~": 2, "010": 3}',
            {"a": 9223372036854775807, "on": 1, "~": 2, "010": 3},
        ),
    ],
)
def test_json_is_read_by_a_reader_of_json(text: str, value: object) -> None:
    """Tabs, surrogate pairs, escapes and keys are read as JSON, also where YAML would read them differently."""
    found = one(text)
    assert json.dumps(found) == json.dumps(value)


def test_lines_of_json_are_those_of_the_file() -> None:
    """A problem with a field can therefore be reported with its line."""
    text = '\n{\n\t"a": [\n\t\t1,\n\t\t{"b": 2}\n\t],\n\t"c": {}\n}'
    lines = {(): 2, ("a",): 3, ("a", 0): 4, ("a", 1): 5, ("a", 1, "b"): 5, ("c",): 7}
    assert read(text, source="").lines == lines


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"spec": {"a": 1,\n "a": 2}}', "job.yaml:2: spec.a: duplicate key, first on line 1"),
        (
            r'{"a": "\ud83d"}',
            "job.yaml:1: a: has an unpaired surrogate, which is not valid Unicode text; write the character",
        ),
        ('{"a": 1}\n{"a": 2}', "job.yaml:2: holds 2 documents"),
        ('{"a": 1}\n---\nb: 2', "job.yaml:3: holds 2 documents"),
        ('{"a": 1}\x85', "job.yaml: has blanks after its end that JSON does not know; remove them"),
        ('{"a": 1,\n"b" 2}', "job.yaml: is not readable as JSON: expected ':' in line 2"),
        ('{"a": [1\n', "job.yaml: is not readable as JSON: expected ',' in line 2"),
        ('{"a": "x\n', "job.yaml: is not readable as JSON: invalid control character at in line 1"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "job.yaml:1: is nested more than 100 levels deep"),
        ('{"a": [' + "0, " * 20_000 + "0]}", "job.yaml:1: holds more than 20000 values"),
    ],
)
def test_json_that_is_refused_is_told_with_its_place(text: str, sentence: str) -> None:
    """The place is named for broken JSON, a duplicate key, half a surrogate pair, a second value, and a file that is too large."""
    assert refusal(text).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: &a {x: 1}\nb: &b {<<: *a, z: 2}\nc: *b\nd: [*b, {<<: *b, x: 3}]", {"x": 1, "z": 2}),
        ("b: &b {x: 1, z: 2}", {"x": 1, "z": 2}),
        ("a: &a {x: 1, z: 1}\nw: &w {x: 2}\nb: {<<: [*w, *a], z: 2}", {"x": 2, "z": 2}),
        ("b: {<<: {<<: {x: 1}, z: 2}}", {"x": 1, "z": 2}),
        ("a: &a {x: 0}\nw: &a {x: 1}\nb: {<<: *a, z: 2}", {"x": 1, "z": 2}),
        ("b: {<<: [], x: 1, z: 2}", {"x": 1, "z": 2}),
        ("a: &q\n  b: &q {x: 1, z: 2}\nb: *q", {"x": 1, "z": 2}),
    ],
)
def test_anchors_are_merged_as_kubectl_merges_them(text: str, value: object) -> None:
    """This includes anchors that were merged themselves, used again, or redefined: the nearest one above counts."""
    assert one(text)["b"] == value


def test_a_key_above_the_merge_that_brings_it_is_refused() -> None:
    """By YAML's rule the map's own value wins, while kubectl takes the merged one."""
    told = refusal("a: &a {x: 1}\nb:\n  x: 2\n  <<: *a\n")
    assert (
        told
        == 'job.yaml:4: b["<<"]: merges x, which is also set above it, and kubectl takes the merged value; write << first'
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: &a [{x: 1}]\nb: {<<: *a}", 'b["<<"]: must be a map, or a list of maps, to be merged'),
        ("b: {<<: }", 'b["<<"]: must be a map, or a list of maps, to be merged'),
        ("a: *b", "is not readable as YAML: *b has no anchor &b above it"),
        ("a: 1\n---\nb: 2", "job.yaml:3: holds 2 documents; keep one IdempotentJob per file"),
        (
            "a: 1\n...\nb: 2",
            "job.yaml:3: is not readable as YAML after the end of its document, where kubectl stops reading: ",
        ),
        ("a: 1\n...\nb: [", "is not readable as YAML after the end of its document, where kubectl stops reading: "),
        ("--- {a: 1}", "job.yaml:1: has '--- {a: 1}', which kubectl refuses as the separator of documents"),
        ("---a: 1", "job.yaml:1: has '---a: 1', which kubectl refuses as the separator of documents"),
        ("# said\n%YAML 1.1\n---\na: 1", "job.yaml:2: is a YAML directive, which kubectl does not read; remove it"),
        ("a: 1\n\ufeffb: 2", "job.yaml:2: has a byte order mark within the file; remove it"),
        (r'a: "x\/y"', r"job.yaml:1: a: has the escape \/, which kubectl refuses in YAML; write / alone"),
        (r'a: "\ud83d\ude9a"', "job.yaml:1: a: is not readable as YAML"),
        ("a: !!float 9007199254740993", f"job.yaml:1: a: {LARGE}"),
        ("a: ! 5", "job.yaml:1: a: has the YAML tag !"),
        ("a: !x 5", "job.yaml:1: a: has the YAML tag !x"),
        ("a: !!int 5.5", "job.yaml:1: a: is '5.5', which is not of type int; put it in quotes"),
        (
            "a: [b, http://x/y?z=1]",
            "job.yaml:1: a[1]: has a ? within braces or brackets, where kubectl takes it for the mark of a key",
        ),
        ("010: a", "job.yaml:1: has the key 010, which YAML does not read as text; put it in quotes"),
        ("y: a", "job.yaml:1: has the key y, which YAML does not read as text; put it in quotes"),
        (b"a: \xe9", "job.yaml is not text in UTF-8 (byte 3)"),
        (b"\xff\xfea\x00:\x00 ", "job.yaml is not text in UTF-16 (byte 6)"),
        ("a: 1".encode("utf-32"), "job.yaml is UTF-32, which kubectl does not read; save it as UTF-8"),
    ],
)
def test_a_document_that_is_refused_is_told_with_its_place(text: str | bytes, sentence: str) -> None:
    """Refused are documents that kubectl refuses, or of which it would lose something."""
    assert sentence in refusal(text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_a_file_is_read_in_the_encodings_of_kubectl(encoding: str) -> None:
    """UTF-8 with and without byte order mark, and UTF-16 with one."""
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    assert one(decoded(mark + "a: Zürich 東京 🚚".encode(encoding), source="")) == {"a": "Zürich 東京 🚚"}


def test_aliases_are_bounded_as_kubectl_bounds_them() -> None:
    """As in kubectl, a document of which over 99 % of the values come from aliases is refused, long before it becomes huge."""
    lists = [
        f"{name}: &{name} [{', '.join([below] * 10)}]"
        for name, below in (("a", "x"), ("b", "*a"), ("c", "*b"), ("d", "*c"))
    ]
    assert len(one("\n".join(lists[:3]))) == 3
    told = refusal("\n".join(lists))
    assert told.endswith("repeats one part by aliases more often than kubectl reads; write the parts out")


def test_the_documents_of_a_file_share_one_bound() -> None:
    """The values of a thousand small documents with aliases are counted together, and exceed the limit."""
    part = "a: &a [x, x, x, x, x, x, x, x]\nb: [*a, *a, *a, *a, *a, *a]\n"
    with pytest.raises(InvalidJob, match="holds more than 20000 values"):
        read_all("---\n".join([part] * 1000), source="")


def test_each_document_keeps_the_lines_of_the_file() -> None:
    """`convert` uses the lines to take a document's own text from the file."""
    found = read_all("# said\na: 1\n---\n\nb: 2\n--- # said\n", source="")
    assert [(each.tree.data, each.tree.lines[()]) for each in found] == [({"a": 1}, 2), ({"b": 2}, 5)]
    assert [each.text.split("\n").index(line) for each, line in zip(found, ["a: 1", "b: 2"], strict=True)] == [1, 4]


def test_pyyamls_own_parser_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads `[a:]` as a map. Without libyaml, YAML is therefore refused, and only JSON is read."""
    monkeypatch.setattr(yaml_reader, "_PARSER", None)
    assert "PyYAML has no libyaml here" in refusal("a: 1")
    assert one('{"a": 1}') == {"a": 1}


def test_whatever_is_drawn_is_read_or_refused_in_a_sentence() -> None:
    """No document raises a Python error, and none has two meanings: what was read is read again the same from its JSON."""
    refused: list[str] = []
    for _, data in draw(1, 1000):
        try:
            found = read(decoded(data, source="f"), source="f").data
        except InvalidInput as problem:
            refused.append(str(problem))
        else:
            assert read(json.dumps(found), source="f").data == found
    assert not [each for each in refused if "\n" in each]
