"""Checks one table on its own: its commits against each other, against its files, and against what readers see. Pure.

Works on the `Inventory` that every sink provides, independent of the table format. sparkonce is the only writer of a slot log, so
everything that readers see there must be named by a commit. Delta and Iceberg tables have other writers: rows that no sparkonce commit
names are theirs, and committed files that are no longer live were rewritten by them.

Equal content under two commits only merits attention: a rerun may append the same rows on purpose, and two hours without sales look
alike. The nonce, drawn per write, is what proves that one write was committed twice.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sparkonce.audit.files import Wrong
from sparkonce.audit.findings import Finding, Kind
from sparkonce.sink.protocol import CommittedFile, Effect, Evidence, Found, Inventory, SinkKey, StagedFolder
from sparkonce.sink.slotlog import layout
from sparkonce.sink.trace import RESTORE

OWN = "slotLog"
"""The kind of table that only sparkonce writes."""
SHOWN = 3
"""Maximum paths listed in one sentence."""

KNOWN = "the file of `sparkonce audit --known FILE`"

STOP = "stop the jobs that write here, find out what else writes, and decide which of the two to keep"


def of_table(table: Inventory, *, now: float) -> list[Finding]:
    """All findings that need no file contents. `now`: Unix seconds, for the age of staging folders."""
    return [
        *_unreadable(table),
        *_double(table),
        *_duplicates(table),
        *_same_rows(table),
        *_counts(table),
        *_chains(table),
        *_unknown(table),
        *_hidden(table),
        *_missing(table),
        *_uncommitted(table),
        *_staging(table, now),
    ]


def to_read(table: Inventory) -> list[CommittedFile]:
    """Files that must be unchanged: those of visible commits, except files that other writers removed from the table."""
    live = set(table.live)
    return [
        file
        for effect in table.effects
        if effect.visible
        for file in effect.files
        if file.path in live or (table.kind == OWN and effect.slot.sink_key not in table.hidden)
    ]


def of_files(table: Inventory, wrong: Iterable[Wrong]) -> list[Finding]:
    """Findings for the files that differ."""
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
    return f"restore it from a backup, or recreate it with `sparkonce rerun {key}`"


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
            todo="restore it from a backup; a key that needs it cannot be written until then",
        )


def _double(table: Inventory) -> Iterator[Finding]:
    """Double commits: by evidence, by the table's history, and by live files; each finds some that the others miss."""
    by_key: dict[str, list[Effect]] = defaultdict(list)
    for effect in table.effects:
        by_key[effect.slot.sink_key].append(effect)
    reasons: dict[str, str] = {}
    for sink_key, effects in by_key.items():
        if len(effects) > 1:
            commits = ", ".join(f"{each.commit} (attempt {each.slot.token}, {each.slot.rows} rows)" for each in effects)
            reasons[sink_key] = f"is committed {len(effects)} times: {commits}"
    for sink_key, commits_ in table.commits.items():
        reasons.setdefault(
            sink_key, f"is committed {len(commits_)} times in the table's history: {', '.join(commits_)}"
        )
    for (sink_key, folder), paths in _strays(table).items():
        if sink_key in by_key:
            reasons.setdefault(
                sink_key, f"is committed, but readers also see {len(paths)} file(s) of another write: {folder}"
            )
    for sink_key, said in reasons.items():
        first = next(iter(by_key.get(sink_key, ())), None)
        yield _finding(table, Kind.DOUBLE_COMMIT, sink_key, f"{sink_key} {said}", todo=STOP, effect=first)


def _strays(table: Inventory) -> dict[tuple[str, str], list[str]]:
    """Live files that no commit names, in staging folders of sparkonce, by sink key and folder."""
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
    """Paths that occur more than once. Only they are kept, because a table has many files and hardly any duplicates."""
    return {path: times for path, times in Counter(paths).items() if times > 1}


