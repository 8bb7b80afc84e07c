"""The IdempotentJob objects of a cluster, as an operator process needs them; implemented in `kube/`.

What is cached was true once. Nothing is stopped, and no key is called unwanted, because of what a cache or a list does not hold: that
takes `fate`, which asks the API server for each object by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from sparkonce.model.record import Address

Json = dict[str, Any]


@dataclass(frozen=True, order=True)
class ObjectRef:
    """One object, in a record: its UID, and the name by which the API server can be asked for it."""

    uid: str
    namespace: str
    name: str
    created: str = ""
    """creationTimestamp (RFC 3339, UTC), which tells whether its CustomResourceDefinition is an earlier or a later one; "": not known."""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.uid, self.namespace, self.name, self.created)))

    @classmethod
    def parse(cls, text: str) -> ObjectRef:
        """ValueError: not one."""
        uid, namespace, name, *created = text.split("/")
        return cls(uid, namespace, name, *created[:1])

    @classmethod
    def of(cls, body: Json) -> ObjectRef:
        metadata = body["metadata"]
        return cls(metadata["uid"], metadata["namespace"], metadata["name"], metadata.get("creationTimestamp") or "")


class Fate(StrEnum):
    """What became of an object, as live answers of the API server prove it."""

    THERE = "There"
    """Or nothing is proved."""
    GONE = "Gone"
    """Deleted, or being deleted, by somebody who meant it."""
    SWEPT_AWAY = "SweptAway"
    """It went with its CustomResourceDefinition, which is back: nobody withdrew it, and nobody can ask for it any more."""


class Objects(Protocol):
    @property
    def synced(self) -> bool:
        """Every object that existed when this process began to watch has been seen."""
        ...

    def of(self, address: Address) -> Sequence[Json]:
        """The objects of one key as seen last, oldest first."""
        ...

    def addresses(self) -> Collection[Address]: ...

    async def live(self, ref: ObjectRef) -> Json | None:
        """Asks the API server. None: it answered that this object (this UID) is not there. ApiUnavailable, ApiRefused."""
        ...

    async def fate(self, ref: ObjectRef) -> Fate:
        """GONE: the API server, which serves the kind and the namespace, answered that this UID is not there, or is being deleted.
        ApiUnavailable, ApiRefused."""
        ...

    async def write_status(self, ref: ObjectRef, make: Callable[[Json], Json | None]) -> None:
        """`make` gets an object as it is now and says the status to write, or None for nothing; called again after each conflict.
        ApiUnavailable, ApiRefused; an object that is gone is no error."""
        ...

    async def delete(self, ref: ObjectRef) -> None:
        """By UID (ttlSecondsAfterFinished)."""
        ...

    def emit(self, body: Json, kind: str, reason: str, message: str) -> None:
        """An event for people, best effort: `kind` is Normal or Warning."""
        ...
