"""Noticing that the client left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def client_left(receive: Receive) -> None:
    """Returns when the connection is gone. To be awaited by one task, once the body was read; other messages
    are not for us."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it is cancelled when the client leaves. Raises: ClientDisconnect, and what it raises."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(client_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))
            if not working.cancelled():
                working.exception()  # what it said on its way out is not the reason why it ended
