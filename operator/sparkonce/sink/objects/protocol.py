"""The storage operations that sinks need, and their implementation over obstore.

The essential one is `create`: create-if-absent, atomic, and True only once the object would survive a power failure. All others may be
repeated. Methods are `async` because those of sinks are; they block for milliseconds and never suspend (`sparkonce.blocking`).

obstore retries a create when the store answered with a server error (5xx). The retry may then find the object of the first request, so
False may mean our own object: a caller that cares compares the content (slots carry a nonce for this). After a broken connection obstore
does not retry. True is always correct.

No method overwrites an object, so no caller can.
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
"""Concurrent deletes: each is a round trip to the store."""
BROKEN_SECONDS = 1.0
"""A request that fails sooner had a broken connection; one that fails later, a store that does not answer."""

_NO_CONTAINER = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
"""How stores report that the whole bucket or container is missing."""


@dataclass(frozen=True, slots=True)
class Listed:
    path: str
    """Relative to the table, with `/`."""
    bytes: int
    modified: float = field(default=0.0, compare=False)
    """Unix seconds of the store's clock. Informational; decides nothing."""


@dataclass(frozen=True)
class Tail:
    """The end of an object."""

    data: bytes
    bytes: int
    """Size of the whole object."""


class TableObjects(Protocol):
    """Immutable objects under one table; paths are relative to it, with `/`. A listing proves presence, never absence.

    Raises, from every method:
        OutputUnavailable: unknown whether the call took effect.
    """

    uri: str
    """URI of the table for users and other tools (percent-encoded)."""

    def where(self, path: str) -> str:
        """URL of an object for Hadoop's file systems: not percent-encoded, and without a `*` that they would expand."""
        ...

    async def create(self, path: str, data: bytes) -> bool:
        """Creates an object if it is absent. True: this call created it, durably. False: it exists (call `persist` before relying on it).

        Raises:
            OutputUnsafe: the store cannot create-if-absent.
        """
        ...

    async def get(self, path: str) -> bytes | None:
        """The content of the object; None if it does not exist."""
        ...

    async def tail(self, path: str, length: int) -> Tail | None:
        """At most the last `length` bytes; None if the object does not exist."""
        ...

    async def list(self, prefix: str) -> tuple[Listed, ...]:
        """All objects below a folder, ordered by path; empty if the folder does not exist."""
        ...

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """Paths of the folders directly in a folder, ordered."""
        ...

    async def persist(self, paths: Iterable[str]) -> None:
        """Returns once these objects, whichever process wrote them, would survive a power failure."""
        ...

    async def delete(self, path: str) -> None:
        """Deletes an object, if it exists."""
        ...

    async def delete_folder(self, prefix: str) -> None:
        """Deletes a folder with everything below it."""
        ...


async def refuse_unless_absent(objects: TableObjects, folder: str) -> None:
    """Checks that the store honours create-if-absent, with an object of a random name that it deletes again.

    Of two creates only the second reply counts: the first may be False without a conflict, when a retry after a lost reply finds its own
    object.

    Raises:
        OutputUnsafe: the store created an object that existed.
        OutputUnavailable: the store did not answer.
    """
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


async def create_heard(objects: TableObjects, path: str, data: bytes) -> bool:
    """As `TableObjects.create`, retried once if the connection broke: False may then mean our own object. A silent store is not retried:
    it has exhausted its client's timeout already.

    Raises:
        OutputUnavailable: unknown; the object may have been created.
    """
    began = time.monotonic()
    try:
        return await objects.create(path, data)
    except OutputUnavailable:
        if time.monotonic() - began > BROKEN_SECONDS:
            raise
    return await objects.create(path, data)


class StoreObjects:
    """Objects below a prefix of any store that obstore supports. Stores answer a create only once it is durable."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        uri: str,
        hadoop: str | None = None,
        reason: Callable[[Exception], str] | None = None,
    ) -> None:
        """hadoop: the table's URL for Spark, if it differs from `uri`. reason: turns an error of this store into a short explanation."""
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
            except NotSupportedError:  # Azure has no suffix ranges
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
                if each["path"] != full  # an empty folder marker, which other clients create and delete
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
        """Nothing to do: a store answers only once an object is durable."""

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
        # Raised `from None`: a store's own text contains URLs, and some of those contain credentials.
        return OutputUnavailable(f"cannot {verb} {self.where(path)}: {self._reason(error)}")


def is_absent(error: Exception) -> bool:
    """Whether the object does not exist. A missing bucket does not count: the address may be wrong."""
    return isinstance(error, FileNotFoundError) and not no_container(error)


def no_container(error: Exception) -> bool:
    """Whether the bucket, or container, itself is missing."""
    return _NO_CONTAINER.search(str(error)) is not None


def first_line(error: Exception) -> str:
    """First line of an error's text, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
