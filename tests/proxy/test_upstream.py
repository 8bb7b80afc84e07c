"""How a request is passed on: as it was sent; and an answer: whole, or as it comes."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.asgi import ask
from sparkonce.asgi import IdempotencyMiddleware, send_reply
from sparkonce.proxy.upstream import Upstream, _PassedAnswer, _Room, paths_as_sent
from sparkonce.replies.coordinator import Refusal
from sparkonce.replies.protocol import Reply


class Sent:
    """What a server was given."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]


def test_answers_that_wait_share_their_room() -> None:
    """One that is too long for itself, or for all of them together, is passed on as it comes; the room of each is free again."""

    async def play() -> None:
        room = _Room(100)
        sent = [Sent(), Sent(), Sent(), Sent()]
        waits, too_long, no_room, breaks = (_PassedAnswer(each, 80, room) for each in sent)
        for each in (waits, too_long, no_room, breaks):
            await each.start(200, [])
        await waits.part(b"a" * 60)
        await breaks.part(b"b" * 20)
        assert [each.messages for each in sent] == [[], [], [], []]
        await no_room.part(b"c" * 30)
        assert sent[2].bodies == [b"c" * 30]
        breaks.drop()
        await too_long.part(b"d" * 30)
        await waits.end()
        await too_long.part(b"d" * 60)
        assert (sent[0].bodies, sent[1].bodies) == ([b"a" * 60], [b"d" * 90])
        await no_room.part(b"c" * 30)
        for each in (too_long, no_room):
            await each.end()
        assert (sent[1].bodies, sent[2].bodies) == ([b"d" * 90, b""], [b"c" * 30, b"c" * 30, b""])
        assert sent[3].messages == []
        assert room.left == 100

    asyncio.run(play())


def test_without_waiting_an_answer_begins_at_once() -> None:
    """As of a stream of events, whose headers come long before its first part."""

    async def play() -> None:
        sent = Sent()
        answer = _PassedAnswer(sent, 0, _Room(0))
        await answer.start(200, [])
        assert [message["type"] for message in sent.messages] == ["http.response.start"]
        await answer.part(b"a")
        assert sent.bodies == [b"a"]

    asyncio.run(play())


class Wire:
    """A service that keeps what arrives on its connections, byte by byte, and answers each request at its end."""

    def __init__(self) -> None:
        self.got = b""
        self.closed = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not self.got.endswith((b"the end", b"0\r\n\r\n")) and (part := await reader.read(65536)):
            self.got += part
        writer.write(b"HTTP/1.1 200 OK\r\nX-One: 1\r\nx-one: 2\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        self.closed.set()


@asynccontextmanager
async def served(wire: Wire, path: str = "") -> AsyncIterator[tuple[Upstream, str]]:
    """An upstream before this service, and the service's host and port."""
    server = await asyncio.start_server(wire, "127.0.0.1", 0)
    host = "{}:{}".format(*server.sockets[0].getsockname())
    upstream = Upstream(f"http://{host}{path}", timeout=20.0)
    lifespan = parts(b"", then={"type": "lifespan.shutdown"})
    async with server:
        yield upstream, host
        await upstream({"type": "lifespan"}, lifespan.__anext__, Sent())
        await asyncio.wait_for(wire.closed.wait(), 20.0)


def scope_of(*headers: tuple[bytes, bytes], path: str = "/", query: bytes = b"") -> dict[str, Any]:
    return {
        "type": "http",
        "method": "PUT",
        "raw_path": path.encode(),
        "path": path,
        "query_string": query,
        "headers": list(headers),
    }


async def parts(*bodies: bytes, then: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for body in bodies:
        yield {"type": "http.request", "body": body, "more_body": True}
    yield then
    await asyncio.Event().wait()  # the client stays


END = {"type": "http.request", "body": b"the end", "more_body": False}


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        ((b"content-length", b"12"), b"part the end"),
        ((b"transfer-encoding", b"chunked"), b"5\r\npart \r\n7\r\nthe end\r\n0\r\n\r\n"),
    ],
)
def test_a_request_arrives_as_it_was_sent(framing: tuple[bytes, bytes], body: bytes) -> None:
    """Path and query are not normalised, no header is added but those of the connection, and a repeated header stays two."""

    async def play() -> None:
        wire, sent = Wire(), Sent()
        async with served(wire, "/api/") as (upstream, host):
            own = (
                (b"accept", b"a/b"),
                (b"x-twice", b"1"),
                (b"x-twice", b"2"),
                (b"connection", b"x-hop"),
                (b"x-hop", b"3"),
            )
            scope = scope_of(*own, framing, path="/a%2Fb/../%7Ec;d", query=b"q=%20a+b&&e")
            receive = parts(b"part ", then=END)
            await upstream(scope, receive.__anext__, sent)
            head, _, arrived = wire.got.partition(b"\r\n\r\n")
            assert head.decode().split("\r\n") == [
                "PUT /api/a%2Fb/../%7Ec;d?q=%20a+b&&e HTTP/1.1",
                f"host: {host}",
                "accept: a/b",
                "x-twice: 1",
                "x-twice: 2",
                b": ".join(framing).decode(),
            ]
            assert arrived == body
        assert sent.messages[0]["headers"] == [(b"x-one", b"1"), (b"x-one", b"2"), (b"content-length", b"0")]

    asyncio.run(play())


