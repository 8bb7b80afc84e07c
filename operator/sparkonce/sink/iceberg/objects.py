"""Objects below a table's location, through the file access that its catalog configured.

Local tables use `FolderObjects`, with its fsync, as slot logs do. All others go through pyarrow with the table's own properties, including
credentials that a REST catalog issues. `create` is then check-and-write, which is sufficient *here*: a sink creates objects only in the
folder of one write call, whose name contains that call's nonce, so other processes write nothing there but the same bytes. A slot log on
such objects would be unsafe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkonce.errors import InvalidInput, OutputUnavailable
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.objects.protocol import Listed, TableObjects, Tail, first_line

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

HADOOP = {"s3": "s3a", "s3n": "s3a", "gcs": "gs", "": "file"}
"""Iceberg's scheme -> the scheme of Spark's connectors."""


def is_place(location: str) -> bool:
    """Whether a table's metadata can mean a place by it: an absolute path or a URL."""
    try:
        place = urlsplit(location)
    except ValueError:
        return False
    return "\0" not in location and (place.scheme not in ("", "file") or place.path.startswith("/"))


def objects_at(location: str, io: FileIO, *, durable: bool) -> TableObjects:
    """The objects below a location, which is a place (`is_place`).

    Raises:
        InvalidInput: pyarrow has no file system for the location.
        OutputUnavailable: its file system cannot be opened here.
    """
    place = urlsplit(location)
    if place.scheme in ("", "file"):
        return FolderObjects(Path(place.path), durable=durable)
    return FileSystemObjects(location, io)


class FileSystemObjects:
    """`TableObjects` of a table outside the local file system, over pyarrow."""

    def __init__(self, location: str, io: FileIO) -> None:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        self.uri = location.rstrip("/")
        place = urlsplit(location)
        access = io if isinstance(io, PyArrowFileIO) else PyArrowFileIO(io.properties)
        try:
            self._files: Any = access.fs_by_scheme(place.scheme, place.netloc)
        except ValueError as error:
            raise InvalidInput(
                f"pyarrow cannot write to the location of the table, {location} ({error}); move the table"
            ) from None
        except Exception as error:  # TypeError without credentials, OSError without a native library
            raise OutputUnavailable(
                f"cannot open the location of the table, {location}: {first_line(error)}"
            ) from error
        self._root = access.parse_location(self.uri)[2]
        self._hadoop = f"{HADOOP.get(place.scheme, place.scheme)}{self.uri.removeprefix(place.scheme)}"

    def where(self, path: str) -> str:
        return f"{self._hadoop}/{path}"

    async def create(self, path: str, data: bytes) -> bool:
        with self._asking("create", path):
            if self._size(path) is not None:
                return False
            with self._files.open_output_stream(self._full(path)) as stream:
                stream.write(data)
        return True

    async def get(self, path: str) -> bytes | None:
        with self._asking("read", path):
            try:
                with self._files.open_input_file(self._full(path)) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    async def tail(self, path: str, length: int) -> Tail | None:
        with self._asking("read", path):
            try:
                with self._files.open_input_file(self._full(path)) as file:
                    size = file.size()
                    file.seek(max(0, size - length))
                    return Tail(bytes(file.read()), size)
            except FileNotFoundError:
                return None

    async def list(self, prefix: str) -> tuple[Listed, ...]:
        cut = len(self._root) + 1
        found = [
            Listed(each.path[cut:], each.size, each.mtime_ns / 1e9 if each.mtime_ns else 0.0)
            for each in self._infos(prefix, recursive=True)
            if each.is_file
        ]
        return tuple(sorted(found, key=lambda each: each.path))

    async def folders(self, prefix: str) -> tuple[str, ...]:
        cut = len(self._root) + 1
        return tuple(sorted(each.path[cut:] for each in self._infos(prefix, recursive=False) if not each.is_file))

    async def persist(self, paths: Iterable[str]) -> None:
        """Nothing to do: a store answers only once an object is durable."""

    async def delete(self, path: str) -> None:
        with self._asking("delete", path):
            try:
                self._files.delete_file(self._full(path))
            except FileNotFoundError:
                return

    async def delete_folder(self, prefix: str) -> None:
        if not prefix:
            raise ValueError("a table is never deleted as a whole")
        with self._asking("delete", prefix):
            try:
                self._files.delete_dir(self._full(prefix))
            except FileNotFoundError:
                return

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _size(self, path: str) -> int | None:
        info = self._files.get_file_info(self._full(path))
        return info.size if info.is_file else None

    def _infos(self, prefix: str, *, recursive: bool) -> Any:
        from pyarrow.fs import FileSelector

        with self._asking("list", prefix):
            return self._files.get_file_info(
                FileSelector(self._full(prefix), allow_not_found=True, recursive=recursive)
            )

    @contextmanager
    def _asking(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # pyarrow's own errors are subclasses of these
            raise OutputUnavailable(f"cannot {verb} {self.uri}/{path}: {first_line(error)}") from error
