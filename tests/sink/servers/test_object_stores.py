"""Slot logs on servers with S3's, Azure's and Google's APIs: the guarantees of `Objects`, and the errors of a store that lacks them."""

from __future__ import annotations

import os
import secrets
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

import sparkonce
from harness import store_servers
from harness.arrow_stage import arrow_stage, table_of
from harness.patience import stretched
from harness.proxy import Flow, in_front_of
from harness.slots import committing
from harness.store_servers import StoreServer
from sparkonce.blocking import run
from sparkonce.errors import NothingCommitted, OutputUnavailable, OutputUnsafe
from sparkonce.sink.objects.location import objects_at
from sparkonce.sink.objects.protocol import StoreObjects, TableObjects
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import AlreadyCommitted, Committed, Declared, Evidence, FencedOff, Sink, SinkKey
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.sink import SlotLogSink, digest_of
from sparkonce.sink.slotlog.snapshot import Table
from sparkonce.store.open import open_store

ODD = "kind=a%2Fb%25%3D0 ü+&'"
"""Spark's folder name for a value with such characters."""


@pytest.fixture
def url(server: StoreServer) -> str:
    """URL of a table that does not exist yet."""
    return server.url(f"t-{secrets.token_hex(4)}/orders")


def place(url: str) -> TableObjects:
    return objects_at(url, field="path")


def sink_at(url: str, kind: str = "slotLog") -> Sink:
    return open_sink(Declared(name="orders", kind=kind, location=url), base=None, stage=arrow_stage)


def test_a_place_keeps_its_promises(url: str) -> None:
    """A create succeeds once, for unusual names too; objects are listed, read from their end and deleted; a missing object is not an
    error."""
    objects = place(url)
    for path in ("_idem/k/1.json", f"_data/k/f/{ODD}/part-0.parquet"):
        assert run(objects.get(path)) is None
        assert run(objects.tail(path, 3)) is None
        assert run(objects.create(path, b"12345")) is True
        assert run(objects.create(path, b"other")) is False
        assert run(objects.get(path)) == b"12345"
        for length, data in ((3, b"345"), (5, b"12345"), (99, b"12345")):
            tail = run(objects.tail(path, length))
            assert tail is not None
            assert (tail.data, tail.bytes) == (data, 5)
        assert [(each.path, each.bytes) for each in run(objects.list(path.split("/")[0]))] == [(path, 5)]
    assert run(objects.folders("_data/k/f")) == (f"_data/k/f/{ODD}",)
    assert run(objects.folders("_data")) == ("_data/k",)
    run(objects.delete_folder("_data/k"))
    run(objects.delete("_idem/k/none.json"))
    assert run(objects.list("_data")) == ()
    assert run(objects.folders("none")) == ()
    assert len(run(objects.list("_idem"))) == 1


def test_create_by_many_has_one_winner(url: str) -> None:
    """Of 8 simultaneous creates of one path exactly one returns True, and its content is stored."""
    objects = place(url)
    for turn in range(20):
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(lambda me, turn=turn: run(objects.create(f"_idem/{turn}", str(me).encode())), range(8))
            )
        assert sum(answers) == 1
        assert run(objects.get(f"_idem/{turn}")) == str(answers.index(True)).encode()