@pytest.mark.parametrize("target", ["http://elsewhere/orders", "*", "elsewhere:443"])
def test_a_target_that_is_no_path_is_refused(target: str) -> None:
    """Nothing is sent, and a key that was reserved for it is free again."""

    async def play() -> None:
        await Upstream("http://127.0.0.1:1", timeout=20.0)(scope_of(path=target), parts(then=END).__anext__, Sent())

    with pytest.raises(Refusal, match="send the path alone") as refused:
        asyncio.run(play())
    assert refused.value.status == 400


def test_a_client_that_leaves_within_its_body_ends_the_request() -> None:
    """The service sees its connection end, and nobody is answered."""

    async def play() -> None:
        wire, sent = Wire(), Sent()
        async with served(wire) as (upstream, _):
            receive = parts(b"part ", then={"type": "http.disconnect"})
            await upstream(scope_of((b"content-length", b"12")), receive.__anext__, sent)
            await asyncio.wait_for(wire.closed.wait(), 20.0)  # before the upstream itself ends
        assert wire.got.endswith(b"part ")
        assert sent.messages == []

    asyncio.run(play())


class Sessions(Wire):
    """A service that sets a cookie with each answer, and says which one it was sent and by whom."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        fields = {name.lower(): value for name, value in fields.items()}
        self.seen.append((fields.get("x-user", ""), fields.get("cookie", "")))
        body = gzip.compress(b"main has changed")
        writer.write(
            b"HTTP/1.1 409 Conflict\r\nSet-Cookie: sid=of-%s; Path=/\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
            % (fields.get("x-user", "").encode("latin-1"), len(body))
            + body
        )
        await writer.drain()
        writer.close()
        self.closed.set()


def test_requests_of_its_own_carry_nothing_of_another_caller() -> None:
    """A session that a service opened for one caller is not sent with another's requests. The answer's body is decoded, and its headers do
    not call it encoded; values outside of ASCII are sent as they came."""

    async def play() -> None:
        sessions = Sessions()
        async with served(sessions) as (upstream, _):
            for user in ("alice", "Jos\xe9"):
                reply = await upstream.ask("GET", "/", [("x-user", user)])
                assert reply is not None
                assert (reply.status, reply.body) == (409, b"main has changed")
                assert not {"content-encoding", "content-length"} & {name for name, _ in reply.headers}
        assert sessions.seen == [("alice", ""), ("Jos\xe9", "")]

    asyncio.run(play())


def test_records_by_decoded_paths_are_found_or_refused() -> None:
    """Of versions that took a request's path decoded: the answer of a path without percent-encoding is replayed; the repetition of another
    one is refused and does not run."""
    effects: list[bytes] = []

    async def service(scope: Any, receive: Any, send: Any) -> None:
        del receive
        effects.append(scope["raw_path"])
        await send_reply(send, Reply(201))

    async def play() -> None:
        decoded = IdempotencyMiddleware(service, store="memory:")
        plain, encoded = "/files/~a;v=1/b:c@d", "/files/a%2Fb"
        await ask(decoded, key="plain", path=plain)
        replayed = await ask(paths_as_sent(decoded), key="plain", path=plain)
        assert (replayed.status, replayed.replayed) == (201, True)
        await ask(decoded, key="encoded", path=encoded)
        refused = await ask(paths_as_sent(decoded), key="encoded", path=encoded)
        assert (refused.status, refused.title) == (422, "key-reused")
        assert effects == [plain.encode(), encoded.encode()]

    asyncio.run(play())
