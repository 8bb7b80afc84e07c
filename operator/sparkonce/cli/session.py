"""One command's hold on the ledger: opened late, named on standard error where it matters, closed in any case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from sparkonce.blocking import run
from sparkonce.cli.progress import Progress
from sparkonce.engine.embedded import Embedded, attempts_folder
from sparkonce.store.open import open_store
from sparkonce.store.protocol import IdempotencyStore


@dataclass(frozen=True)
class Session:
    embedded: Embedded
    progress: Progress

    @property
    def store(self) -> IdempotencyStore:
        return self.embedded.store

    @property
    def attempts(self) -> Path:
        return self.embedded.attempts


@contextmanager
def session(url: str | None, *, named: bool = True) -> Iterator[Session]:
    """`named`: say which ledger it is. InvalidInput, StoreUnusable, StoreUnavailable."""
    store = open_store(url)
    if named:
        note(f"ledger: {store.url}")
    progress = Progress(store)
    embedded = Embedded(store=store, attempts=attempts_folder(store.url), on_look=progress.look)
    try:
        yield Session(embedded, progress)
    finally:
        progress.close()
        run(store.close())


def note(text: str) -> None:
    """For a person, beside the answer."""
    typer.echo(text, err=True)
