"""Tables on an object store: the same audit, by URL, with credentials from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.scene import kinds, only
from harness.arrow_stage import table_of
from harness.sink_attempts import FINGERPRINT, key_of, rows_of, sink_at
from harness.store_fixtures import only_on
from harness.store_servers import StoreServer
from sparkonce.audit.cleanup import sweep
from sparkonce.audit.files import with_threads
from sparkonce.audit.findings import Kind
from sparkonce.audit.inspection import Audit
from sparkonce.audit.places import named, open_place
from sparkonce.audit.report import AuditReport
from sparkonce.blocking import run

pytestmark = only_on("versitygw")
KEYS = [f"k{number}" for number in range(5)]


def audited(url: str) -> AuditReport:
    return Audit(places=named([url], base=str(Path.cwd())), read_files=with_threads(open_place)).run()


def test_a_table_on_a_store(server: StoreServer) -> None:
    """Five commits audit clean; a deleted and a replaced object are named with their URLs; an orphan is found and swept."""
    url = server.url("audited")
    sink = sink_at(url)
    for name in KEYS:
        slot = sink.stage(table_of(*rows_of(name)), key_of(name), 1, fingerprint=FINGERPRINT)
        run(sink.commit(key_of(name), slot))
    clean = audited(url)
    assert (kinds(clean), clean.rows, clean.cost.files) == ([], 20, 10)
    sink.stage(table_of(1, 2), key_of("k0"), 2, fingerprint=FINGERPRINT)
    orphan = only(audited(url))
    assert (orphan.kind, "old" in orphan.what) == (Kind.ORPHAN_STAGING, True)
    [done] = sweep(named([url], base="/"), dry_run=False)
    assert (done.folders, kinds(audited(url))) == (1, [])
    objects = open_place(url)
    first, second = [run(sink.inventory()).effects[at].files[0].path for at in (0, 1)]
    run(objects.delete(first))
    run(objects.delete(second))
    assert run(objects.create(second, b"PAR1 and nothing else"))
    report = audited(url)
    assert [(each.kind, each.where) for each in report.findings] == [
        (Kind.MISSING_FILE, f"{report.tables[0].uri}/{first}"),
        (Kind.CHANGED_FILE, f"{report.tables[0].uri}/{second}"),
    ]


def test_a_store_that_does_not_answer(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address without a server gives an error of one sentence, never a clean or an empty table."""
    away = server.at("127.0.0.1:1")
    away.use(monkeypatch)
    report = Audit(
        places=named([f"slotLog:{away.url('audited')}"], base="/"), read_files=with_threads(open_place)
    ).run()
    assert only(report).kind is Kind.NOT_SEEN
    assert not report.complete