def _same_rows(table: Inventory) -> Iterator[Finding]:
    """Compares whole commits: single files may be equal for many harmless reasons."""
    alike: dict[tuple[str, ...], list[Effect]] = defaultdict(list)
    for effect in table.effects:
        digests = tuple(sorted(file.digest for file in effect.files if file.rows))
        if effect.visible and digests:
            alike[digests].append(effect)
    for effects in alike.values():
        keys = sorted({each.slot.sink_key for each in effects})
        if len(keys) > 1 and len({each.slot.nonce for each in effects}) == len(effects):
            said = (
                f"{len(keys)} keys have files with the same content ({effects[0].slot.rows} rows each): {_some(keys)}"
            )
            todo = "nothing if their rows should be equal; otherwise check `sparkonce keys history KEY` of each"
            yield _finding(table, Kind.SAME_ROWS, " = ".join(keys), said, todo=todo, effect=effects[0])


def _counts(table: Inventory) -> Iterator[Finding]:
    for effect in table.effects:
        rows = sum(file.rows for file in effect.files)
        if (
            rows != effect.slot.rows and effect.slot.branch is None
        ):  # files of a block hold rows of others, and are not its own
            said = f"{_name(effect)}: {effect.slot.rows} rows were committed, but its files are recorded with {rows}"
            yield _finding(table, Kind.WRONG_ROW_COUNT, effect.slot.sink_key, said, todo=_rerun(effect), effect=effect)


def _chains(table: Inventory) -> Iterator[Finding]:
    """The batches of a stream are contiguous, from its opening on: a missing one means lost rows, and without the opening none of them
    is found when the key's result is looked up."""
    chains: dict[tuple[str, str], dict[int, Effect]] = defaultdict(dict)
    openings: set[str] = set()
    for effect in table.effects:
        key, stream = SinkKey.parse(effect.slot.sink_key), effect.slot.stream
        if key is None or stream is None:
            continue
        if key.batch is None:
            openings.add(str(key))
        else:
            chains[str(key.whole), str(key).removesuffix(str(key.batch))][key.batch] = effect
    for (whole, name), batches in chains.items():
        any_of = next(iter(batches.values()))
        if whole not in openings and not is_unreadable(table, whole):
            said = f"the opening of the stream {whole} is missing, but {name}{max(batches)} is committed"
            yield _finding(table, Kind.MISSING_BATCH, whole, said, todo=_rerun(any_of), effect=any_of)
        first = any_of.slot.stream.first_batch if any_of.slot.stream else 0
        for number in sorted(set(range(first, max(batches))) - set(batches)):
            said = f"{name}{number} is missing, but {name}{max(batches)} is committed"
            yield _finding(table, Kind.MISSING_BATCH, f"{name}{number}", said, todo=_rerun(any_of), effect=any_of)


def _unknown(table: Inventory) -> Iterator[Finding]:
    named = {file.path for effect in table.effects for file in effect.files}
    unknown = sorted({path for path in table.live if path not in named})
    if table.unreadable:
        unknown = [path for path in unknown if not any(is_unreadable(table, name) for name in sink_keys_in(path))]
    if table.kind == OWN:
        for path in unknown:
            said = "readers see it, but no commit names it (its slot is gone and a snapshot still lists it)"
            yield _finding(table, Kind.UNKNOWN_ROWS, path, said, todo="restore the slot from a backup")
        return
    committed = {effect.slot.sink_key for effect in table.effects}
    strays = _strays(table)
    for (sink_key, folder), paths in strays.items():
        if sink_key not in committed:
            said = f"readers see {_some(paths)}, but no commit of {sink_key} names it"
            yield _finding(table, Kind.UNKNOWN_ROWS, folder, said, todo=STOP)
    for effect in table.effects:
        back = [] if effect.visible else sorted({file.path for file in effect.files} & set(table.live))
        if back:
            said = f"{_name(effect)}: a later generation replaced it, but readers see {_some(back)} again"
            todo = "find in the table's history who restored it"
            yield _finding(table, Kind.UNKNOWN_ROWS, effect.slot.sink_key, said, todo=todo, effect=effect)
    foreign = sorted(set(unknown) - {path for paths in strays.values() for path in paths})
    if foreign:
        said = f"{len(foreign)} file(s) of other writers: {_some(foreign)}"
        yield _finding(table, Kind.FOREIGN_FILES, "other writers", said, todo="nothing: other writers are allowed here")


