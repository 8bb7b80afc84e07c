"""Reads JSON text as kubectl does: JSON values with the line of each, or a refusal with path and line.

Python's own decoder reports neither lines nor the paths of duplicate keys, accepts NaN, and stops at a recursion limit. A YAML parser would
refuse JSON with tabs or surrogate pairs, which kubectl reads with a JSON decoder.

Refused although kubectl reads it: a duplicate key, an unpaired surrogate (kubectl makes U+FFFD of it), and numbers that do not survive an
API server.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined] # typeshed does not know it
from typing import Any

from sparkonce.model.document.yaml_reader import DEPTH, LARGE, lone_surrogate, number, refused
from sparkonce.model.validation import Loc, path_text

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_LONGEST = 400  # digits of a number: no float has more before its point; bounds the conversion


class NotJson(ValueError):
    """The text is not JSON, so kubectl reads it as YAML. Its message names what was expected, and the line."""


class JsonReader:
    """Reads the values that follow one another in a text.

    most: the largest number of values and keys."""

    def __init__(self, text: str, *, source: str, most: int) -> None:
        self._text, self._source, self._most = text, source, most
        self.lines: dict[Loc, int] = {}
        """Of the last value: the line of each key and entry, counted from 1."""
        self._nodes = 0
        self._seen, self._line = 0, 1
        """Position up to which lines are counted, and its line."""

    def value(self, at: int) -> tuple[Any, int]:
        """The value that begins at this position, and the position of the first character after it that is not blank.

        Raises: NotJson. InvalidJob: JSON that is refused."""
        self.lines = {}
        return self._value((), self._blank(at))

    def _value(self, loc: Loc, at: int) -> tuple[Any, int]:
        self.lines.setdefault(loc, self._line_at(at))
        self._count(loc, at)
        match self._text[at : at + 1]:
            case "{":
                return self._map(loc, at)
            case "[":
                return self._list(loc, at)
            case '"':
                return self._string(loc, at)
        for word, meant in _WORDS.items():
            if self._text.startswith(word, at):
                return meant, self._blank(at + len(word))
        if found := _NUMBER.match(self._text, at):
            return self._number(loc, found), self._blank(found.end())
        raise self._not_json("a value", at)

    def _map(self, loc: Loc, at: int) -> tuple[dict[str, Any], int]:
        made: dict[str, Any] = {}
        at = self._blank(at + 1)
        while self._text[at : at + 1] != "}":
            if made:
                at = self._blank(self._after(",", at))
            if self._text[at : at + 1] != '"':
                raise self._not_json("a key in quotes", at)
            began = at
            name, at = self._string(loc, at)
            here = (*loc, name)
            if name in made:
                raise self._refuse(here, began, f"duplicate key, first on line {self.lines[here]}")
            self._count(here, began)
            self.lines[here] = self._line_at(began)
            made[name], at = self._value(here, self._blank(self._after(":", at)))
        return made, self._blank(at + 1)

    def _list(self, loc: Loc, at: int) -> tuple[list[Any], int]:
        made: list[Any] = []
        at = self._blank(at + 1)
        while self._text[at : at + 1] != "]":
            if made:
                at = self._blank(self._after(",", at))
            value, at = self._value((*loc, len(made)), at)
            made.append(value)
        return made, self._blank(at + 1)

    def _string(self, loc: Loc, at: int) -> tuple[str, int]:
        try:
            text, end = scanstring(self._text, at + 1, True)
        except json.JSONDecodeError as broken:
            raise NotJson(f"{broken.msg[:1].lower()}{broken.msg[1:]} in line {self._line_at(at)}") from None
        if lone_surrogate(text):
            raise self._refuse(
                loc, at, "has an unpaired surrogate, which is not valid Unicode text; write the character"
            )
        return text, self._blank(end)

    def _number(self, loc: Loc, found: re.Match[str]) -> int | float:
        whole = found[2] is None and found[3] is None
        short = len(found[0]) <= _LONGEST
        kept = number(int(found[0]) if whole else float(found[0])) if short else None
        if kept is None:
            raise self._refuse(loc, found.start(), LARGE)
        return kept

    def _after(self, mark: str, at: int) -> int:
        if self._text[at : at + 1] != mark:
            raise self._not_json(f"'{mark}'", at)
        return at + 1

    def _blank(self, at: int) -> int:
        found = _BLANK.match(self._text, at)
        return found.end() if found else at

    def _line_at(self, at: int) -> int:
        if at > self._seen:
            self._line += self._text.count("\n", self._seen, at)
            self._seen = at
        return self._line

    def _count(self, loc: Loc, at: int) -> None:
        self._nodes += 1
        if self._nodes > self._most:
            told = f"holds more than {self._most} values; move long lists into a file that the job reads"
            raise refused(told, self._source, self._line_at(at))
        if len(loc) >= DEPTH:
            raise refused(f"is nested more than {DEPTH} levels deep", self._source, self._line_at(at))

    def _not_json(self, expected: str, at: int) -> NotJson:
        return NotJson(f"expected {expected} in line {self._line_at(at)}")

    def _refuse(self, loc: Loc, at: int, sentence: str) -> Exception:
        return refused(sentence, self._source, self._line_at(at), path_text(loc))
