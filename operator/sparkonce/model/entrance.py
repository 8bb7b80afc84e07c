"""Checks for a job that enters: a job file, a block of code, an object that was not accepted before. Pure.

A recorded spec is parsed again by every later process, so `IdempotentJob` may not become stricter: that would make old records unreadable.
Rules that came later are here instead, and hold for new input alone. They refuse what a ledger cannot keep (lone surrogates, numbers of
hundreds of digits, deep nesting, durations that overflow a date) and what no process can be given (a NUL anywhere, `=` in the name of a
variable or setting), before a key is reserved: later, each would end an attempt or make a record unreadable.
`check_template` refuses a template that contradicts its attempt (`reserved`); it is a step of its own, because an object whose key was
recorded by an earlier version keeps its answer.

Other control characters are allowed: U+0001 is a usual separator of fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from sparkonce.model import reserved
from sparkonce.model.fields import field_classes
from sparkonce.model.spec import DAY, IdempotentJob, JobSpec, Template
from sparkonce.model.validation import Loc, listed, value_at

DIGITS_LIMIT = 308
"""Decimal digits of a number, as many as a ledger keeps."""
DEPTH_LIMIT = 31
"""Nesting of a job: a ledger keeps 32 levels, and a record has one above the job."""
LONGEST = 36_500 * DAY
"""Seconds of a duration: a hundred years. What is added to now must stay a date."""
LARGEST_COUNT = 2**63 - 1
"""Of minRows: larger ones do not fit into the columns of tables and metrics."""


def admit(document: object, *, source: str = "", lines: Mapping[Loc, int] | None = None) -> IdempotentJob:
    """Validates parsed YAML or JSON that asks for a job now. Raises: InvalidJob: names every problem with its field path."""
    lines = lines or {}
    # First what every value must meet: the sentences of validation quote values.
    _refuse(list(_unfit(document)), source, lines)
    job = IdempotentJob.of(document, source=source, lines=lines)
    _refuse([*_durations(job.spec), *_counts(job.spec), *_names(job.spec.template)], source, lines)
    return job


def check_template(job: IdempotentJob, *, source: str = "", lines: Mapping[Loc, int] | None = None) -> None:
    """Checks that a new job's template does not set what names, identifies or places an attempt. A job that only follows an application
    launches nothing, so its template passes.

    Raises: InvalidJob: names every contradiction with its field path."""
    template, at = job.spec.template, ("spec", "template")
    if job.spec.bind is not None:
        return
    classes = field_classes(template.api_version, template.kind)
    problems = [
        *reserved.labels((*at, "metadata", "labels"), template.metadata.labels),
        *reserved.labels((*at, "metadata", "annotations"), template.metadata.annotations),
        *(((*at, "spec", *loc), sentence) for loc, sentence in classes.check_new(template.spec)),
    ]
    _refuse(problems, source, lines or {})


def _refuse(problems: Sequence[tuple[Loc, str]], source: str, lines: Mapping[Loc, int]) -> None:
    if problems:
        raise listed(problems, source=source, lines=lines)


def _unfit(document: object) -> Iterator[tuple[Loc, str]]:
    """Problems of single values, in the order of the document."""
    parts: list[tuple[Loc, object]] = [((), document)]
    while parts:
        loc, each = parts.pop()
        match each:
            case dict() | list() if len(loc) >= DEPTH_LIMIT:
                yield loc, f"is nested more than {DEPTH_LIMIT} levels deep, which a ledger does not keep"
            case dict():
                for name in each:
                    if told := _unfit_text(name) if isinstance(name, str) else "which is not text":
                        yield loc, f"has the key {_quoted(name)}, {told}"
                parts += [((*loc, name), value) for name, value in reversed(each.items()) if _is_text(name)]
            case list():
                parts += [((*loc, index), each[index]) for index in reversed(range(len(each)))]
            case str() if told := _unfit_text(each):
                yield loc, f"is {_quoted(each)}, {told}"
            case int() if abs(each) >= 10**DIGITS_LIMIT:
                yield loc, f"is a number of more than {DIGITS_LIMIT} digits; put it in quotes"
            case float() if not math.isfinite(each):
                yield loc, f"is {each}, which is not a JSON number; put it in quotes"


def _unfit_text(text: str) -> str:
    if "\0" in text:
        return "which has a NUL character in it: no process can be given one; remove it"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "which is not valid Unicode text; write it in UTF-8"
    return ""


def _is_text(name: object) -> bool:
    return isinstance(name, str) and not _unfit_text(name)


def _quoted(text: object) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _durations(spec: JobSpec) -> Iterator[tuple[Loc, str]]:
    backoff, kept, applications = spec.retry.backoff, spec.retention, spec.application_ttl
    for loc, seconds in (
        (("retry", "backoff", "initial"), backoff.initial),
        (("retry", "backoff", "max"), backoff.max),
        (("retention", "succeeded"), kept.succeeded),
        (("retention", "failed"), kept.failed),
        (("applicationTTL", "succeeded"), applications.succeeded),
        (("applicationTTL", "failed"), applications.failed),
    ):
        if seconds > LONGEST:
            yield ("spec", *loc), f"must be at most {LONGEST / DAY:.0f}d, a hundred years"


def _counts(spec: JobSpec) -> Iterator[tuple[Loc, str]]:
    for index, output in enumerate(spec.outputs):
        if output.expect.min_rows > LARGEST_COUNT:
            yield ("spec", "outputs", index, "expect", "minRows"), f"must be at most {LARGEST_COUNT}"


def _names(template: Template) -> Iterator[tuple[Loc, str]]:
    """Names that become `NAME=value` in an environment or on a command line."""
    classes = field_classes(template.api_version, template.kind)
    above: Loc = ("spec", "template", "spec")
    for path in sorted(classes.conf):
        entries = value_at(template.spec, path)
        for name in entries if isinstance(entries, dict) else ():
            if told := _unfit_name(name):
                yield (*above, *path.split("."), name), told
    for path in sorted(classes.environment):
        entries = value_at(template.spec, path)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            given = entry.get("name") if isinstance(entry, dict) else None
            if isinstance(given, str) and (told := _unfit_name(given)):
                yield (*above, *path.split("."), index, "name"), told


def _unfit_name(name: str) -> str:
    if not name:
        return "must have a name that is not empty"
    return "must not contain `=`, which ends a name where it is passed on; write the name alone" if "=" in name else ""
