"""Hides what looks like a secret in a job, and in its driver's messages and log. Pure.

For display only: a fingerprint, a record's spec and the application have the real values, or a duplicate would not be recognised and a
driver could not log in. Secrets belong in a Kubernetes Secret (`valueFrom`, `envFrom`); this hides those that a job contains anyway.

It hides values of settings and variables with telling names, values after such a name in a text (`-Djavax.net.ssl.keyStorePassword=x`,
`?token=x`, `--password x`), and user and password in URLs. The same values are hidden everywhere in messages and logs, except those too
short for a password: replacing every `1` would make a log unreadable. What a message quotes of a script, a URL or SQL, is hidden likewise.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkonce.model.fields import UnknownTemplateKind, as_text, field_classes

MASK = "***"
_SHORTEST = 6
"""Characters of a value that is searched for in logs."""
_SAYS = r"(?:password|passwd|passphrase|pwd|secret|token|credential|key(?!space|board))"
_NAME = re.compile(_SAYS, re.IGNORECASE)
# A name is looked for where a word begins: from every letter of a long text, as in base64, the search would take minutes. An option's
# value ends at a blank; elsewhere, as in a URL, also at a separator.
_ASSIGNED = re.compile(rf"(?<![\w.-])((?=[\w.-]*?{_SAYS})(-)?[\w.-]+=)((?(2)\S+|[^\s&;,]+))", re.IGNORECASE)
_QUOTED = re.compile(rf"({_SAYS}[\w.-]*['\"`]?[\s=:]+)(['\"])(?:(?!\2).)*(?:\2|$)", re.IGNORECASE)
"""As options of SQL are given."""
_USERINFO = re.compile(r"(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)(?<=://)[^/\s?#]+(?=@)")
"""Azure's URLs have the name of the container there."""
_ORACLE = re.compile(r"(\bjdbc:(?:\w+:)+)[^\s/@]+/\S*(?=@)", re.IGNORECASE)
"""`user/password@`, in URLs of JDBC without `//`."""
_PLAIN = {"", "true", "false"}


def masked(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job's document with secrets hidden."""
    return _Masking(_settings_of(job)).document(job)


def values_of(job: Mapping[str, Any]) -> frozenset[str]:
    """The values that `masked` hides, as far as they can be searched for."""
    masking = _Masking(_settings_of(job))
    masking.document(job)
    return frozenset(value for value in masking.found if len(value) >= _SHORTEST)


def redacted(text: str, values: Collection[str]) -> str:
    """A message or log with these values, and users and passwords of URLs, hidden."""
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK)
    return _USERINFO.sub(MASK, text)


def quotable(text: str) -> str:
    """A URL or SQL of a script as a message quotes it: with user and password of URLs, and values after telling names, hidden."""
    text = _ORACLE.sub(rf"\1{MASK}", _USERINFO.sub(MASK, text))
    return _ASSIGNED.sub(rf"\1{MASK}", _QUOTED.sub(rf"\1{MASK}", text))


def _settings_of(job: Mapping[str, Any]) -> frozenset[str] | None:
    """Names of the maps that hold settings or variables; None: any map may."""
    spec = job.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    given = template if isinstance(template, dict) else {}
    try:
        classes = field_classes(str(given.get("apiVersion")), str(given.get("kind")))
    except UnknownTemplateKind:  # of a record: its entry point is not installed here
        return None
    return frozenset(path.rpartition(".")[2] for path in classes.conf)


@dataclass
class _Masking:
    settings: frozenset[str] | None
    found: list[str] = field(default_factory=list)

    def document(self, job: Mapping[str, Any]) -> dict[str, Any]:
        spec = job.get("spec")
        if not isinstance(spec, dict) or not isinstance(spec.get("template"), dict):
            return dict(job)
        return {**job, "spec": {**spec, "template": self.value(spec["template"])}}

    def value(self, value: Any, *, above: str = "") -> Any:
        match value:
            case dict() if "value" in value and _NAME.search(str(value.get("name", ""))):
                return {**value, "value": self._hide(value["value"])}
            case dict():
                settings = self.settings is None or above in self.settings
                return {name: self._entry(name, each, settings=settings) for name, each in value.items()}
            case list():
                names = ["", *(each if isinstance(each, str) else "" for each in value)]
                return [self._argument(name, each) for name, each in zip(names, value, strict=False)]
            case str():
                return self._text(value)
        return value

    def _entry(self, name: str, value: Any, *, settings: bool) -> Any:
        scalar = isinstance(value, str | int | float)
        return self._hide(value) if settings and scalar and _NAME.search(name) else self.value(value, above=name)

    def _argument(self, before: str, value: Any) -> Any:
        """An entry of a list after another one. An option's value is all that follows its name."""
        if not isinstance(value, str):
            return self.value(value)
        if _is_option(before):
            return self._hide(value)
        shown = self._text(value)
        name, assigned, rest = value.partition("=")
        return f"{name}={self._hide(rest)}" if assigned and _is_option(name) and not re.search(r"\s", name) else shown

    def _text(self, text: str) -> str:
        def hide(found: re.Match[str]) -> str:
            return found[1] + str(self._hide(found[3]))

        for each in _USERINFO.findall(text):
            self.found += [each, each.partition(":")[2]]
        return _ASSIGNED.sub(hide, _USERINFO.sub(MASK, text))

    def _hide(self, value: Any) -> Any:
        if value is None or isinstance(value, dict | list):
            return value
        text = as_text(value)
        if text.lower() in _PLAIN:
            return value
        self.found.append(text)
        return MASK


def _is_option(text: str) -> bool:
    """`--password`, whose value is the next argument."""
    return text.startswith("-") and "=" not in text and _NAME.search(text) is not None
