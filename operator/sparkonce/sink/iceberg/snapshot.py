"""One loaded Iceberg table: decides whether a key is committed, whether staged rows fit, and which files they replace.

Every answer is about the loaded metadata; the commit built on it lists that metadata in its requirements, so a table that changed
meanwhile refuses it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sparkonce import blocking
from sparkonce.errors import OutputCorrupt, OutputUnavailable, SparkonceError
from sparkonce.model.spec import OnRerun, WriteMode
from sparkonce.sink.iceberg import branch
from sparkonce.sink.iceberg.evidence import KeyEvidence, Mark, sha256, sink_key_of, slot_path, staging_folder
from sparkonce.sink.iceberg.files import brought_back, live, replaced_by, rolled_back, superseded
from sparkonce.sink.iceberg.objects import objects_at
from sparkonce.sink.iceberg.schema import SchemaChange, fit, identity_columns, schema_of, unwritable
from sparkonce.sink.iceberg.staging import partition_of
from sparkonce.sink.native import NATIVE_STANDS
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    BranchMark,
    CommitOutcome,
    Committed,
    Conflicting,
    DataFile,
    FencedOff,
    SinkKey,
    Slot,
    SlotState,
    StreamPart,
)
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.layout import files_of
from sparkonce.sink.stream import is_opening

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import Table

    from sparkonce.sink.objects.protocol import TableObjects


@dataclass(frozen=True)
class PreparedCommit:
    """The parts of one commit."""

    files: list[str]
    """Locations of the staged files with rows; a file without rows belongs to no partition."""
    removed: list[IcebergFile]
    """Files that the commit replaces: those of earlier generations, or all."""
    same_partitions: list[IcebergFile]
    """Files that it replaces if it writes to their partition."""
    must_write: list[tuple[object, ...]]
    """Partitions of files of earlier generations that are no longer in the table: only a commit that writes to them replaces their rows,
    wherever those are now."""
    fitting: SchemaChange
    replaces: bool
    """Whether this commit replaces the earlier generations for readers."""
    appended: tuple[IcebergFile, ...] = ()
    """Files that a branch appended, if they are to be added to what `main` is now."""


@dataclass(frozen=True)
class TableView:
    """A table as it was loaded; its content may be outdated, never wrong about that moment."""

    table: Table
    uri: str
    durable: bool

    @property
    def objects(self) -> TableObjects:
        return objects_at(self.table.location(), self.table.io, durable=self.durable)

    def at(self, mark: Mark) -> TableObjects:
        """Objects at the location of a commit's slot and files; the table may have moved since."""
        return objects_at(mark.location, self.table.io, durable=self.durable)

    def slot_of(self, mark: Mark) -> Slot:
        """The slot of a commit.

        Raises:
            OutputCorrupt: the slot's JSON is missing or changed. The key is committed nevertheless.
        """
        objects = self.at(mark)
        data = blocking.run(objects.get(mark.slot))
        where = objects.where(mark.slot)
        if data is None or sha256(data) != mark.digest:
            what = "is gone" if data is None else "is not the one that was committed"
            raise OutputCorrupt(
                f"the slot {where} {what}; restore it from a backup, nothing is written to its key until then"
            )
        return layout.decode(data, where=where, sink_key=mark.sink_key, token=mark.token)

    def files_of(self, mark: Mark) -> tuple[DataFile, ...]:
        """Files of a commit that have rows.

        Raises:
            OutputCorrupt: its slot or list of files is missing or changed.
        """
        return tuple(each for each in blocking.run(files_of(self.at(mark), self.slot_of(mark))) if each.rows)

    def located(self, mark: Mark) -> dict[str, DataFile]:
        """As `files_of`, by their paths in the table's manifests."""
        slot = self.slot_of(mark)
        location = mark.location if slot.branch is None or not slot.branch.location else slot.branch.location
        return {f"{location}/{file.path}": file for file in self.files_of(mark)}

    def committed(self, at: KeyEvidence) -> Slot | None:
        return None if at.committed is None else self.slot_of(at.committed)

    def decided(self, at: KeyEvidence, slot: Slot) -> CommitOutcome | None:
        if at.committed is not None:
            if at.committed.token > slot.token:
                return FencedOff(closed(slot, f"attempt {at.committed.token}"))
            existing = self.slot_of(at.committed)
            if existing.nonce == slot.nonce:
                return Committed(existing)
            return AlreadyCommitted(existing) if existing.fingerprint == slot.fingerprint else Conflicting(existing)
        if at.fence is not None and at.fence.token > slot.token:
            return FencedOff(closed(slot, at.fence.by))
        return None

    def ready(self, key: SinkKey, slot: Slot) -> PreparedCommit | str:
        """The parts of the commit; or, in one sentence, why it can never succeed.

        Raises:
            OutputUnavailable: the store did not answer.
        """
        if (why := self._unfit(key, slot)) is not None:
            return why
        if slot.branch is not None:
            return self._published(slot, slot.branch)
        objects = self.objects
        try:
            named = {file.path: file for file in blocking.run(files_of(objects, slot))}
        except OutputCorrupt as error:
            return str(error)
        folder = staging_folder(key, slot.token, slot.nonce)
        listed = {each.path: each.bytes for each in blocking.run(objects.list(folder))} if named else {}
        if lost := [path for path, file in named.items() if listed.get(path) != file.bytes]:
            return f"{len(lost)} staged file(s) in {objects.where(folder)} are missing or changed; rerun the job"
        replaces = slot.on_rerun is OnRerun.REPLACE and not is_opening(slot)
        removed: list[IcebergFile] | str = []
        same_partitions: list[IcebergFile] = []
        must_write: list[tuple[object, ...]] = []
        if slot.mode is WriteMode.OVERWRITE:
            removed = self.live
        elif slot.mode is WriteMode.OVERWRITE_PARTITIONS and self.table.schema().fields:
            if (why := self.unpartitioned()) is not None:
                return why
            same_partitions = self.live
            removed, must_write = self._earlier(key) if replaces else ([], [])
        elif replaces:
            removed = self.removed(key)
        if isinstance(removed, str):
            return removed
        files = [f"{self.table.location()}/{path}" for path, file in named.items() if file.rows]
        return PreparedCommit(files, removed, same_partitions, must_write, self._fit(slot), replaces)

    def overtaken(self, slot: Slot) -> bool:
        """Whether `main` is no longer where the branch of a slot began."""
        head = self.table.current_snapshot()
        return slot.branch is not None and (head is None or str(head.snapshot_id) != slot.branch.start)

    def _published(self, slot: Slot, mark: BranchMark) -> PreparedCommit | str:
        """As `ready`, for the slot of a native block."""
        ref = self.table.metadata.refs.get(mark.name)
        if ref is None or str(ref.snapshot_id) != mark.head:
            return f"the branch {mark.name} of {self.uri}, on which the block ran, was dropped or changed by another process; run it again"
        files: tuple[IcebergFile, ...] = ()
        if mark.head != mark.start and self.overtaken(slot):
            found = branch.content(self.table, mark)
            if isinstance(found, str):
                return f"the branch {mark.name} of {self.uri} cannot be put on top of other writers' commits: {found}; run it again"
            if (
                mark.merges
                or not found.appends
                or any(file.spec_id != self.table.spec().spec_id for file in found.files)
            ):
                return (
                    f"another writer changed {self.uri} while the block ran, and its statements may have read rows that are different "
                    "now; run it again"
                )
            files = found.files
        replaces = slot.on_rerun is OnRerun.REPLACE
        return PreparedCommit([], [], [], [], SchemaChange(), replaces, files)

    @cached_property
    def live(self) -> list[IcebergFile]:
        """The files that readers see. Raises: OutputUnavailable: a manifest cannot be read."""
        return live(self.table)

    def _earlier(self, key: SinkKey) -> tuple[list[IcebergFile] | str, list[tuple[object, ...]]]:
        """Files of the earlier generations that are in the table, and the partitions of the others; or why those are not known.

        Raises: as `removed`.
        """
        if self._statements_stand(key):
            return NATIVE_STANDS, []
        found, lost = self._of_earlier(key)
        try:
            gone = [partition_of(path, self.table.spec(), self.table.schema()) for path in lost]
        except ValueError:
            gone = [None]
        if None in gone:
            return self._gone(len(gone)), []
        return found, [tuple(values) for values in gone if values is not None]

    def _of_earlier(self, key: SinkKey) -> tuple[list[IcebergFile], list[str]]:
        """Files of the earlier generations that readers see, and the paths of the others whose rows may be elsewhere in the table. Rows of
        a commit are nowhere if `main` was rolled back to a snapshot before it.

        Raises: as `removed`.
        """
        marks, metadata = superseded(self.table.metadata, key), self.table.metadata
        seen = {file.file_path: file for file in self.live} if marks else {}
        found: list[IcebergFile] = []
        lost: list[str] = []
        for mark in marks:
            named = {f"{mark.location}/{file.path}": file.path for file in self.files_of(mark)}
            found += (seen[at] for at in named if at in seen)
            missing = [path for at, path in named.items() if at not in seen]
            if missing and (rolled_back(metadata, mark) is None or brought_back(metadata, mark)):
                lost += missing
        return found, lost

    def unpartitioned(self) -> str | None:
        """Why partitions of this table cannot be overwritten; None when they can."""
        spec = self.table.spec()
        if not spec.fields:
            return f"{self.uri} has no partition columns; use mode Overwrite, or partition the table first"
        if earlier := sum(file.spec_id != spec.spec_id for file in self.live):
            return (
                f"{earlier} file(s) of {self.uri} are partitioned as the table was earlier, so which of their rows belong to a partition "
                "is not known; rewrite them (Spark's rewrite_data_files), or use mode Overwrite"
            )
        return None

    def removed(self, key: SinkKey) -> list[IcebergFile] | str:
        """The earlier generations' files; or, in one sentence, why they cannot be replaced.

        Raises:
            OutputUnavailable: the store did not answer.
            OutputCorrupt: evidence of an earlier commit cannot be read.
        """
        if self._statements_stand(key):
            return NATIVE_STANDS
        found, lost = self._of_earlier(key)
        return self._gone(len(lost)) if lost else found

    def _statements_stand(self, key: SinkKey) -> bool:
        """Whether a native block of an earlier generation changed the table: its files hold rows of others.

        Raises:
            OutputCorrupt: evidence of an earlier commit cannot be read.
        """
        marked = (self.slot_of(mark).branch for mark in superseded(self.table.metadata, key))
        return any(mark is not None and mark.head != mark.start for mark in marked)

    def missing(self, mark: Mark, files: Sequence[DataFile]) -> list[str]:
        """Paths of files of a commit that do not exist with their recorded size. One listing for those of our own write, and one request
        for each of Spark's own, which lie among the files of all writers."""
        objects, folder = self.at(mark), mark.slot.rpartition("/")[0]
        own = {file.path for file in files if file.path.startswith(f"{folder}/")}
        sizes = {each.path: each.bytes for each in blocking.run(objects.list(folder))} if own else {}
        return [
            file.path
            for file in files
            if (
                sizes.get(file.path) != file.bytes
                if file.path in own
                else blocking.run(objects.tail(file.path, 1)) is None
            )
        ]

    def _gone(self, count: int) -> str:
        return (
            f"{count} file(s) of an earlier generation of this job are no longer in {self.uri} as it wrote them (compacted, or "
            "changed row by row), so a rerun cannot replace them; delete those rows and declare `onRerun: Append`"
        )

    def put(self, key: SinkKey, slot: Slot) -> tuple[str, str]:
        """Writes the slot's JSON beside its data; returns path and digest. A roll-forward writes the same bytes.

        Raises:
            OutputUnavailable: the store did not answer.
        """
        data = layout.encode(slot)
        digest = sha256(data)
        path, objects = slot_path(key, slot.token, slot.nonce, digest), self.objects
        if not blocking.run(objects.create(path, data)):
            if blocking.run(objects.get(path)) != data:
                raise OutputUnavailable(f"{objects.where(path)} holds another slot; nothing was sent")
            blocking.run(objects.persist([path]))
        return path, digest

    def never_commits(self, folder: str, at: KeyEvidence, token: int, nonce: str) -> bool:
        """Whether the files staged in a folder can never be committed.

        Raises:
            OutputUnavailable: the store did not answer.
        """
        if at.committed is not None and at.committed.nonce == nonce:
            return False
        if at.committed is None and token >= at.barred_below:
            return False
        objects = self.objects
        for each in blocking.run(objects.list(folder)):
            if each.path.rpartition("/")[2].startswith("_slot-"):
                # A commit was sent, perhaps to a table that was since dropped from this location: then the files are not ours to delete.
                with contextlib.suppress(SparkonceError):
                    data = blocking.run(objects.get(each.path)) or b""
                    sink_key = sink_key_of(folder) or ""
                    slot = layout.decode(data, where=each.path, sink_key=sink_key, token=token)
                    return slot.table == str(self.table.metadata.table_uuid)
                return False
        return True

    def _fit(self, slot: Slot) -> SchemaChange:
        if (
            not slot.data_schema
            or slot.skipped is not None
            or (slot.stream is not None and slot.stream.part is StreamPart.END)
        ):
            return SchemaChange()  # no rows: a stream's opening, its end, a batch without rows for this output
        return fit(schema_of(slot.data_schema), self.table.schema())

    def _unfit(self, key: SinkKey, slot: Slot) -> str | None:
        metadata = self.table.metadata
        if (why := unwritable(metadata)) is not None:
            return f"the table {self.uri} was changed: {why}"
        if (later := replaced_by(metadata, key)) is not None:
            return f"generation {later} of this job has replaced what it would write to {self.uri}"
        first = not self.table.schema().fields
        if (why := self._fit(slot).problem(merge=first or bool(slot.merge_schema))) is not None:
            return f"the table {self.uri} was changed since the rows were staged: {why}; rerun the job"
        # Folders are named after the values of the fields of a spec, in its order: those of another one would be taken for its own.
        other_spec = slot.spec_id not in (None, metadata.default_spec_id)
        columns = identity_columns(self.table.spec(), self.table.schema())
        if not first and (other_spec or (slot.partition_by and slot.partition_by != columns)):
            return f"the table {self.uri} was partitioned differently when the rows were staged; rerun the job"
        return None


def closed(slot: Slot, by: str) -> Slot:
    """The closed slot that a slot log would have here: a fence, or a higher commit, closes every lower slot."""
    return Slot(
        state=SlotState.CLOSED,
        sink_key=slot.sink_key,
        token=slot.token,
        fingerprint=slot.fingerprint,
        table=slot.table,
        closed_by=by,
    )
