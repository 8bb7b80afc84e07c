"""Small parts of the gateway: finding a key, listening, decisions off the loop, the driver's channel without a gateway."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path

import pytest
import trustme

from harness.jobs import job as job_document
from sparkonce.blocking import run
from sparkonce.driver.channel import channel_of
from sparkonce.driver.http_channel import HttpChannel
from sparkonce.engine.embedded import Embedded
from sparkonce.engine.finding import candidates, find
from sparkonce.errors import InvalidInput, StoreUnavailable
from sparkonce.gateway import decisions
from sparkonce.gateway.decisions import AT_ONCE, Decisions
from sparkonce.gateway.problem import Problem
from sparkonce.gateway.serving import Listening
from sparkonce.model.assignment import Assignment
from sparkonce.model.key import derive, explicit
from sparkonce.model.record import Address, Opener, SpecBody
from sparkonce.model.spec import JobSpec
from sparkonce.store.memory import MemoryStore
from sparkonce.store.protocol import Request


def put(store: MemoryStore, key: str, key_hash: str, realm: str = "ns") -> None:
    request = Request(
        address=Address(realm=realm, key_hash=key_hash),
        key=key,
        by=Opener(nonce=key_hash),
        nonce=key_hash,
        fingerprints={1: "f"},
        spec=SpecBody(job={}),
    )
    run(store.reserve(request, lease=run(store.open_lease(owner="t")), floor=0))


def found(store: MemoryStore, text: str, realm: str = "ns") -> str | None:
    record = run(find(store, realm, text))
    return record.key_hash if record else None


def test_a_text_is_found_without_a_list() -> None:
    """The hash of what a client chose, or of a derived key in any of the ways to cut its text, is computed."""
    template = job_document("j", key="k")["spec"]["template"]
    spec = JobSpec.model_validate({"operation": "a/b", "resource": "c/d", "revision": "e", "template": template})
    derived = derive(spec, "ns")
    assert derived.key_hash in list(candidates(derived.text, "ns"))
    assert explicit("plain", "ns").key_hash in list(candidates("plain", "ns"))
    assert len(list(candidates("/" * 200 + "@1", "ns"))) < 100


def test_find_looks_in_one_realm_and_says_when_it_is_several() -> None:
    """Another realm's key is not there; an ambiguous part of a hash is refused; a short one is a text."""
    store = MemoryStore()
    one, two = "ab" * 4 + "1" * 56, "ab" * 4 + "2" * 56
    put(store, "one", one)
    put(store, "two", two)
    put(store, "far", explicit("far", "elsewhere").key_hash, realm="elsewhere")
    assert found(store, one) == one
    assert found(store, one[:9]) == one
    assert found(store, "far") is None
    assert found(store, "far", realm="elsewhere") is not None
    assert found(store, one[:7]) is None
    with pytest.raises(InvalidInput, match="names 2 records"):
        found(store, "ab" * 4)
    put(store, "op/res@1+0123456789ab", "cd" * 32)
    assert found(store, "op/res@1+0123456789ab") == "cd" * 32


@pytest.mark.parametrize("address", ["8443", "host:", "host:x", "host:70000", ":80"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """In one sentence with an example."""
    with pytest.raises(InvalidInput, match="give HOST:PORT"):
        Listening.of(address)


def test_listening_says_what_it_lacks(tmp_path: Path) -> None:
    """A certificate without its key, a file that is not there, a port that somebody has."""
    with pytest.raises(InvalidInput, match="belong together"):
        Listening.of("[::]:443", certificate=tmp_path)
    with pytest.raises(InvalidInput, match="there is no file"):
        Listening.of("[::]:443", certificate=tmp_path / "a", key=tmp_path / "b")
    assert Listening.of("[::]:443").own == "::1"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match="give another port"):
            Listening.of(f"127.0.0.1:{port}").socket()


def test_a_decision_that_waits_holds_up_nobody_but_decisions() -> None:
    """It runs on a thread; when as many run as may, the next is told to come back, and the loop turns all the while."""
    gate = threading.Event()
    made = Decisions(MemoryStore, install="i")

    async def waits(embedded: Embedded) -> str:
        gate.wait()
        return embedded.install

    async def scene() -> None:
        running = [asyncio.create_task(made.carry_out(waits)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)  # they begin
        with pytest.raises(Problem, match="send it again"):
            await made.carry_out(waits)
        gate.set()
        assert await asyncio.gather(*running) == ["i"] * AT_ONCE
        assert await made.carry_out(waits) == "i"
        await made.close()

    asyncio.run(scene())


def test_a_decision_that_takes_too_long_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told to look again; its work is not broken off."""
    monkeypatch.setattr(decisions, "LONGEST", 0.05)
    gate, done = threading.Event(), threading.Event()
    made = Decisions(MemoryStore, install="i")

    async def waits(_: Embedded) -> None:
        gate.wait()
        done.set()

    async def scene() -> None:
        with pytest.raises(Problem, match="goes on"):
            await made.carry_out(waits)
        gate.set()
        assert await asyncio.to_thread(done.wait, 10.0)
        await made.close()

    asyncio.run(scene())


def assignment(**change: str) -> Assignment:
    job = {"metadata": {"namespace": "etl"}}
    told = {"realm": "etl", "key_hash": "ab" * 32, "key": "k", "nonce": "n", "fingerprint": "f", "install": "i"}
    return Assignment(**(told | change), generation=1, attempt=1, spec=SpecBody(job=job))  # type: ignore[arg-type]  # texts


def test_a_driver_that_was_told_no_way_says_so(tmp_path: Path) -> None:
    """Neither a store nor a gateway: one sentence with what to start. Either one is used as it is."""
    with pytest.raises(InvalidInput, match="--gateway-url"):
        channel_of(assignment(), {})
    told = assignment(gateway="http://127.0.0.1:9")
    channel = channel_of(told, {"SPARKONCE_TOKEN_FILE": str(tmp_path / "token")})
    assert isinstance(channel, HttpChannel)
    assert told.namespace == "etl"
    with pytest.raises(StoreUnavailable, match="automountServiceAccountToken"):
        channel.renew({})
    (tmp_path / "token").write_text("t")
    with pytest.raises(StoreUnavailable, match="does not answer"):
        channel.renew({})


def test_a_gateways_ca_is_a_text_or_a_file(tmp_path: Path) -> None:
    """Either is read when the channel is made; what is no certificate is refused then."""
    ca = trustme.CA().cert_pem
    ca.write_to_path(tmp_path / "ca.crt")
    for given in (ca.bytes().decode(), str(tmp_path / "ca.crt")):
        HttpChannel(assignment(gateway="https://g", gateway_ca=given))
    for given in ("-----BEGIN CERTIFICATE-----\nx", str(tmp_path / "none")):
        with pytest.raises(InvalidInput, match="--gateway-ca"):
            HttpChannel(assignment(gateway="https://g", gateway_ca=given))


def test_a_report_is_worth_what_its_sender_says(tmp_path: Path) -> None:
    """A gateway that takes calls and answers none of them: they end with the patience, far below that of a call or of the channel."""
    (tmp_path / "token").write_text("t")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = assignment(gateway=f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        channel = HttpChannel(told, token_file=tmp_path / "token")
        with pytest.raises(StoreUnavailable, match="does not answer"):
            channel.report("r", "committed", {}, patience=0.5)
        assert 0.4 < time.monotonic() - began < 7.5
        channel.close()
