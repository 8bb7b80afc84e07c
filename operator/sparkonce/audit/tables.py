"""What one table says of itself: its commits against each other, against its files, and against what readers see. Pure.

It knows nothing of how a kind of table keeps its evidence, only the `Inventory` that every sink gives. A slot log belongs to sparkonce
alone, so whatever readers see there must be named by a commit. Delta and Iceberg tables have other writers: rows that no commit of ours
names are theirs, and files that are not shown any more were rewritten by them.

Equal content under two commits is only worth a look: a rerun may append the same rows on purpose, and an hour without sales looks like
any other. The nonce, which is drawn for each write, is what proves that one write stands there twice.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sparkonce.audit.files import Wrong
from sparkonce.audit.findings import Finding, Kind, sink_key_of
from sparkonce.sink.protocol import CommittedFile, Effect, Inventory, StagedFolder

OWN = "slotLog"
"""The kind of table that nobody else writes to."""
SHOWN = 3
"""Paths that a sentence about many names."""

STOP = "stop the jobs that write here and find out who else did; a person decides which of the two stays"


def of_table(table: Inventory, *, now: float) -> list[Finding]:
    """Everything but what is inside the files. `now`: Unix seconds, for the age of what was left behind."""
    return [
        *_unreadable(table),
        *_double(table),
        *_duplicates(table),
        *_same_rows(table),
        *_counts(table),
        *_chains(table),
        *_unknown(table),
        *_hidden(table),
        *_staging(table, now),
    ]


def to_read(table: Inventory) -> list[CommittedFile]:
    """The files that must be as they were committed: those of visible commits, without what other writers took out of the table."""
    live = set(table.live)
    return [
        file
        for effect in table.effects
        if effect.visible
        for file in effect.files
        if table.kind == OWN or file.path in live
    ]


def of_files(table: Inventory, wrong: Iterable[Wrong]) -> list[Finding]:
    """What reading the files has shown."""
    wrong = list(wrong)
    paths = {each.path for each in wrong}
    owner = {file.path: effect for effect in table.effects for file in effect.files if file.path in paths}
    found = []
    for each in wrong:
        effect = owner.get(each.path)
        said = each.said + (f"; committed by {_name(effect)}" if effect else "")
        todo = "upgrade sparkonce" if each.kind is Kind.UNREADABLE else _rerun(effect)
        found.append(_finding(table, each.kind, each.path, said, todo=todo, effect=effect))
    return found


def _finding(
    table: Inventory, kind: Kind, subject: str, what: str, *, todo: str, effect: Effect | None = None
) -> Finding:
    key_hash = effect.slot.sink_key.partition("-")[0] if effect else ""
    return Finding(kind=kind, table=table.uri, subject=subject, what=what, todo=todo, key_hash=key_hash)


def _name(effect: Effect) -> str:
    return f"{effect.slot.sink_key}, attempt {effect.slot.token}"


def _rerun(effect: Effect | None) -> str:
    key = effect.slot.sink_key.partition("-")[0][:12] if effect else "KEY"
    return f"restore it from a backup, or `sparkonce rerun {key}` writes it anew"


def _some(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:SHOWN])
    return shown if len(paths) <= SHOWN else f"{shown} and {len(paths) - SHOWN} more"


def _unreadable(table: Inventory) -> Iterator[Finding]:
    for said in table.unreadable:
        yield _finding(
            table,
            Kind.UNREADABLE,
            said,
            said,
            todo="restore it from a backup; nothing is written to its key until then",
        )


def _double(table: Inventory) -> Iterator[Finding]:
    """By what stands as evidence, by the table's own history, and by whose files readers see: each tells of some that the others miss."""
    by_key: dict[str, list[Effect]] = defaultdict(list)
    for effect in table.effects:
        by_key[effect.slot.sink_key].append(effect)
    told: dict[str, str] = {}
    for sink_key, effects in by_key.items():
        if len(effects) > 1:
            commits = ", ".join(f"{each.commit} (attempt {each.slot.token}, {each.slot.rows} rows)" for each in effects)
            told[sink_key] = f"is committed {len(effects)} times: {commits}"
    for sink_key, commits_ in table.commits.items():
        told.setdefault(
            sink_key, f"is committed {len(commits_)} times, says the table's history: {', '.join(commits_)}"
        )
    for (sink_key, folder), paths in _strays(table).items():
        if sink_key in by_key:
            told.setdefault(sink_key, f"is committed, and readers see {len(paths)} file(s) of another write: {folder}")
    for sink_key, said in told.items():
        first = next(iter(by_key.get(sink_key, ())), None)
        yield _finding(table, Kind.DOUBLE_COMMIT, sink_key, f"{sink_key} {said}", todo=STOP, effect=first)


