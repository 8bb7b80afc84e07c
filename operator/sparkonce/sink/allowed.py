"""Which outputs a namespace may have the operator act on: the administrator's list of prefixes (`outputs.allowed`). Pure.

An output is compared by the location that its sink opened, never by the text that a tenant wrote: `s3://` and `s3a://` are one place,
local paths are absolute with their symbolic links followed, and Azure's account is filled in. It is compared part by part, so that
`s3://lake/team-a` does not allow `s3://lake/team-abc`. Names of buckets and paths are compared with their case: on a store that ignores
case this refuses too much, never too little.

A catalog's table has no location before it exists, and afterwards the one that the catalog chose. Such tables are listed by name,
`iceberg:<catalog>.<namespace>.<table>` or the beginning of that; where the catalog stores them is not checked. Slot logs and Delta tables
are listed by location.

Prefixes of local folders name real folders: a link in a prefix is not followed, because a tenant might have made it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, ValidationError

from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.model.spec import ResourceModel
from sparkonce.sink.objects import cloud
from sparkonce.sink.objects.location import on_store

NAMESPACE = "{namespace}"
"""Placeholder in a prefix for the name of the job's namespace."""
ICEBERG = "iceberg:"
"""Begins the prefix of a catalog's tables."""
SHOWN = 3
"""Prefixes that a refusal quotes."""

_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_GLOB = re.compile(r"[*?\[\]{}\\\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Place:
    """A location in comparable form."""

    store: str
    """A bucket's canonical URL, `file` or `iceberg`."""
    parts: tuple[str, ...]

    @classmethod
    def of(cls, kind: str, uri: str) -> Self:
        """The place of an opened sink (its `kind` and `uri`), or of a declared output of that kind.

        Raises: InvalidInput, OutputUnsupported: not a location."""
        return cls.parse(f"{ICEBERG}{uri}" if kind == "iceberg" else uri)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a prefix or location. Raises: InvalidInput, OutputUnsupported: not a URL, an absolute path or a name in a catalog."""
        if text.startswith(ICEBERG):
            names = text.removeprefix(ICEBERG).removesuffix(".").split(".")
            if not all(names) or any(_GLOB.search(each) or "/" in each for each in names):
                raise InvalidInput(f"{text} names no catalog; write {ICEBERG}catalog.namespace")
            return cls("iceberg", tuple(names))
        if on_store(text):
            place = cloud.parse(text, field="the location")  # not quoted: it may hold a password
            bare = cloud.StoreLocation(
                family=place.family, bucket=place.bucket, path="", account=place.account, host=place.host.lower()
            )
            return cls(bare.uri, _parts(place.path))
        return cls("file", _parts(_folder(text)))

    def below(self, prefix: Place) -> bool:
        """Whether it is the prefix, or under it."""
        return self.store == prefix.store and self.parts[: len(prefix.parts)] == prefix.parts


def _folder(text: str) -> str:
    path = text
    if text.lower().startswith("file:"):
        url = urlsplit(text)
        if url.netloc not in ("", "localhost") or url.query or url.fragment:
            raise InvalidInput(f"{text} is not the URI of a local folder; write file:///folder")
        path = unquote(url.path)
    if not path.startswith("/") or _GLOB.search(path):
        raise InvalidInput(f"{text} is not the absolute path of a folder; write /folder or file:///folder")
    if ".." in path.split("/"):
        raise InvalidInput(f"{text} has a `..` part, whose meaning depends on links; write the path plainly")
    return posixpath.normpath(path)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


class NamespaceSelector(ResourceModel):
    """Selects namespaces by their labels, which the cluster's administrators set."""

    match_labels: Annotated[dict[str, str], Field(min_length=1)]


class AllowedPrefixes(ResourceModel):
    """One entry of the list. Without `namespace` and `namespace_selector` it holds for every namespace."""

    namespace: Annotated[str, Field(pattern=_LABEL, max_length=63)] | None = None
    namespace_selector: NamespaceSelector | None = None
    prefixes: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], Field(min_length=1)]

    def holds(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Whether the entry applies to the namespace. `labels`: of the namespace; None: unknown, and no selector matches."""
        if self.namespace not in (None, namespace):
            return False
        if self.namespace_selector is None:
            return True
        wanted = self.namespace_selector.match_labels
        return labels is not None and all(labels.get(name) == value for name, value in wanted.items())


@dataclass(frozen=True)
class AllowedOutputs:
    """The administrator's list."""

    entries: tuple[AllowedPrefixes, ...]

    @classmethod
    def of(cls, listed: object) -> Self:
        """Validates parsed YAML or JSON: a list of `{namespace | namespaceSelector, prefixes}`.

        Raises: InvalidInput: names the entry and what is wrong with it."""
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            raise InvalidInput(
                "the list of allowed outputs is not a list; write `- {namespace: NAME, prefixes: [URL]}`"
            )
        return cls(tuple(_entry(number, each) for number, each in enumerate(listed)))

    @property
    def by_label(self) -> bool:
        """Whether any entry selects namespaces by their labels."""
        return any(each.namespace_selector is not None for each in self.entries)

    def prefixes(self, namespace: str, labels: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """The prefixes of a namespace, with its name filled in."""
        own = (each for each in self.entries if each.holds(namespace, labels))
        return tuple(text.replace(NAMESPACE, namespace) for each in own for text in each.prefixes)

    def refusal(self, kind: str, uri: str, *, namespace: str, labels: Mapping[str, str] | None = None) -> str:
        """Why the namespace may not use this output, beginning with the location; empty: it may."""
        prefixes = self.prefixes(namespace, labels)
        try:
            place = Place.of(kind, uri)
        except (InvalidInput, OutputUnsupported) as unknown:
            return f"{uri} cannot be compared with the outputs allowed for namespace {namespace} ({unknown})"
        if any(place.below(Place.parse(each)) for each in prefixes):
            return ""
        own = ", ".join(prefixes[:SHOWN]) + (", ..." if len(prefixes) > SHOWN else "")
        return f"{uri} is not among the outputs allowed for namespace {namespace} ({own or 'none'})"


def _entry(number: int, given: Any) -> AllowedPrefixes:
    at = f"entry {number + 1} of the list of allowed outputs"
    try:
        entry = AllowedPrefixes.model_validate(given)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise InvalidInput(f"{at}: {where}: {first['msg']}") from None
    if entry.namespace is not None and entry.namespace_selector is not None:
        raise InvalidInput(f"{at} has namespace and namespaceSelector; keep one of the two")
    for position, text in enumerate(entry.prefixes, start=1):
        try:
            Place.parse(text.replace(NAMESPACE, "n"))
        except (InvalidInput, OutputUnsupported) as problem:
            raise InvalidInput(f"{at}, prefix {position}: {problem}") from None
    return entry
