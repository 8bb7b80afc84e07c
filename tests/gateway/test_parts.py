"""Small parts of the gateway: finding a key, listening, decisions off the loop, the driver's channel without a gateway."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import pytest
import trustme

from harness.jobs import job as job_document
from harness.memory_store import MemoryStore
from harness.patience import stretched
from sparkonce.blocking import run
from sparkonce.commands.find import candidates, find
from sparkonce.driver.channel import channel_of
from sparkonce.driver.http_channel import HttpChannel
from sparkonce.errors import InvalidInput, RealmReportsFull, ReportTooLarge, SparkonceError, StoreUnavailable
from sparkonce.gateway import decisions
from sparkonce.gateway.decisions import AT_ONCE, PER_REALM, Decisions
from sparkonce.gateway.problem import ProblemResponse, of_error
from sparkonce.listening.address import Listening
from sparkonce.local.runner import LocalRunner
from sparkonce.model.identity import derive, explicit
from sparkonce.model.record import Address, Assignment, Opener, SpecBody
from sparkonce.model.spec import JobSpec
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
    """The key hash is computed from a key's text: from a client's key, and from a derived key for each way to split it. No list is read."""
    template = job_document("j", key="k")["spec"]["template"]
    spec = JobSpec.model_validate({"operation": "a/b", "resource": "c/d", "revision": "e", "template": template})
    derived = derive(spec, "ns")
    assert derived.key_hash in list(candidates(derived.text, "ns"))
    assert explicit("plain", "ns").key_hash in list(candidates("plain", "ns"))
    assert len(list(candidates("/" * 200 + "@1", "ns"))) < 100


def test_find_looks_in_one_realm_and_says_when_it_is_several() -> None:
    """A lookup stays in its realm; part of a hash that fits several keys is refused, and one that is too short is taken for a key's
    text."""
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
    """An invalid address is refused in one sentence with an example."""
    with pytest.raises(InvalidInput, match="give HOST:PORT"):
        Listening.of(address)


def test_listening_says_what_it_lacks(tmp_path: Path) -> None:
    """A certificate without its key, a missing file and a port in use are each reported."""
    with pytest.raises(InvalidInput, match="belong together"):
        Listening.of("[::]:443", certificate=tmp_path)
    with pytest.raises(InvalidInput, match="there is no file"):
        Listening.of("[::]:443", certificate=tmp_path / "a", key=tmp_path / "b")
    assert Listening.of("[::]:443").own == "::1"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match="give another port"):
            Listening.of(f"127.0.0.1:{port}").socket()


async def answers(embedded: LocalRunner) -> str:
    return embedded.install


async def accepted_again(made: Decisions, realm: str) -> None:
    """Waits until the realm has a thread: one that was woken is still counted for a moment."""
    until = time.monotonic() + stretched(10.0)
    while True:
        try:
            assert await made.carry_out(answers, realm=realm) == "i"
            return
        except ProblemResponse:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)


def test_a_decision_that_waits_holds_up_its_own_realm_alone() -> None:
    """A decision runs on a thread. When a realm's threads are in use, its next decision is refused with a time to retry, while other
    realms' decisions and the event loop continue. When all places are in use, every realm is refused likewise."""
    gate = threading.Event()
    made = Decisions(MemoryStore, install="i")

    async def waits(embedded: LocalRunner) -> str:
        gate.wait()
        return embedded.install

    async def scene() -> None:
        running = [asyncio.create_task(made.carry_out(waits, realm="a")) for _ in range(PER_REALM)]
        await asyncio.sleep(0)  # let them start
        with pytest.raises(ProblemResponse, match=r"keys of a are being.*send it again") as refused:
            await made.carry_out(answers, realm="a")
        assert refused.value.retry_after
        assert await made.carry_out(answers, realm="b") == "i"
        realms = [f"r-{number // PER_REALM}" for number in range(AT_ONCE - PER_REALM)]
        running += [asyncio.create_task(made.carry_out(waits, realm=realm)) for realm in realms]
        await asyncio.sleep(0)
        with pytest.raises(ProblemResponse, match="send it again") as refused:
            await made.carry_out(answers, realm="b")
        assert refused.value.retry_after
        gate.set()
        assert await asyncio.gather(*running) == ["i"] * AT_ONCE
        assert await made.carry_out(waits, realm="a") == "i"
        await made.close()

    asyncio.run(scene())


def test_a_decision_that_takes_too_long_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller whose decision takes too long is told to look again; the work is not interrupted. It keeps a thread of its realm but no
    shared place, so realms with hung outputs, however many, cannot use up all places. When it ends, the realm's thread is free."""
    monkeypatch.setattr(decisions, "LONGEST", 0.05)
    gate, done = threading.Event(), threading.Event()
    made = Decisions(MemoryStore, install="i")

    async def waits(_: LocalRunner) -> None:
        gate.wait()
        done.set()

    async def scene() -> None:
        hung = [made.carry_out(waits, realm=f"r-{number // PER_REALM}") for number in range(AT_ONCE)]
        for said in await asyncio.gather(*hung, return_exceptions=True):
            assert isinstance(said, ProblemResponse), said
            assert "goes on" in said.detail
            assert said.retry_after
        monkeypatch.setattr(decisions, "LONGEST", 10.0)
        assert await made.carry_out(answers, realm="b") == "i"
        with pytest.raises(ProblemResponse, match="keys of r-0"):
            await made.carry_out(answers, realm="r-0")
        gate.set()
        assert await asyncio.to_thread(done.wait, 10.0)
        await accepted_again(made, "r-0")
        await made.close()

    asyncio.run(scene())


