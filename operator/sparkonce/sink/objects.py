"""The few things a slot log asks of the place where a table lives, over obstore.

`create` is the one that counts: create-if-absent, atomic, and with `True` only once the object would survive a power cut. Everything
else may be repeated. Methods are `async` because the sink's verbs are; they block for milliseconds and never suspend
(`sparkonce.blocking`).

obstore sends a create again by itself when the store answered with an error of its own (5xx). The second one may then meet the object of
the first, so `False` may mean "my own": a caller that cares compares what stands there (slots carry a nonce for this). When the connection
broke it sends nothing again. What is never wrong is `True`.

Refused: overwriting. No verb here changes an object, so no caller can.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError
from obstore.store import ObjectStore

from sparkonce.errors import OutputUnavailable, OutputUnsafe

DELETE_THREADS = 8
"""Deletes under way at once: a store takes a round trip for each."""
BROKEN_SECONDS = 1.0
"""A request that failed sooner met a connection that broke; later, a store that does not answer."""

_NO_CONTAINER = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
"""How stores say that not the object is missing but everything."""


@dataclass(frozen=True, slots=True)
class Listed:
    path: str
    """Relative to the table, with `/`."""
    bytes: int
    modified: float = field(default=0.0, compare=False)
    """Unix seconds, the store's clock. For a person; decides nothing."""


@dataclass(frozen=True)
class Tail:
    """The end of an object."""

    data: bytes
    bytes: int
    """Of the whole object."""


class Objects(Protocol):
    """Immutable objects under one table; paths are relative to it, with `/`.

    OutputUnavailable from every method: unknown, one sentence. A listing proves presence, never absence."""

    uri: str
    """Of the table, as a person and other tools write it (percent-encoded)."""

    def where(self, path: str) -> str:
        """The path as Hadoop's file systems read it: not percent-encoded, and without a `*` that they would expand."""
        ...

    async def create(self, path: str, data: bytes) -> bool:
        """True: this call created it, durably. False: something stands there (`persist` before relying on it).
        OutputUnsafe: the place cannot create-if-absent."""
        ...

    async def get(self, path: str) -> bytes | None:
        """The whole object; None when there is none."""
        ...

    async def tail(self, path: str, length: int) -> Tail | None:
        """At most the last `length` bytes; None when there is no such object."""
        ...

    async def list(self, prefix: str) -> tuple[Listed, ...]:
        """All objects in a folder and below, in the order of their paths; none when there is no such folder."""
        ...

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """Paths of the folders directly in a folder, in order."""
        ...

    async def persist(self, paths: Iterable[str]) -> None:
        """Returns once these objects, whoever wrote them, would survive a power cut."""
        ...

    async def delete(self, path: str) -> None:
        """Nothing to delete is no error."""
        ...

    async def delete_folder(self, prefix: str) -> None:
        """Everything below, and the folder."""
        ...


async def refuse_unless_absent(objects: Objects, folder: str) -> None:
    """OutputUnsafe: the place creates an object that is there already. OutputUnavailable: it does not say. Leaves nothing behind.

    Of two creates of one new name only the second is judged. The first one's answer tells nothing: who sends again because a reply was
    lost meets its own object; nobody else knows the name."""
    probe = f"{folder}/_probe-{secrets.token_hex(16)}.json"
    await create_heard(objects, probe, b"1")
    second = await create_heard(objects, probe, b"2")
    found = await objects.get(probe)
    await objects.delete(probe)
    if second or found != b"1":
        raise OutputUnsafe(
            f"{objects.uri} does not honour create-if-absent (the same object could be created twice), so exactly-once cannot be kept "
            "there; put the output on another store"
        )


async def create_heard(objects: Objects, path: str, data: bytes) -> bool:
    """As `Objects.create`, sent once more when the connection broke: `False` may then mean "my own". A store that was silent has used up
    its client's patience already."""
    began = time.monotonic()
    try:
        return await objects.create(path, data)
    except OutputUnavailable:
        if time.monotonic() - began > BROKEN_SECONDS:
            raise
    return await objects.create(path, data)


