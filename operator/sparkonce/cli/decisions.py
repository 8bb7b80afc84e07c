"""What a person decides about a key, carried out and told: resolve, forget, purge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sparkonce.blocking import run
from sparkonce.cli import show
from sparkonce.cli.attempts import remove_logs
from sparkonce.cli.interrupt import interruptible, person
from sparkonce.engine import operate
from sparkonce.engine.embedded import Ending
from sparkonce.engine.request import Answer
from sparkonce.engine.telling import phase_of

if TYPE_CHECKING:
    from sparkonce.cli.session import Session
    from sparkonce.engine.operate import How
    from sparkonce.model.record import Record


def resolve_key(opened: Session, record: Record, how: How, *, reason: str, as_json: bool) -> Ending:
    async def work() -> Ending:
        return await operate.resolve(opened.embedded, record, how, by=person(), reason=reason)

    ending = interruptible(opened.embedded, work, progress=opened.progress, detachable=True)
    if ending is None:
        ending = Ending(Answer.HELD, record, reason="nothing was decided", unblock=f"sparkonce keys show {record.key}")
    if as_json:
        typer.echo(show.as_json(show.ending_object(ending, key=None, store=opened.store.url, attempts=opened.attempts)))
    else:
        typer.echo("\n".join(show.ending_lines(ending, attempts=opened.attempts)))
    return ending


def forget_key(opened: Session, record: Record, *, reason: str, as_json: bool) -> None:
    floor = run(operate.forget(opened.store, record, by=person(), reason=reason))
    remove_logs(opened.attempts, record)
    if as_json:
        told = {
            "key": record.key,
            "keyHash": record.key_hash,
            "forgotten": True,
            "floor": floor,
            "store": opened.store.url,
        }
        typer.echo(show.as_json(told))
    else:
        typer.echo(forgotten(record.key, floor))


def forgotten(key: str, floor: int) -> str:
    """`floor`: the generation that stays the newest one used."""
    return (
        f"forgotten: {key}; sent again it runs as generation {floor + 1}, and its tables still hold generation {floor}"
    )


def purge_keys(opened: Session, *, as_json: bool) -> None:
    removed = run(operate.purge(opened.store, on_removed=lambda record: remove_logs(opened.attempts, record)))
    if as_json:
        keys = [{"key": r.key, "keyHash": r.key_hash, "generation": r.generation} for r in removed]
        typer.echo(show.as_json({"purged": keys, "store": opened.store.url}))
        return
    for record in removed:
        typer.echo(f"purged: {record.key}, generation {record.generation} ({phase_of(record)})")
    typer.echo(f"{len(removed)} record{'' if len(removed) == 1 else 's'} removed")
