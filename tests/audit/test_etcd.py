"""The ledger of a cluster, on a real etcd, is audited like a local one."""

from __future__ import annotations

from pathlib import Path

from audit.scene import Scene, kinds
from harness import etcd
from sparkonce.audit.findings import Kind
from sparkonce.blocking import run
from sparkonce.cli.app import main
from sparkonce.cli.exits import ExitCode
from sparkonce.store.open import open_blocking


def test_a_ledger_on_etcd(tmpfs_path: Path) -> None:
    """Jobs recorded on etcd audit clean; a lost slot, a commit of an unknown key and a held key are found, also by another client."""
    (tmpfs_path / "etcd").mkdir()
    with etcd.running(tmpfs_path / "etcd") as server:
        url = f"etcd://{','.join(server.endpoints)}"
        store = open_blocking(url, install="prod")
        scene = Scene(tmpfs_path, store)
        for number in range(3):
            scene.ran(f"day-{number}", *range(number * 10, number * 10 + 4))
        assert kinds(scene.audit()) == []
        assert main(["audit", "--store", url, "--install", "prod"]) == ExitCode.SUCCEEDED
        scene.hold(scene.granted("held"))
        scene.slot_file(scene.written[0]).unlink()
        run(store.close())
        other = open_blocking(url, install="another")
        Scene(tmpfs_path, other).ran("stranger", 100)
        run(other.close())
        scene.store = open_blocking(url, install="prod")
        report = scene.audit()
        run(scene.store.close())
        assert kinds(report) == [Kind.SLOT_WITHOUT_RECORD, Kind.RECORD_WITHOUT_SLOT, Kind.HELD]
        assert main(["audit", "--store", url, "--install", "prod"]) == ExitCode.FAILED
        assert main(["sweep", "--store", url, "--install", "prod"]) == ExitCode.SUCCEEDED