class StoreObjects:
    """Objects of any store that obstore speaks, below a prefix. Stores answer a create only when it is durable."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        uri: str,
        hadoop: str | None = None,
        reason: Callable[[Exception], str] | None = None,
    ) -> None:
        """hadoop: the table's URL as Spark takes it, where that differs from `uri`. reason: an error of this store in a person's words."""
        self._store, self._prefix, self.uri = store, prefix.strip("/"), uri
        self._hadoop, self._reason = hadoop or uri, reason or first_line

    def where(self, path: str) -> str:
        return f"{self._hadoop}/{path}"

    async def create(self, path: str, data: bytes) -> bool:
        try:
            obstore.put(self._store, self._full(path), data, mode="create")
        except AlreadyExistsError:
            return False
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable("create", path, error) from None
        return True

    async def get(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, self._full(path)).bytes())
        except (BaseError, OSError, ValueError) as error:
            if is_absent(error):
                return None
            raise self._unavailable("read", path, error) from None

    async def tail(self, path: str, length: int) -> Tail | None:
        try:
            try:
                found = obstore.get(self._store, self._full(path), options={"range": {"suffix": length}})
            except NotSupportedError:  # Azure: the end must be counted from the beginning
                size = obstore.head(self._store, self._full(path))["size"]
                if size == 0:
                    return Tail(b"", 0)
                found = obstore.get(self._store, self._full(path), options={"range": (max(0, size - length), size)})
            return Tail(bytes(found.bytes()), found.meta["size"])
        except (BaseError, OSError, ValueError) as error:
            if is_absent(error):
                return None
            raise self._unavailable("read", path, error) from None

    async def list(self, prefix: str) -> tuple[Listed, ...]:
        full, cut = self._full(prefix), len(self._full(""))
        try:
            chunks = obstore.list(self._store, prefix=full)
            found = [
                Listed(each["path"][cut:], each["size"], each["last_modified"].timestamp())
                for chunk in chunks
                for each in chunk
                if each["path"]
                != full  # the empty object by which some clients mark a folder, and which nobody else can delete
            ]
        except (BaseError, OSError, ValueError) as error:
            if is_absent(error):
                return ()
            raise self._unavailable("list", prefix, error) from None
        return tuple(sorted(found, key=lambda each: each.path))

    async def folders(self, prefix: str) -> tuple[str, ...]:
        cut = len(self._full(""))
        try:
            found = obstore.list_with_delimiter(self._store, prefix=self._full(prefix))
        except (BaseError, OSError, ValueError) as error:
            if is_absent(error):
                return ()
            raise self._unavailable("list", prefix, error) from None
        return tuple(sorted(each[cut:] for each in found["common_prefixes"]))

    async def persist(self, paths: Iterable[str]) -> None:
        """A store's answer is durable."""

    async def delete(self, path: str) -> None:
        self._delete(path)

    async def delete_folder(self, prefix: str) -> None:
        if not prefix:
            raise ValueError("a table is never deleted as a whole")
        listed = await self.list(prefix)
        with ThreadPoolExecutor(DELETE_THREADS) as pool:
            list(pool.map(lambda each: self._delete(each.path), listed))

    def _delete(self, path: str) -> None:
        try:
            obstore.delete(self._store, self._full(path))
        except (BaseError, OSError, ValueError) as error:
            if not is_absent(error):
                raise self._unavailable("delete", path, error) from None

    def _full(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path

    def _unavailable(self, verb: str, path: str, error: Exception) -> OutputUnavailable:
        # `from None` where this is raised: a store's own text holds addresses, and some of those hold credentials.
        return OutputUnavailable(f"cannot {verb} {self.where(path)}: {self._reason(error)}")


def is_absent(error: Exception) -> bool:
    """Nothing stands at that path. A bucket that is missing is no such answer: the address may be wrong."""
    return isinstance(error, FileNotFoundError) and not no_container(error)


def no_container(error: Exception) -> bool:
    """The bucket, or container, itself is missing."""
    return _NO_CONTAINER.search(str(error)) is not None


def first_line(error: Exception) -> str:
    """What an error of a store begins with."""
    return (str(error).splitlines() or [type(error).__name__])[0]