def sink_keys_in(path: str) -> list[str]:
    """Sink keys in the folder names of a path, for any kind of table."""
    return [part.removeprefix("so-") for part in path.split("/")[:-1] if "-g" in part]


def _hidden(table: Inventory) -> Iterator[Finding]:
    live = set(table.live)
    for effect in table.effects:
        # Other formats omit files without rows from a commit.
        hidden = [file.path for file in effect.files if file.path not in live and (file.rows or table.kind == OWN)]
        found = table.hidden.get(effect.slot.sink_key)
        if not effect.visible or not (hidden or found):
            continue
        if table.kind == OWN and found is None:
            said = f"{_name(effect)}: readers do not see {_some(hidden)}"
            todo = "delete the newest snapshot in _idem/_snapshot: it contradicts the slots"
            yield _finding(table, Kind.HIDDEN_ROWS, effect.slot.sink_key, said, todo=todo, effect=effect)
        else:
            yield _of_others(table, effect, hidden, found or Evidence.NOT_CHECKED)


def _of_others(table: Inventory, effect: Effect, hidden: Sequence[str], found: Found) -> Finding:
    """The finding about rows of a commit that are not in the files that it wrote, by what became of them."""
    subject, replaced = effect.slot.sink_key, f"other writers replaced {len(hidden)} of its {len(effect.files)} file(s)"
    rollback = False
    match found.verdict:
        case Evidence.CHANGED if all(each.key for each in found.changes):
            kind, said, todo = Kind.REWRITTEN, found.why, "nothing: other jobs of sparkonce replaced rows here"
        case Evidence.CHANGED:
            kind, said = Kind.REMOVED_ROWS, found.why
            names = _some([each.name for each in found.changes if not each.key])
            todo = f"if that was not meant, restore the table to the commit before, by its own history; if it was, list {names} in {KNOWN}"
            rollback = any(each.operation == RESTORE for each in found.changes)
        case Evidence.GONE:
            kind, said, rollback = Kind.HIDDEN_ROWS, found.why, True
            todo = "if that was not meant, move main back to that snapshot"
        case Evidence.PRESENT:
            kind, said, todo = Kind.REWRITTEN, f"{replaced} and kept the rows: {_some(hidden)}", "nothing"
        case _:
            kind, said = Kind.REWRITTEN, f"{replaced}: {_some(hidden)}" + (f"; {found.why}" if found.why else "")
            todo = "nothing if the table was compacted; otherwise find in its history who deleted rows"
    finding = _finding(table, kind, subject, f"{_name(effect)}: {said}", todo=todo, effect=effect)
    return replace(finding, changes=found.changes, rollback=rollback)


def _missing(table: Inventory) -> Iterator[Finding]:
    """Rows that no known commit removed and that are in no file: a history that ended proves nothing, a count does."""
    if not any(effect.visible for effect in table.effects):
        return
    moved = sum(table.unexplained.values())
    counts = [rows for rows in table.others.values() if rows is not None]
    if table.masked is None or (moved and len(counts) < len(table.others)):
        what = "the rows that readers see cannot be counted" + (
            ": delete files hide rows by their values, or cannot be read" if table.masked is None else ""
        )
        todo = "compact the table, which removes its delete files, and audit it again"
        yield _finding(table, Kind.NOT_SEEN, table.uri, f"not audited in full: {what}", todo=todo)
        return
    there = sum(counts) - sum(rows for path, rows in table.masked.items() if path in table.others)
    if moved > there:
        said = (
            f"other writers replaced files with {moved} committed rows, and their own files hold {there}: at least {moved - there} rows "
            "are gone, and the table's history does not show any more which commit removed them"
        )
        todo = f"restore the table from a backup; if the rows were removed on purpose, list `rows: {moved - there}` in {KNOWN}"
        yield replace(_finding(table, Kind.MISSING_ROWS, "rows", said, todo=todo), rows=moved - there)


