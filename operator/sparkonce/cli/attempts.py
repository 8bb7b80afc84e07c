"""Compares the folders of attempts beside a local ledger with its records, and removes them with the record they belong to.

Logs live as long as their record. A folder whose lock is held is kept: a process of that attempt still runs.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.blocking import run
from sparkonce.commands.describe import phase_of
from sparkonce.launch.local import locked
from sparkonce.model.record import Record, State
from sparkonce.store.protocol import Query

if TYPE_CHECKING:
    from sparkonce.cli.session import Session

_NAME = re.compile(r"so-([0-9a-f]{20})-g(\d+)-a(\d+)")


@dataclass(frozen=True, kw_only=True)
class AttemptFolder:
    folder: Path
    runs: bool
    """A process of the attempt is alive."""
    wanted: bool
    """The folder belongs to the current attempt of a key in progress."""
    owned: bool
    """A living process owns its key."""
    record: str
    """The key's state in the ledger, for a person."""
    group: int | None
    """Its process group."""


def attempt_folders(opened: Session) -> Iterator[AttemptFolder]:
    """The folders of all attempts; skips one that vanishes meanwhile. Raises: SparkonceError when the ledger cannot be read."""
    try:
        names = sorted(path.name for path in opened.attempts.iterdir())
    except OSError:
        return
    for name in names:
        parts = _NAME.fullmatch(name)
        if parts is None:
            continue
        folder = opened.attempts / name
        try:
            runs = locked(folder)
        except OSError:
            continue
        wanted, owned, said = _known(opened, parts[1], int(parts[2]), int(parts[3])) if runs else (False, False, "")
        yield AttemptFolder(folder=folder, runs=runs, wanted=wanted, owned=owned, record=said, group=_group(folder))


def remove_logs(attempts: Path, record: Record) -> None:
    """Removes the logs of a removed record, up to its generation. `sparkonce doctor` counts what could not be removed."""
    for folder in attempts.glob(f"so-{record.address.hash20}-g*"):
        parts = _NAME.fullmatch(folder.name)
        if parts is not None and int(parts[2]) <= record.generation and not _runs(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _runs(folder: Path) -> bool:
    try:
        return locked(folder)
    except OSError:
        return True  # unknown, so kept


def _known(opened: Session, prefix: str, generation: int, attempt: int) -> tuple[bool, bool, str]:
    records = run(opened.store.list(Query(hash_prefix=prefix))).records
    if not records:
        return False, False, "nothing: the key has no record"
    record = records[0]
    current = (record.generation, record.attempt) == (generation, attempt)
    wanted = current and record.state is State.IN_PROGRESS
    owned = wanted and run(opened.store.load(record.address)).claim is not None
    return wanted, owned, f"generation {record.generation}, attempt {record.attempt} is {phase_of(record)}"


def _group(folder: Path) -> int | None:
    """The pid of the wrapper, which leads the group."""
    try:
        return int((folder / "process").read_text().split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return None