def _strays(table: Inventory) -> dict[tuple[str, str], list[str]]:
    """Files that readers see and no commit names, in folders that only writes of sparkonce have: by sink key and folder."""
    named = {file.path for effect in table.effects for file in effect.files}
    written = {each.path: each.sink_key for each in table.staged}
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in table.live:
        if path not in named:
            folder = next((each for each in _parents(path) if each in written), None)
            if folder is not None and not is_unreadable(table, written[folder]):
                found[written[folder], folder].append(path)
    return found


def _parents(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path


def _duplicates(table: Inventory) -> Iterator[Finding]:
    nonces: dict[str, list[Effect]] = defaultdict(list)
    for effect in table.effects:
        if effect.slot.nonce:
            nonces[effect.slot.nonce].append(effect)
    for effects in nonces.values():
        keys = sorted({each.slot.sink_key for each in effects})
        if len(keys) > 1:
            said = f"one write, of {effects[0].slot.rows} rows, is committed under {len(keys)} keys: {', '.join(keys)}"
            yield _finding(table, Kind.DUPLICATE_ROWS, " = ".join(keys), said, todo=STOP, effect=effects[0])
    visible = [effect for effect in table.effects if effect.visible]
    shown = _several(table.live)
    named = _several(path for effect in visible for path in {file.path for file in effect.files})
    for path in sorted({*shown, *named}):
        effects = [effect for effect in visible if any(file.path == path for file in effect.files)]
        said = f"readers see it {max(shown.get(path, 0), len(effects))} times" + (
            f": {', '.join(map(_name, effects))}" if len(effects) > 1 else ""
        )
        yield _finding(table, Kind.DUPLICATE_ROWS, path, said, todo=STOP, effect=effects[0] if effects else None)


def _several(paths: Iterable[str]) -> dict[str, int]:
    """Those that are there more than once. Only they are kept: a table has many files, and hardly ever one of these."""
    return {path: times for path, times in Counter(paths).items() if times > 1}


def _same_rows(table: Inventory) -> Iterator[Finding]:
    """Whole commits only: single files are alike for many harmless reasons."""
    alike: dict[tuple[str, ...], list[Effect]] = defaultdict(list)
    for effect in table.effects:
        digests = tuple(sorted(file.digest for file in effect.files if file.rows))
        if effect.visible and digests:
            alike[digests].append(effect)
    for effects in alike.values():
        keys = sorted({each.slot.sink_key for each in effects})
        if len(keys) > 1 and len({each.slot.nonce for each in effects}) == len(effects):
            said = f"{len(keys)} keys have files of the same content ({effects[0].slot.rows} rows each): {_some(keys)}"
            todo = "nothing, if their rows are meant to be equal; else `sparkonce keys history KEY` of each"
            yield _finding(table, Kind.SAME_ROWS, " = ".join(keys), said, todo=todo, effect=effects[0])


def _counts(table: Inventory) -> Iterator[Finding]:
    for effect in table.effects:
        rows = sum(file.rows for file in effect.files)
        if rows != effect.slot.rows:
            said = f"{_name(effect)}: {effect.slot.rows} rows were committed and its files are said to hold {rows}"
            yield _finding(table, Kind.WRONG_ROW_COUNT, effect.slot.sink_key, said, todo=_rerun(effect), effect=effect)


def _chains(table: Inventory) -> Iterator[Finding]:
    """The batches of a stream are one piece: a hole in it is rows that are gone."""
    chains: dict[str, dict[int, Effect]] = defaultdict(dict)
    for effect in table.effects:
        key, stream = sink_key_of(effect.slot.sink_key), effect.slot.stream
        if key is not None and stream is not None and key.batch is not None:
            chains[str(key.model_copy(update={"batch": None}))][key.batch] = effect
    for name, batches in chains.items():
        any_of = next(iter(batches.values()))
        first = any_of.slot.stream.first_batch if any_of.slot.stream else 0
        for number in sorted(set(range(first, max(batches))) - set(batches)):
            said = f"{name}: batch {number} is not there, and batch {max(batches)} is"
            yield _finding(table, Kind.MISSING_BATCH, f"{name}-b{number}", said, todo=_rerun(any_of), effect=any_of)


def _unknown(table: Inventory) -> Iterator[Finding]:
    named = {file.path for effect in table.effects for file in effect.files}
    unknown = sorted({path for path in table.live if path not in named})
    if table.unreadable:
        unknown = [path for path in unknown if not any(is_unreadable(table, name) for name in sink_keys_in(path))]
    if table.kind == OWN:
        for path in unknown:
            said = "readers see it, and no commit names it (its slot is gone, and a snapshot still shows it)"
            yield _finding(table, Kind.UNKNOWN_ROWS, path, said, todo="restore the slot from a backup")
        return
    committed = {effect.slot.sink_key for effect in table.effects}
    strays = _strays(table)
    for (sink_key, folder), paths in strays.items():
        if sink_key not in committed:
            said = f"readers see {_some(paths)}, and no commit of {sink_key} names it"
            yield _finding(table, Kind.UNKNOWN_ROWS, folder, said, todo=STOP)
    for effect in table.effects:
        back = [] if effect.visible else sorted({file.path for file in effect.files} & set(table.live))
        if back:
            said = f"{_name(effect)}: a later generation replaced it, and readers see {_some(back)} again"
            todo = "the table's history says who put it back"
            yield _finding(table, Kind.UNKNOWN_ROWS, effect.slot.sink_key, said, todo=todo, effect=effect)
    foreign = sorted(set(unknown) - {path for paths in strays.values() for path in paths})
    if foreign:
        said = f"{len(foreign)} file(s) of other writers: {_some(foreign)}"
        yield _finding(table, Kind.FOREIGN_FILES, "other writers", said, todo="nothing: other writers are allowed here")


def sink_keys_in(path: str) -> list[str]:
    """Texts of sink keys that folders on the path are named by, whatever the kind of table."""
    return [part.removeprefix("so-") for part in path.split("/")[:-1] if "-g" in part]


def _hidden(table: Inventory) -> Iterator[Finding]:
    live = set(table.live)
    for effect in table.effects:
        # Other formats leave files without rows out of a commit.
        hidden = [file.path for file in effect.files if file.path not in live and (file.rows or table.kind == OWN)]
        if not effect.visible or not hidden:
            continue
        if table.kind == OWN:
            said = f"{_name(effect)}: readers do not see {_some(hidden)}"
            todo = "delete the newest snapshot in _idem/_snapshot: it contradicts the slots"
            yield _finding(table, Kind.HIDDEN_ROWS, effect.slot.sink_key, said, todo=todo, effect=effect)
        else:
            said = f"{_name(effect)}: other writers replaced {len(hidden)} of its {len(effect.files)} file(s): {_some(hidden)}"
            todo = "nothing, if the table was compacted; else its history says who deleted rows"
            yield _finding(table, Kind.REWRITTEN, effect.slot.sink_key, said, todo=todo, effect=effect)


def orphans(table: Inventory) -> Iterator[StagedFolder]:
    """Folders that no commit names."""
    own = {(each.slot.sink_key, each.slot.token, each.slot.nonce) for each in table.effects}
    return (each for each in table.staged if (each.sink_key, each.token, each.nonce) not in own)


def is_unreadable(table: Inventory, sink_key: str) -> bool:
    """Its evidence does not parse, and that is said: what follows from it is no news."""
    lineage, _, run = sink_key.rpartition("-g")
    names = (sink_key, f"{lineage}/g{run}")  # as a folder of its own, or below its lineage's
    return any(name in said for said in table.unreadable for name in names)


def _staging(table: Inventory, now: float) -> Iterator[Finding]:
    shown = {path.rpartition("/")[0] for path in table.live}
    for folder in orphans(table):
        if is_unreadable(table, folder.sink_key) or any(_below(each, folder.path) for each in shown):
            continue  # told already, as unreadable or as rows that no commit names
        age = f", {_span(now - folder.modified)} old" if folder.modified else ""
        said = f"{folder.files} file(s), {folder.bytes} bytes{age}, of attempt {folder.token}"
        kind, why, todo = Kind.OPEN_STAGING, "an attempt may be writing it right now", "nothing while its job runs"
        if folder.unreachable:
            kind, why, todo = Kind.ORPHAN_STAGING, "nobody can commit it any more", "`sparkonce sweep` removes it"
        key_hash = folder.sink_key.partition("-")[0]
        yield Finding(
            kind=kind, table=table.uri, subject=folder.path, what=f"{said}; {why}", todo=todo, key_hash=key_hash
        )


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def day_of(effect: Effect) -> str:
    """UTC, by the clock of whoever wrote; empty where it is not said."""
    at = effect.slot.committed_at
    return time.strftime("%Y-%m-%d", time.gmtime(at)) if at else ""