def rows_seen(table: Inventory, wrong: Iterable[Wrong], footers: Mapping[str, int | None]) -> int | None:
    """Rows that readers see: of committed files as pyarrow read them in this audit, of others as delta-rs or pyiceberg read the table's
    metadata, less those that deletes hide. None: they cannot be counted, or a reader would fail.

    wrong: of the files that were read (`to_read`). footers: rows of further files (`uncounted`)."""
    if table.masked is None:
        return None
    rows: dict[str, int | None] = {file.path: file.rows for file in to_read(table)}
    rows |= {path: count if count is not None else footers.get(path) for path, count in table.others.items()}
    rows |= {path: count for path, count in footers.items() if count is not None}
    rows |= {each.path: each.rows for each in wrong}
    counts = [rows.get(path) for path in (*(path for path in table.live if path not in table.others), *table.others)]
    if any(count is None for count in counts):
        return None
    return sum(filter(None, counts)) - sum(table.masked.values())


def uncounted(table: Inventory) -> list[str]:
    """Live files whose rows neither `to_read` nor the table's metadata has."""
    read = {file.path for file in to_read(table)}
    live = (path for path in dict.fromkeys(table.live) if path not in read and path not in table.others)
    return [*live, *(path for path, rows in table.others.items() if rows is None)]


def _uncommitted(table: Inventory) -> Iterator[Finding]:
    folders: dict[str, list[str]] = defaultdict(list)
    for path in table.uncommitted:
        folders[_top(path)].append(path)
    for folder, paths in folders.items():
        size = sum(table.uncommitted[path] for path in paths)
        said = (
            f"{len(paths)} file(s), {size} bytes, that no commit names: {_some(paths)}; sparkonce's readers do not "
            "see them, a program that reads the folder does"
        )
        todo = "move them elsewhere, and let their writer write through sparkonce or to a folder of its own"
        yield _finding(table, Kind.UNCOMMITTED_FILES, folder, said, todo=todo)


def _top(path: str) -> str:
    """The folder that uncommitted files are reported by: `.` for the table's own, the write's for files beside committed ones."""
    parts = path.split("/")
    depth = layout.STAGING_DEPTH if parts[0] == layout.DATA else 1
    return "/".join(parts[:-1][:depth]) or "."


def orphans(table: Inventory) -> Iterator[StagedFolder]:
    """Staging folders that no commit names."""
    own = {(each.slot.sink_key, each.slot.token, each.slot.nonce) for each in table.effects}
    return (each for each in table.staged if (each.sink_key, each.token, each.nonce) not in own)


def is_unreadable(table: Inventory, sink_key: str) -> bool:
    """True if the key's evidence is already reported as unreadable, so that its consequences are not reported again."""
    key = SinkKey.parse(sink_key)
    names = (
        sink_key,
        *(() if key is None else (f"{key.lineage}/{key.run}",)),
    )  # in its own folder, or below its lineage's
    return any(name in said for said in table.unreadable for name in names)


def _staging(table: Inventory, now: float) -> Iterator[Finding]:
    shown = {path.rpartition("/")[0] for path in table.live}
    for folder in orphans(table):
        if is_unreadable(table, folder.sink_key) or any(_below(each, folder.path) for each in shown):
            continue  # already reported: unreadable, or rows that no commit names
        age = f", {_span(now - folder.modified)} old" if folder.modified else ""
        said = f"{folder.files} file(s), {folder.bytes} bytes{age}, of attempt {folder.token}"
        kind, why, todo = Kind.OPEN_STAGING, "an attempt may still be writing it", "nothing while its job runs"
        if folder.unreachable:
            kind, why, todo = Kind.ORPHAN_STAGING, "it can never be committed", "`sparkonce sweep` removes it"
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
    """UTC day of the commit by its writer's clock; empty if not recorded."""
    at = effect.slot.committed_at
    return time.strftime("%Y-%m-%d", time.gmtime(at)) if at else ""
