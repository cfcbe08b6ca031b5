"""Noticing that the client left."""

from __future__ import annotations

from starlette.types import Receive


async def client_left(receive: Receive) -> None:
    """Returns when the connection is gone. To be awaited by one task, once the body was read; other messages
    are not for us."""
    while (await receive())["type"] != "http.disconnect":
        pass
