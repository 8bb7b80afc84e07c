"""How an answer is passed on: whole, or as it comes."""

from __future__ import annotations

import asyncio
from typing import Any

from sparkonce.proxy.upstream import _PassedAnswer, _Room


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
