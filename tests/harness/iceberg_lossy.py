"""A catalog that loses its answers to commits."""

from __future__ import annotations

from typing import Any

from sparkonce.sink.iceberg.sink import IcebergTableSink


class Lossy:
    """A catalog that loses its answers to commits, `times` times, after they took effect or before."""

    def __init__(self, catalog: Any, *, times: int, lands: bool) -> None:
        self._catalog, self.times, self.lands, self.sent = catalog, times, lands, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *arguments: Any) -> Any:
        self.sent += 1
        if self.times == 0:
            return self._catalog.commit_table(*arguments)
        self.times -= 1
        if self.lands:
            self._catalog.commit_table(*arguments)
        raise ConnectionError("no answer")


def lossy(sink: IcebergTableSink, *, times: int, lands: bool) -> Lossy:
    catalog = Lossy(sink._place.catalog, times=times, lands=lands)
    sink._place.__dict__["catalog"] = catalog
    return catalog
