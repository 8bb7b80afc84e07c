"""Objects by namespace and name, and by the value of one label: what an `Informer` holds in memory. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence

from sparkonce.launch.kubernetes import Json

Name = tuple[str, str]
"""Namespace and name."""


class Seen:
    def __init__(self, index: str) -> None:
        self._label = index
        self._objects: dict[Name, Json] = {}
        self._values: dict[Name, set[str]] = {}  # names by namespace and value of the label

    def __len__(self) -> int:
        return len(self._objects)

    def names(self) -> set[Name]:
        return set(self._objects)

    def get(self, namespace: str, name: str) -> Json | None:
        return self._objects.get((namespace, name))

    def labelled(self, namespace: str, label: str, value: str) -> Sequence[Json]:
        if label != self._label:
            raise ValueError(f"only {self._label} is indexed, not {label}")
        return [self._objects[namespace, name] for name in sorted(self._values.get((namespace, value), ()))]

    def put(self, namespace: str, name: str, found: Json) -> None:
        self.remove(namespace, name)
        self._objects[namespace, name] = found
        if (value := self._value(found)) is not None:
            self._values.setdefault((namespace, value), set()).add(name)

    def remove(self, namespace: str, name: str) -> Json | None:
        found = self._objects.pop((namespace, name), None)
        if found is not None and (value := self._value(found)) is not None:
            names = self._values[namespace, value]
            names.discard(name)
            if not names:
                del self._values[namespace, value]
        return found

    def _value(self, found: Json) -> str | None:
        labels = found["metadata"].get("labels")
        value = labels.get(self._label) if isinstance(labels, dict) else None
        return value if isinstance(value, str) else None
