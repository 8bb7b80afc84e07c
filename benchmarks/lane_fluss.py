"""Apache Fluss for `lane_others.py`: ZooKeeper, a coordinator and one tablet server from Maven, and its Python client from PyPI.

The client is unpacked under build/fluss, beside the environment and not into it: what it needs, pyarrow and pandas, is there.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.child import Child, free_port
from harness.eventually import assert_eventually
from harness.spark import java
from harness.spark_archive import SHORT_LIVED
from harness.store_parts import jars

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
SERVER = "0.9.1-incubating"
ZOOKEEPER = "3.8.4"
KEEPER_NEEDS = ("io.dropwizard.metrics:metrics-core:4.1.12.1", "org.xerial.snappy:snappy-java:1.1.10.5")
"""Modules that ZooKeeper's server loads and does not declare for its users."""
CLIENT = "pyfluss==1.0.0"
PACKAGES = Path(__file__).resolve().parents[1] / "build" / "fluss"
OPENS = ("java.base/java.nio=ALL-UNNAMED", "java.base/java.util=ALL-UNNAMED")
"""What Arrow and Fluss reach into, on Java 17."""
STARTS = 60.0
"""Seconds until a server listens."""
DATABASE = "lake"


@contextmanager
def fluss(folder: Path) -> Iterator[str]:
    """The address of a cluster that keeps its data in the folder."""
    client()
    classes = ":".join(map(str, jars(f"fluss-{SERVER}", [f"org.apache.fluss:fluss-server:{SERVER}"])))
    modules = [f"org.apache.zookeeper:zookeeper:{ZOOKEEPER}", *KEEPER_NEEDS]
    keeper = ":".join(map(str, jars(f"zookeeper-{ZOOKEEPER}", modules)))
    opens = [word for each in OPENS for word in ("--add-opens", each)]
    start = [java() or "java", "-Xmx512m", *SHORT_LIVED.split(), *opens, "-cp"]
    zookeeper, coordinator, tablet = free_port(), free_port(), free_port()
    with ExitStack() as stack:

        def run(name: str, port: int, command: list[str]) -> None:
            child = Child(name, command, folder / f"{name}.log")
            stack.callback(child.kill)
            child.start()
            child.until(lambda: listens(port), STARTS)

        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        run("zookeeper", zookeeper, [*start, keeper, main, str(zookeeper), str(folder / "zookeeper")])
        for name, port, kind in (
            ("coordinator", coordinator, "coordinator.CoordinatorServer"),
            ("tablet", tablet, "tablet.TabletServer"),
        ):
            settings = folder / name
            settings.mkdir()
            (settings / "server.yaml").write_text(
                f"zookeeper.address: 127.0.0.1:{zookeeper}\n"
                f"bind.listeners: FLUSS://127.0.0.1:{port}\n"
                f"data.dir: {folder}/data\nremote.data.dir: {folder}/remote\n"
                "default.replication.factor: 1\ntablet-server.id: 0\n"
            )
            run(name, port, [*start, classes, f"org.apache.fluss.server.{kind}", "--configDir", str(settings)])
        address = f"127.0.0.1:{coordinator}"
        assert_eventually(lambda: _has_a_tablet_server(address), STARTS)
        yield address


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _has_a_tablet_server(address: str) -> bool:
    async def ask(connection: Any) -> bool:
        nodes = await connection.get_admin().get_server_nodes()
        return any(node.server_type.lower().startswith("tablet") for node in nodes)

    return _connected(address, ask)


def client() -> None:
    """Makes the client importable, here and in processes that call this."""
    if not PACKAGES.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PACKAGES), CLIENT]
        subprocess.run(pip, check=True)
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))


def made(address: str, name: str) -> None:
    """Makes an empty table with one bucket."""

    async def make(connection: Any) -> None:
        import fluss
        import pyarrow as pa

        admin = connection.get_admin()
        await admin.create_database(DATABASE, ignore_if_exists=True)
        columns = fluss.Schema(pa.schema([("n", pa.int64())]))
        await admin.create_table(fluss.TablePath(DATABASE, name), fluss.TableDescriptor(columns, bucket_count=1))

    _connected(address, make)


def numbers(address: str, name: str) -> list[int]:
    """What a reader sees now, in order."""

    async def read(connection: Any) -> list[int]:
        import fluss

        table = await connection.get_table(fluss.TablePath(DATABASE, name))
        scanner = await table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        reader = scanner.to_arrow_batch_reader()
        return [n for batch in reader for n in batch.column("n").to_pylist()]

    return _connected(address, read)


@contextmanager
def appender(address: str, name: str) -> Iterator[Callable[[pa.Table], None]]:
    """Appends rows, and returns once they are acknowledged. The client's defaults, among them its idempotent writer."""
    import fluss

    async def begin() -> tuple[Any, Any]:
        connection = await fluss.FlussConnection.create(_config(address))
        table = await connection.get_table(fluss.TablePath(DATABASE, name))
        return connection, table.new_append().create_writer()

    async def append(rows: pa.Table) -> None:
        writer.write_arrow(rows)
        await writer.flush()

    async def end() -> None:
        await connection.close()

    with asyncio.Runner() as loop:
        connection, writer = loop.run(begin())
        yield lambda rows: loop.run(append(rows))
        loop.run(end())


def _config(address: str) -> Any:
    import fluss

    return fluss.Config({"bootstrap.servers": address})


def _connected(address: str, use: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    import fluss

    async def run() -> T:
        connection = await fluss.FlussConnection.create(_config(address))
        try:
            return await use(connection)
        finally:
            await connection.close()

    return asyncio.run(run())
