"""Draws job files as people and programs write them, well and badly: scalars of every look, styles, anchors and merges, JSON, encodings,
line breaks, several documents, and texts with a few characters changed.

Each file has an IdempotentJob whose name is the file's, so that kubectl's output for many files can be assigned to them. `spec` is whatever
was drawn: neither kubectl nor our reader interprets it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

from sparkonce.model.spec import API_VERSION, KIND

NOTABLE = (
    "08", "0123", "-0123", "0o17", "0O17", "-0o7", "0x1F", "0X1f", "-0x1F", "0b11", "-0b11", "0b-1", "0B11", "0x_", "0b", "0o", "0x",
    "00", "1.10", "1_000", "1__0", "_1", "1_", "-0", "-0.0", "+1", "+0.5", "1e3", "1E-3", "1e", "1e400", ".1e400", "1e-400", ".5_0",
    "._5", ".5", "5.", ".", "9007199254740993", "9007199254740993.0", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616", "9" * 30, "9" * 400,
    "0x" + "f" * 16, "0x" + "f" * 17, "0b" + "1" * 64, "+" + "9" * 19, "12:30:45", "12:30", "1:2", "190:20:30.15", "2024-05-01",
    "2024-05-01T10:00:00Z", "2024-5-1", "2001-12-14 21:59:43.10", "2024-13-45", "y", "Y", "n", "N", "yes", "Yes", "YES", "yEs", "no",
    "NO", "on", "On", "ON", "off", "OFF", "true", "True", "TRUE", "tRUE", "false", "~", "null", "Null", "NULL", "nULL", "", ".inf",
    "-.INF", "+.Inf", ".nan", ".NaN", ".NAN", "-.nan", "inf", "nan", "Infinity", "=", "<<", "- a", "-", "?", ":", "a:b", "a: b",
    "http://x/y", "http://x/y?z=1", "?a", "a?", "#a", "a #b", "a#b", "%a", "@a", "`a", "!", "&", "*", "|", ">", "'", '"', "Zürich",
    "東京", "🚚", "\u0085", "\u2028", "\ufeff", "\u00a0", "\u007f", "\u200b", "a\tb", " a", "a ", "1,000", "1.2.3", "4.1", "0.1.", "0x1p-2",
)  # fmt: skip
"""Texts that YAML 1.1, YAML 1.2, Python and Go see differently, or whose neighbours do."""
_DIGITS = "00112345678999_+-.eExXobB:"
_ODD = "\t\n\r #:-?,[]{}&*!|>'\"%@`\\/<~=.0179yn_eé\u2028\u0085\ufeff\U0001f69a"
_ESCAPES = (
    "\\x41",
    "\\u00e9",
    "\\U0001f69a",
    "\\0",
    "\\e",
    "\\N",
    "\\_",
    "\\L",
    "\\/",
    "\\ud83d",
    "\\ ",
    "\\q",
    "\\\t",
)
_KEYS = (
    "a",
    "b",
    "c",
    "d",
    "e f",
    "g.h/i",
    "0",
    "7",
    "-5",
    "010",
    "on",
    "y",
    "1.0",
    "~",
    "null",
    "<<",
    '"<<"',
    "'x'",
    '"y"',
    "2024-05-01",
    "é",
)


def draw(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """So many files, each with the name of its object."""
    for number in range(count):
        yield f"d{number}", _Draw(random.Random(f"{seed}/{number}"), f"d{number}").file()


class _Draw:
    def __init__(self, dice: random.Random, name: str) -> None:
        self._dice, self._name = dice, name
        self._anchors: list[str] = []

    def file(self) -> bytes:
        text = self._pick(
            (4, self._yaml),
            (3, self._scalars),
            (2, self._json),
            (2, lambda: self._changed(self._yaml())),
            (1, lambda: self._changed(self._json())),
            (1, self._stream),
            (1, self._merges),
        )
        return self._encoded(text)

    def _pick(self, *ways: tuple[int, Callable[[], str]]) -> str:
        return self._dice.choices([way for _, way in ways], [weight for weight, _ in ways])[0]()

    def _maybe(self, share: float) -> bool:
        return self._dice.random() < share

    # files

    def _head(self) -> str:
        return f"apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata:\n  name: {self._name}\n"

    def _yaml(self) -> str:
        self._anchors = []
        return f"{self._head()}spec:\n{self._block_map(1, 3)}"

    def _scalars(self) -> str:
        lines = [f"  v{number}: {self._plain()}\n" for number in range(self._dice.randint(1, 3))]
        return f"{self._head()}spec:\n{''.join(lines)}"

    def _json(self) -> str:
        spec = {name: self._value(3) for name in self._dice.sample(["a", "b", "c", "é", ""], 3)}
        document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": self._name}, "spec": spec}
        indent = self._dice.choice([None, 2, "\t", " \t"])
        text = json.dumps(document, indent=indent, ensure_ascii=self._maybe(0.5))
        edits = [
            ("", ""),
            ("}", "}\n"),
            ("}", "} # a comment"),
            ("}", "}\n---\n# nothing\n"),
            ('"spec"', '"spec": {}, "spec"'),
            ('"spec": {', '"spec": {"s": "\\ud83d\\ude9a", '),
            ('"spec": {', '"spec": {"s": "\\ud83d", '),
            ('"spec": {', '"spec": {"n": ' + self._dice.choice(NOTABLE[:60]) + ", "),
            ('"spec": {', '"spec": {"s": "a\\/b\\u0000\\u007f", '),
            ('"spec": {', '"spec": {"s": "a\tb", '),
            ('"spec": {', '"spec": {unquoted: x, '),
        ]
        old, new = self._dice.choice(edits)
        at = text.rfind(old) if old == "}" else text.find(old)
        text = text[:at] + new + text[at + len(old) :] if old and at >= 0 else text
        return self._dice.choice(["", "", "", " ", "\n\t", "\u00a0"]) + text

    def _value(self, depth: int) -> object:
        match self._dice.randint(0, 7 if depth else 4):
            case 0:
                return self._dice.choice(NOTABLE)
            case 1:
                return self._dice.choice([0, -1, 7, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30])
            case 2:
                return self._dice.choice([0.5, -0.0, 1.0, 1e3, 1e16, 1e21, 1e-7, 1e300])
            case 3:
                return self._dice.choice([True, False, None])
            case 4:
                return "".join(self._dice.choices(_ODD, k=self._dice.randint(0, 6)))
            case 5 | 6:
                return {name: self._value(depth - 1) for name in self._dice.sample(["a", "b", "7", "~", "on"], 2)}
        return [self._value(depth - 1) for _ in range(self._dice.randint(0, 3))]

    def _changed(self, text: str) -> str:
        """The text with a few characters of `spec` changed, left out or added."""
        first = text.find("spec") + 6
        for _ in range(self._dice.randint(1, 3)):
            at = self._dice.randint(min(first, len(text)), len(text))
            text = (
                text[:at] + self._dice.choice(_ODD) * self._dice.randint(0, 1) + text[at + self._dice.randint(0, 1) :]
            )
        return text

    def _stream(self) -> str:
        parts = [self._yaml()]
        more = [
            "",
            "# nothing\n",
            "~\n",
            "\n\n",
            self._yaml(),
            "{}\n",
            "%YAML 1.1\n",
            "...\n",
            "x: y\n",
            "null # nothing\n",
        ]
        separators = ["---\n", "--- \n", "--- # a comment\n", "...\n", "---\t\n", "---x\n", "--- {a: b}\n", "---\r\n"]
        for _ in range(self._dice.randint(1, 2)):
            extra, separator = self._dice.choice(more), self._dice.choice(separators)
            parts = [extra, separator, *parts] if self._maybe(0.5) else [*parts, separator, extra]
        return "".join(parts)

    def _merges(self) -> str:
        """`<<` in every place, of anchors that were merged themselves, used again and again."""
        names = ["a", "b", "c"]
        lines = ["  base: &m0 {a: 1, b: 2}\n"]
        for number in range(1, self._dice.randint(2, 5)):
            merged = [f"*m{self._dice.randrange(number)}" for _ in range(self._dice.randint(1, 2))]
            given = self._dice.choice([merged[0], f"[{', '.join(merged)}]", "{a: 5, d: 6}", "~", "[]"])
            own = [
                f"{name}: {self._dice.randint(10, 99)}" for name in self._dice.sample(names, self._dice.randint(0, 2))
            ]
            own.insert(self._dice.randint(0, len(own)) if self._maybe(0.3) else 0, f"<<: {given}")
            lines.append(f"  m{number}: &m{number} {{{', '.join(own)}}}\n")
            if self._maybe(0.5):
                lines.append(f"  u{number}: *m{number}\n")
        return f"{self._head()}spec:\n{''.join(lines)}"

    def _encoded(self, text: str) -> bytes:
        if self._maybe(0.1):
            text = text.replace("\n", "\r\n")
        if self._maybe(0.1):
            text = text.rstrip("\r\n")
        if self._maybe(0.85):
            return text.encode(errors="surrogatepass")
        encoding = self._dice.choice(
            ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252", "big-endian"]
        )
        if encoding == "big-endian":
            return b"\xfe\xff" + text.encode("utf-16-be", errors="surrogatepass")
        return text.encode(encoding, errors="replace")

    # YAML

    def _plain(self) -> str:
        if self._maybe(0.6):
            return self._dice.choice(NOTABLE)
        return "".join(self._dice.choices(_DIGITS, k=self._dice.randint(1, 7)))

    def _scalar(self, indent: int) -> str:
        """A scalar in one of five styles, whose lines after the first are indented by so many levels."""
        text = self._plain()
        match self._dice.randint(0, 9):
            case 0:
                return f"'{text.replace(chr(39), chr(39) * 2)}'"
            case 1:
                return json.dumps(text, ensure_ascii=self._maybe(0.5))
            case 2:
                escape = self._dice.choice(_ESCAPES)
                return f'"a{escape}b"'
            case 3:
                pad = "  " * indent
                style = self._dice.choice("|>") + self._dice.choice(["", "-", "+", "2", "-1", "+2"])
                lines = self._dice.choices(["a", " b", "", "c: d", "# e", "\tf", "7"], k=self._dice.randint(1, 4))
                return f"{style}\n" + "\n".join(pad + line if line else "" for line in lines)
            case 4:
                tag = self._dice.choice(
                    ["!!str", "!!int", "!!float", "!!bool", "!!null", "!!binary", "!x", "!", "!!timestamp"]
                )
                return f"{tag} {text}"
            case 5:
                pad = "  " * indent
                return f"{text or 'a'}\n{pad}{self._plain() or 'b'}"
        return text

    def _node(self, indent: int, depth: int) -> str:
        """What follows `key:` or `-`, with its blank or line break."""
        anchor = ""
        if self._anchors and self._maybe(0.12):
            return f" *{self._dice.choice(self._anchors)}\n"
        if self._maybe(0.12):
            anchor = f" &{self._dice.choice('pqr')}"
        kind = self._dice.randint(0, 9 if depth else 5)
        if kind <= 5:
            made = f"{anchor} {self._scalar(indent)}{' # said' if self._maybe(0.05) else ''}\n"
        elif kind == 6:
            made = f"{anchor} {self._flow(depth)}\n"
        elif kind == 7:
            made = f"{anchor}\n{self._block_list(indent, depth - 1)}"
        else:
            made = f"{anchor}\n{self._block_map(indent, depth - 1)}"
        if anchor:
            self._anchors.append(anchor.strip(" &"))
        return made

    def _key(self) -> str:
        return self._dice.choice(_KEYS[:8]) if self._maybe(0.9) else self._dice.choice(_KEYS)

    def _block_map(self, indent: int, depth: int) -> str:
        keys = [self._key() for _ in range(self._dice.randint(1, 3))]
        if self._maybe(0.95):
            keys = list(dict.fromkeys(keys))
        lines = [f"{'  ' * indent}{key}:{self._node(indent + 1, depth)}" for key in keys]
        if self._anchors and self._maybe(0.15):
            merge = f"{'  ' * indent}<<: *{self._dice.choice(self._anchors)}\n"
            lines.insert(self._dice.randint(0, len(lines)), merge)
        return "".join(lines)

    def _block_list(self, indent: int, depth: int) -> str:
        return "".join(f"{'  ' * indent}-{self._node(indent + 1, depth)}" for _ in range(self._dice.randint(1, 3)))

    def _flow(self, depth: int) -> str:
        inner = [
            self._flow(depth - 1) if depth > 1 and self._maybe(0.3) else self._plain()
            for _ in range(self._dice.randint(0, 3))
        ]
        comma = self._dice.choice([", ", ",", " , "])
        if self._maybe(0.5):
            return f"[{comma.join(inner)}{self._dice.choice(['', '', ','])}]"
        colon = self._dice.choice([": ", ": ", ":", " : "])
        return "{" + comma.join(f"{self._key()}{colon}{each}" for each in inner) + "}"
