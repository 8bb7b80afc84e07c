"""One command's hold on the ledger: opened late, named on standard error where it matters, closed in any case.

A ledger on etcd is a cluster's: its jobs run on Kubernetes and are driven by operators, so a command reads there and writes what a person
decides (`engine/elsewhere.py`), and never runs a job. It must be told whose keys it is about, because one etcd may serve two clusters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from sparkonce.blocking import run
from sparkonce.cli.progress import Progress
from sparkonce.engine.elsewhere import Elsewhere
from sparkonce.engine.embedded import NOWHERE, Embedded, attempts_folder
from sparkonce.errors import InvalidInput
from sparkonce.store.open import default_url, open_blocking, redacted
from sparkonce.store.protocol import IdempotencyStore

INSTALL = "SPARKONCE_INSTALL"


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

    @property
    def remote(self) -> bool:
        """The ledger is a cluster's."""
        return self.embedded.remote


@contextmanager
def session(url: str | None, *, install: str | None = None, named: bool = True) -> Iterator[Session]:
    """`named`: say which ledger it is. InvalidInput, StoreUnusable, StoreUnavailable."""
    url = default_url() if url is None else url
    remote = _remote(url)
    store = open_blocking(url, install=_install(install, remote=remote))
    if named:
        note(f"ledger: {store.url}")
    progress = Progress(store)
    if remote:
        embedded = Embedded(store=store, attempts=NOWHERE, launcher=Elsewhere(), remote=True, on_look=progress.look)
    else:
        embedded = Embedded(store=store, attempts=attempts_folder(store.url), on_look=progress.look)
    try:
        yield Session(embedded, progress)
    finally:
        progress.close()
        run(store.close())


def local_only(url: str | None, instead: str) -> None:
    """InvalidInput on a cluster's ledger, with what to do there instead of this command."""
    url = default_url() if url is None else url
    if _remote(url):
        raise InvalidInput(f"{redacted(url)} is a cluster's ledger, whose jobs are run by operators; {instead}")


def _remote(url: str) -> bool:
    return url.lower().startswith("etcd:")


def _install(said: str | None, *, remote: bool) -> str:
    """The environment speaks of a cluster's deployment, never of a local ledger."""
    install = said or (os.environ.get(INSTALL) if remote else "local")
    if not install:
        raise InvalidInput(f"say whose keys are meant, as the operator was told: --install ID, or {INSTALL}")
    return install


def note(text: str) -> None:
    """For a person, beside the answer."""
    typer.echo(text, err=True)
