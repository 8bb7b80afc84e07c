"""The real store, a real table and the launcher as a simulated process sees them: one atomic effect per call.

Each verb of the store is one effect, since it is one transaction. Of a sink, each operation on an object is one effect, so that other
processes can act between the steps of a fence or a commit. Staged files are small texts that name their writer, since nothing here reads
Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from machine.process import Effect, ask
from sparkonce.blocking import run
from sparkonce.errors import LaunchUnavailable, OutputUnavailable, RowsLost, StoreUnavailable
from sparkonce.launch.protocol import ApplicationState, Stopped
from sparkonce.model.record import Application, Assignment, Bound
from sparkonce.model.spec import OnRerun, WriteMode
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.protocol import Listed, Tail
from sparkonce.sink.protocol import DataFile, SinkKey, Slot
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.sink.staging import StagedRows, Stager
from sparkonce.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from machine.world import World

PARTS = 2
"""Files of one write: two, so that half a result can be told from a whole one."""
WRITES = frozenset(
    {"reserve", "take_over", "update", "finalize", "reopen", "request_stop", "seal", "forget", "release", "purge"}
)
"""Verbs that may change the record or its owner; the promises are checked after each."""


class Store:
    """`IdempotencyStore` for simulated processes."""

    def __init__(self, world: World, real: SqliteStore) -> None:
        self._world, self._real, self.url = world, real, real.url

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        real, world = getattr(self._real, verb), self._world

        async def effect(*args: Any, **named: Any) -> Any:
            def call() -> Any:
                answer = run(real(*args, **named))
                if verb in WRITES:
                    world.promises.stored()
                return answer

            return await ask(Effect(f"store.{verb}", call, StoreUnavailable))

        return effect

    async def now(self) -> float:
        """Not an effect: a lost or late answer of a clock breaks nothing."""
        return run(self._real.now())


class Objects:
    """`Objects` of one table for simulated processes."""

    def __init__(self, world: World, name: str, real: FolderObjects) -> None:
        self._world, self.name, self.real, self.uri = world, name, real, real.uri

    def where(self, path: str) -> str:
        """Paths stay relative: the stager below writes through these objects."""
        return path

    async def _effect(self, verb: str, path: str, call: Callable[[], Any]) -> Any:
        if "/_probe-" in path or "/_snapshot" in path:
            return call()  # neither the probe's own object nor the readers' cache is part of the protocol
        return await ask(Effect(f"{self.name}.{verb} {path}", call, OutputUnavailable))

    async def create(self, path: str, data: bytes) -> bool:
        def call() -> bool:
            created = run(self.real.create(path, data))
            if created:
                self._world.promises.created(self.name, path, data)
            return created

        return bool(await self._effect("create", path, call))

    async def get(self, path: str) -> bytes | None:
        found: bytes | None = await self._effect("get", path, lambda: run(self.real.get(path)))
        return found

    async def tail(self, path: str, length: int) -> Tail | None:
        return await self.real.tail(path, length)

    async def list(self, prefix: str) -> tuple[Listed, ...]:
        found: tuple[Listed, ...] = await self._effect("list", prefix, lambda: run(self.real.list(prefix)))
        return found

    async def folders(self, prefix: str) -> tuple[str, ...]:
        found: tuple[str, ...] = await self._effect("folders", prefix, lambda: run(self.real.folders(prefix)))
        return found

    async def persist(self, paths: Iterable[str]) -> None:
        """Does nothing: power cuts are not simulated."""

    async def delete(self, path: str) -> None:
        await self._effect("delete", path, lambda: run(self.real.delete(path)))

    async def delete_folder(self, prefix: str) -> None:
        await self._effect("delete_folder", prefix, lambda: run(self.real.delete_folder(prefix)))


def stager(objects: Objects) -> Stager:
    """A stager that writes a driver's name into each of its files."""

    def stage(frame: Any, folder: str, _: Sequence[str] = ()) -> StagedRows:
        for part in range(PARTS):
            path = f"{folder}/part-{part}"
            while True:  # Spark retries a failed task
                try:
                    run(objects.create(path, f"{frame} {part}".encode()))
                except OutputUnavailable:
                    continue
                break
        return StagedRows(rows=PARTS, data_schema='{"type":"struct","fields":[]}', application=str(frame))

    return stage


async def staged_files(objects: Objects, folder: str, written: StagedRows) -> tuple[DataFile, ...]:
    """Replaces `staging.staged_files`, since these files are not Parquet."""
    listed = await objects.list(folder)
    if len(listed) != written.rows:
        raise RowsLost(f"{folder} has {len(listed)} files")
    return tuple(DataFile(path=each.path, rows=1, bytes=each.bytes, digest=f"text:{0:032x}") for each in listed)


class Watched(SlotLogSink):
    """The real slot log, which records what its fences promised, and when its overwrites looked."""

    def __init__(self, world: World, objects: Objects, mode: WriteMode) -> None:
        super().__init__(objects, name=objects.name, on_rerun=OnRerun.REPLACE, mode=mode, stage=stager(objects))
        self._world = world

    async def _replacing(self, key: SinkKey, slot: Slot) -> Slot | str:
        self._world.promises.turns[self.name].looks(slot)
        return await super()._replacing(key, slot)

    async def fence(self, key: SinkKey, token: int, *, fingerprint: str, by: str, lowest: int = 1) -> Slot | None:
        found = await super().fence(key, token, fingerprint=fingerprint, by=by, lowest=lowest)
        if found is None:
            self._world.promises.fenced(key, token)
        return found


class Launches:
    """`Launcher`, `Follows` and `SettleRuns` for simulated processes, over the applications of the world."""

    kind = "simulated"

    def __init__(self, world: World) -> None:
        self._world = world

    async def launch(self, assignment: Assignment) -> ApplicationState:
        seen: ApplicationState = await self._ask(
            "launch", assignment, lambda: self._world.applications.create(assignment)
        )
        return seen

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> ApplicationState | None:
        seen: ApplicationState | None = await self._ask(
            "observe", assignment, lambda: self._world.applications.seen(assignment.name)
        )
        return seen

    async def follow(self, assignment: Assignment, bound: Bound) -> ApplicationState | None:
        seen: ApplicationState | None = await self._ask(
            "follow", assignment, lambda: self._world.applications.seen(bound.application)
        )
        return seen

    async def stop(
        self, assignment: Assignment, *, timeout: float, proof: bool = False, noted: Application | None = None
    ) -> Stopped:
        del timeout, proof, noted
        await self._ask("mark", assignment, lambda: self._world.applications.mark(assignment))
        seen: ApplicationState | None = await self._ask(
            "end", assignment, lambda: self._world.applications.end(assignment.name)
        )
        return Stopped(seen)

    async def settle(self, assignment: Assignment) -> ApplicationState:
        seen: ApplicationState = await self._ask(
            "settle", assignment, lambda: self._world.applications.settle(assignment)
        )
        return seen

    async def settled(self, assignment: Assignment) -> ApplicationState | None:
        seen: ApplicationState | None = await self._ask(
            "settled", assignment, lambda: self._world.applications.seen(assignment.settle_run_name)
        )
        return seen

    async def _ask(self, verb: str, assignment: Assignment, call: Callable[[], Any]) -> Any:
        name = f"g{assignment.generation}-a{assignment.attempt}" + (f"-s{assignment.run}" if assignment.run else "")
        return await ask(Effect(f"launcher.{verb} {name}", call, LaunchUnavailable))
