"""A cancelled call that nobody answers leaves no word behind; what thousands of them cost is in long/test_leaks.py."""

from __future__ import annotations

import asyncio
import gc

from harness.child import free_port
from sparkonce.etcd.client import Client
from sparkonce.etcd.kv import Range


def test_a_cancelled_call_that_is_not_answered_ends_without_a_word() -> None:
    """The caller is gone, so asyncio must not log that an exception was never retrieved."""
    complaints: list[object] = []

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        client = Client.open([f"127.0.0.1:{free_port()}"], timeout=0.3)
        call = asyncio.create_task(client.range(Range(b"/nobody")))
        await asyncio.sleep(0.05)
        call.cancel()
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - the call's own task ends without an event
            await asyncio.sleep(0.01)
        gc.collect()
        await client.close()

    asyncio.run(body())
    assert complaints == []