def test_a_caller_that_leaves_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A decision whose caller has left is carried out, and its realm's thread is in use until then; an error that no caller reads is not
    logged."""
    gate, carried_out = threading.Event(), Queue[str]()
    made = Decisions(MemoryStore, install="i")

    async def fails(embedded: LocalRunner) -> None:
        gate.wait()
        carried_out.put(embedded.owner)
        raise InvalidInput("no")

    async def scene() -> None:
        names = [f"ann-{number}" for number in range(PER_REALM)]
        callers = [asyncio.create_task(made.carry_out(fails, realm="a", by=name)) for name in names]
        await asyncio.sleep(0)
        for each in callers:
            each.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        with pytest.raises(ProblemResponse, match="keys of a"):
            await made.carry_out(fails, realm="a")
        assert carried_out.empty()
        gate.set()
        done = {await asyncio.to_thread(carried_out.get, timeout=stretched(10.0)) for _ in names}
        assert done == set(names)
        await accepted_again(made, "a")
        with pytest.raises(InvalidInput, match="no"):
            await made.carry_out(fails, realm="b")
        await made.close()

    asyncio.run(scene())
    gc.collect()  # asyncio logs an error that nobody retrieved when its task is deleted
    assert caplog.records == []


def assignment(**change: str) -> Assignment:
    job = {"metadata": {"namespace": "etl"}}
    told = {"realm": "etl", "key_hash": "ab" * 32, "key": "k", "nonce": "n", "fingerprint": "f", "install": "i"}
    return Assignment(**(told | change), generation=1, attempt=1, spec=SpecBody(job=job))  # type: ignore[arg-type]  # texts


def test_a_driver_that_was_told_no_way_says_so(tmp_path: Path) -> None:
    """Without a store and a gateway the driver's error says what to start; either one alone is used."""
    with pytest.raises(InvalidInput, match="--gateway-url"):
        channel_of(assignment(), {})
    told = assignment(gateway="http://127.0.0.1:9")
    channel = channel_of(told, {"SPARKONCE_TOKEN_FILE": str(tmp_path / "token")})
    assert isinstance(channel, HttpChannel)
    assert told.namespace == "etl"
    with pytest.raises(StoreUnavailable, match="the kubelet mounts it"):
        channel.renew({})
    (tmp_path / "token").write_text("t")
    with pytest.raises(StoreUnavailable, match="does not answer"):
        channel.renew({})


def test_a_gateways_ca_is_a_text_or_a_file(tmp_path: Path) -> None:
    """The gateway's CA is given as text or as a file; an invalid certificate is refused when the channel is made."""
    ca = trustme.CA().cert_pem
    ca.write_to_path(tmp_path / "ca.crt")
    for given in (ca.bytes().decode(), str(tmp_path / "ca.crt")):
        HttpChannel(assignment(gateway="https://g", gateway_ca=given))
    for given in ("-----BEGIN CERTIFICATE-----\nx", str(tmp_path / "none")):
        with pytest.raises(InvalidInput, match="--gateway-ca"):
            HttpChannel(assignment(gateway="https://g", gateway_ca=given))


def test_a_report_is_worth_what_its_sender_says(tmp_path: Path) -> None:
    """With a gateway that accepts connections and never answers, a report ends after the sender's patience, far below the time of a call or
    of the channel."""
    (tmp_path / "token").write_text("t")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = assignment(gateway=f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        channel = HttpChannel(told, token_file=tmp_path / "token")
        with pytest.raises(StoreUnavailable, match="does not answer"):
            channel.report("r", "committed", {}, patience=0.5)
        assert 0.4 < time.monotonic() - began < stretched(7.5)
        channel.close()


@pytest.mark.parametrize(
    ("error", "status", "raised"),
    [
        (ReportTooLarge("too much"), 413, ReportTooLarge),
        (RealmReportsFull("no room"), 429, ReportTooLarge),
        (StoreUnavailable("silent"), 503, StoreUnavailable),
        (ProblemResponse(429, "too many requests"), 429, StoreUnavailable),
    ],
)
def test_a_report_without_room_is_an_answer(
    tmp_path: Path, error: SparkonceError, status: int, raised: type[SparkonceError]
) -> None:
    """What the ledger refuses for good reaches the driver as such at once; a refusal that may pass is retried until the patience ends."""
    answer = of_error(error)
    assert answer.status_code == status
    body = json.loads(bytes(answer.body))
    if isinstance(error, ProblemResponse):
        body["title"] = "slow-down"
    assert ("retry-after" in answer.headers) is (status != 413)

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Writes no log."""

    (tmp_path / "token").write_text("t")
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        channel = HttpChannel(
            assignment(gateway=f"http://127.0.0.1:{server.server_port}"), token_file=tmp_path / "token"
        )
        with pytest.raises(raised):
            channel.report("r", "values", {}, patience=0.0)
        channel.close()
        server.shutdown()
        serving.join()