def test_a_slot_log_from_check_to_sweep(url: str, key: SinkKey) -> None:
    """The probe passes; commit, duplicate, zombie, fence, read and sweep behave as on a folder."""
    sink = sink_at(url)
    run(sink.check())
    zombie = sink.stage(table_of(9), key, 1, fingerprint="f")
    slot = sink.stage(table_of(*range(100)), key, 2, fingerprint="f")
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert isinstance(run(sink.commit(key, zombie)), FencedOff)
    twin = sink.stage(table_of(1), key, 2, fingerprint="f")
    assert run(sink.commit(key, twin)) == AlreadyCommitted(slot)
    assert run(sink.fence(key, 9, fingerprint="f", by="settle")) == slot == run(sink.find(key))
    assert run(sink.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert len(run(place(url).folders(f"_data/{key}"))) == 3
    assert run(sink.sweep(key)).folders == 2
    assert len(run(place(url).folders(f"_data/{key}"))) == 1
    table = Table(url)
    assert table.slots() == [slot]
    assert table.files() == [f"{sink.uri}/{file.path}" for file in slot.files]
    run(place(url).delete(slot.files[0].path))
    assert run(sink.probe(key, digest_of(slot))) is Evidence.GONE


def test_the_probe_leaves_nothing(url: str) -> None:
    """A probed store contains what it contained before."""
    run(sink_at(url).check())
    assert run(place(url).list("")) == ()


def test_a_lost_reply_at_commit(server: StoreServer, url: str, key: SinkKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The create arrived and its reply was lost: the commit is reported as our own, or as unknown and then found to be ours; an abort after
    it deletes nothing."""
    with in_front_of(server.address) as proxy:
        slot = sink_at(url).stage(table_of(1, 2, 3), key, 1, fingerprint="f")
        server.at(proxy.address).use(monkeypatch)
        sink = sink_at(url)
        run(sink.find(key))  # opens a connection
        proxy.cut_after = 1  # cut at the reply's first bytes: carried out, and the answer never seen
        assert run(sink.commit(key, slot)) == Committed(slot)
        assert run(sink.abort(key, slot)) == slot
    server.use(monkeypatch)
    assert run(sink_at(url).probe(key, digest_of(slot))) is Evidence.PRESENT
    assert len(run(place(url).list(f"_idem/{key}"))) == 1


@pytest.mark.parametrize("running", ["versitygw"], indirect=True)  # the client's own retries take 20 s, on any server
def test_replies_that_are_all_lost(
    server: StoreServer, url: str, key: SinkKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every create arrives and every reply is lost: within half a minute the outcome is reported as unknown; the slot exists, and is then
    found to be our own."""
    with in_front_of(server.address) as proxy:
        slot = sink_at(url).stage(table_of(1, 2, 3), key, 1, fingerprint="f")
        server.at(proxy.address).use(monkeypatch)
        sink = sink_at(url)
        run(sink.find(key))
        proxy.replies = Flow.DROP
        began = time.monotonic()
        with pytest.raises(OutputUnavailable, match="the store does not answer"):
            run(sink.commit(key, slot))
        assert time.monotonic() - began < stretched(35)
        assert proxy.dropped > 0
    server.use(monkeypatch)
    assert run(sink_at(url).commit(key, slot)) == Committed(slot)
    assert run(sink_at(url).abort(key, slot)) == slot


def test_nobody_listens(server: StoreServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead endpoint is reported within half a minute, in one sentence without credentials."""
    server.at("127.0.0.1:9").use(monkeypatch)
    began = time.monotonic()
    with pytest.raises(
        OutputUnavailable, match=r"^cannot create .*: the store does not answer; check its endpoint"
    ) as raised:
        run(sink_at(url).check())
    assert time.monotonic() - began < stretched(30)
    secrets_of_it = [value for name, value in server.credentials.items() if "KEY" in name]
    assert not any(secret in str(raised.value) for secret in secrets_of_it)


def test_a_missing_bucket(server: StoreServer, url: str) -> None:
    """Every verb that would otherwise report an empty table names the bucket and what to do."""
    wrong = url.replace(f"//{store_servers.BUCKET}/", "//nobucket/")
    says = r"(bucket|container) nobucket does not exist; create it or correct the location$"
    verbs = [place(wrong).create("a", b""), sink_at(wrong).check()]
    if server.name != "gcs":  # this fake answers such a listing with 500
        verbs += [place(wrong).list("a"), place(wrong).folders("a"), place(wrong).get("a")]  # type: ignore[list-item]
    for verb in verbs:
        with pytest.raises(OutputUnavailable, match=says):
            run(verb)


def test_refused_credentials(server: StoreServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says that the credentials were refused and which variables to set, without repeating them."""
    if server.name == "gcs":
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "{}")
        with pytest.raises(OutputUnavailable, match="set GOOGLE_APPLICATION_CREDENTIALS"):
            run(sink_at(url).check())
        return
    name = "AWS_SECRET_ACCESS_KEY" if server.scheme == "s3" else "AZURE_STORAGE_ACCOUNT_KEY"
    monkeypatch.setenv(name, "bm90LXRoZS1rZXktb2YtdGhpcy1hY2NvdW50")
    for verb in (place(url).create("a", b""), place(url).list("a"), place(url).get("a")):
        with pytest.raises(OutputUnavailable, match=f"the store refuses these credentials; set .*{name}") as raised:
            run(verb)
        assert os.environ[name] not in str(raised.value)
        assert raised.value.__cause__ is None


def test_a_server_that_ignores_if_none_match_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto, made to overwrite objects on a conditional create: the probe reports that exactly-once is impossible there, a job ends with
    that sentence before anything is reserved, and nothing is left behind. Without that flag moto passes."""
    store_servers.no_proxy(monkeypatch)
    ledger = str(tmp_path / "ledger.db")
    with store_servers.moto(tmp_path / "forgetful", ignores_preconditions=True) as server:
        server.use(monkeypatch)
        for kind in ("slotLog", "delta"):
            with pytest.raises(OutputUnsafe, match=r"^s3a://lake/orders does not honour create-if-absent") as raised:
                run(sink_at(server.url("orders"), kind).check())
            assert "put the output on another store" in str(raised.value)
        job = sparkonce.job("k1", outputs={"orders": server.url("orders")}, store=ledger)
        with pytest.raises(OutputUnsafe), job:
            pytest.fail("the block ran")
        assert run(place(server.url("orders")).list("")) == ()
    store = open_store(ledger)
    assert run(store.count()) == 0
    run(store.close())
    with store_servers.moto(tmp_path / "right") as server:
        server.use(monkeypatch)
        for kind in ("slotLog", "delta"):
            run(sink_at(server.url("orders"), kind).check())


def test_a_probe_whose_first_answer_was_lost_passes(key: SinkKey) -> None:
    """obstore retries a create after a 5xx and then finds its own object: the store is not refused for it."""

    class Repeating(StoreObjects):
        async def create(self, path: str, data: bytes) -> bool:
            await super().create(path, data)
            return await super().create(path, data)

    objects = Repeating(MemoryStore(), "orders", uri="memory:///orders")
    sink = SlotLogSink(objects, name="orders", stage=arrow_stage)
    run(sink.check())
    slot = committing(key, 1)
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert run(objects.get(layout.slot_path(key, 1))) == layout.encode(slot)


def test_reading_where_nothing_is_committed(server: StoreServer, url: str) -> None:
    """The error names the URL; raising it does not need Spark."""
    from sparkonce.sink.slotlog.reader import files

    with pytest.raises(NothingCommitted, match=f"to {place(url).uri} yet"):
        files(url)


@pytest.mark.parametrize("running", ["versitygw"], indirect=True)
def test_a_profile(
    server: StoreServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: SinkKey
) -> None:
    """The keys of a profile open the store; a missing profile, or boto3 missing to read it, is one sentence."""
    shared = tmp_path / "credentials"
    access, secret = (os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    shared.write_text(f"[lake]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "lake")
    run(sink_at(url).check())
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(
        OutputUnavailable, match=r"^cannot open s3a://.*: the AWS profile cannot be used \(ProfileNotFound\); set AWS_"
    ):
        sink_at(url)
    monkeypatch.setitem(sys.modules, "obstore.auth.boto3", None)
    with pytest.raises(
        OutputUnavailable, match="AWS profiles are read by boto3, which is not installed; install boto3 or set"
    ):
        sink_at(url)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "Error performing PUT https://a.blob/c/x?sv=1&sig=hush in 1ms - Server returned non-2xx status code: 503 Busy",
            "answers 503",
        ),
        (
            "Error performing token request: Error performing GET http://169.254.169.254/latest in 1ms - HTTP error",
            "are no credentials",
        ),
        (
            "Error performing PUT https://user:hush@host/x in 9s - HTTP error: error sending request",
            "does not answer",
        ),
        (
            "Error performing PUT https://h/x?sig=hush - Server returned non-2xx status code: 501 Not Implemented",
            "cannot do that",
        ),
        ("something else about hush", "client fails"),
    ],
)
def test_what_a_store_says_is_not_repeated(text: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of stores and their clients contain addresses, signatures and keys; the user gets the fact and the remedy instead."""

    def fail(*_: object, **__: object) -> None:
        raise GenericError(text)

    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S")
    monkeypatch.setattr("sparkonce.sink.objects.protocol.obstore.put", fail)
    with pytest.raises(OutputUnavailable, match=f"^cannot create s3a://bucket/orders/a: .*{says}.*[a-z]$") as raised:
        run(place("s3://bucket/orders").create("a", b""))
    assert "hush" not in "".join(traceback.format_exception(raised.value))
