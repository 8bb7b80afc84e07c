"""Turns validation errors into sentences for users: field path, fact, remedy.

Pydantic's messages speak of Python ("Input should be a valid tuple"), but the user wrote YAML. Each problem becomes a path in YAML spelling
and a sentence about that field, with the closest known name for a misspelt one. All problems of a manifest are reported together, so that
users need not find them one run at a time; those after the first fifty are only counted.
"""

from __future__ import annotations

import difflib
import json
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from sparkonce.errors import InvalidInput

Loc = tuple[str | int, ...]
"""Location in a document: map keys and list positions."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
LISTED = 50
"""Problems with a sentence of their own, which takes a tenth of a millisecond each; an object may have tens of thousands."""
_TOLD = 5  # problems in one sentence; with more of them a user fixes these first


class Problem(NamedTuple):
    path: str
    """In YAML spelling, `spec.outputs[0].name`; empty for the manifest as a whole."""
    message: str


class InvalidJob(InvalidInput, ValueError):
    """Not a valid job: nothing was sent and nothing was written. `problems` lists paths, each with its sentence."""

    def __init__(
        self, problems: Iterable[tuple[str, str]], *, source: str = "", lines: Sequence[int | None] = (), more: int = 0
    ) -> None:
        self.problems: tuple[Problem, ...] = tuple(Problem(*each) for each in problems)
        self.more = more
        """Problems that are not listed."""
        self.source = source
        self.lines: tuple[int | None, ...] = tuple(lines) or (None,) * len(self.problems)
        """Line in `source` of each problem, counted from 1; None: unknown."""
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        told = []
        for problem, line in list(zip(self.problems, self.lines, strict=True))[:_TOLD]:
            where = f"{self.source}:{line}" if self.source and line else self.source
            told.append(": ".join(part for part in (where, problem.path, problem.message) if part))
        more = len(self.problems) - len(told) + self.more
        return "; ".join(told) + (f"; and {more} more" if more else "")


def path_text(loc: Iterable[str | int]) -> str:
    """`spec.outputs[0].path`; a key that is not a plain word is quoted: `sparkConf["spark.sql.x"]`. Distinct locs have distinct texts."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part, ensure_ascii=False)}]"
    return text


def refuse(title: str, problems: Sequence[tuple[Loc, str]]) -> NoReturn:
    """For validators: raises the problems, which pydantic locates below the model's own path."""
    raise ValidationError.from_exception_data(
        title,
        [
            InitErrorDetails(
                type=PydanticCustomError("sparkonce", "{sentence}", {"sentence": sentence}), loc=loc, input=None
            )
            for loc, sentence in problems
        ],
    )


def value_at(fields: Mapping[str, Any], path: str) -> Any:
    """The value below these fields at a dotted path; None: there is none."""
    value: Any = fields
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or the known names if none is close."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), [each.lower() for each in names], n=1, cutoff=0.6)
    if near:
        return f"; did you mean {next(each for each in names if each.lower() == near[0])}?"
    return f"; known here: {', '.join(names)}" if names else ""


def invalid_job(error: ValidationError, model: type[BaseModel], *, source: str, lines: Mapping[Loc, int]) -> NoReturn:
    """Raises InvalidJob with the first of pydantic's errors as sentences about fields of `model`."""
    problems: list[Problem] = []
    at: list[int | None] = []
    for details in error.errors(include_url=False)[:LISTED]:
        loc = _document_loc(details["loc"])
        problems.append(Problem(path_text(loc), _message(details, loc, model)))
        at.append(line_of(loc, lines))
    raise InvalidJob(problems, source=source, lines=at, more=error.error_count() - len(problems)) from None


def listed(problems: Sequence[tuple[Loc, str]], *, source: str, lines: Mapping[Loc, int]) -> InvalidJob:
    """The error of these problems, of which the first are spelled out."""
    first = problems[:LISTED]
    told, at = [(path_text(loc), sentence) for loc, sentence in first], [line_of(loc, lines) for loc, _ in first]
    return InvalidJob(told, source=source, lines=at, more=len(problems) - len(first))


def line_of(loc: Loc, lines: Mapping[Loc, int]) -> int | None:
    """Line of the field, or of the closest enclosing field that the document has; None: unknown."""
    for end in range(len(loc), -1, -1):
        if (line := lines.get(loc[:end])) is not None:
            return line
    return None


def _document_loc(loc: Loc) -> Loc:
    """The location without the step that pydantic adds for a map key that is not text."""
    return loc[:-1] if loc and loc[-1] == "[key]" else loc


def _message(details: ErrorDetails, loc: Loc, model: type[BaseModel]) -> str:
    given = _shown(details.get("input"))
    context = details.get("ctx", {})
    match details["type"]:
        case "sparkonce":
            return str(context["sentence"])
        case "missing":
            return "is required"
        case "extra_forbidden":
            return f"is not a field here{did_you_mean(str(loc[-1]), _fields_at(model, loc[:-1]))}"
        case "string_type":
            return f"must be text, not {given}; put it in quotes"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"must be a whole number, not {given}"
        case "bool_type":
            return f"must be true or false, not {given}"
        case "enum" | "literal_error":
            return f"must be {str(context['expected']).replace(chr(39), '')}, not {given}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, not {given}"
        case "less_than_equal":
            return f"must be at most {context['le']}, not {given}"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters"
        case "string_too_short" | "too_short":
            return "must not be empty"
        case "too_long":
            return f"must have at most {context['max_length']} entries"
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"must be a map of fields, not {given}"
        case "tuple_type" | "list_type":
            return f"must be a list, not {given}"
        case "invalid-json-value":
            return f"must be plain JSON, not {given}"
    return details["msg"][:1].lower() + details["msg"][1:]


def _shown(value: object) -> str:
    match value:
        case None:
            return "empty"
        case dict():
            return "a map"
        case list() | tuple():
            return "a list"
        case bool():
            return str(value).lower()
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """Names of the fields allowed at `loc`; none where any name is allowed."""
    current: Any = model
    for part in loc:
        if isinstance(part, int):
            current = next(iter(get_args(current)), None)
        else:
            names = _by_alias(current)
            if part not in names:
                return []
            current = names[part]
        current = _bare(current)
    return list(_by_alias(current))


def _by_alias(model: Any) -> dict[str, Any]:
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return {}
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _bare(annotation: Any) -> Any:
    """`X` of `X | None` and of `Annotated[X, ...]`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _bare(get_args(annotation)[0])
    if origin in {Union, types.UnionType}:
        return _bare(next(each for each in get_args(annotation) if each is not type(None)))
    return annotation
