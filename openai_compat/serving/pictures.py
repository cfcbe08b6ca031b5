"""A request with pictures, between its check and its completion.

Its pictures are taken before it may wait for a slot: one that is refused costs none, and a slow server of pictures
keeps nobody's. The client's leaving ends it there as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from openai_compat.media.intake import Intake
from openai_compat.record import record_of
from openai_compat.serving.disconnect import while_connected

Messages = list[dict[str, Any]]


async def taken(intake: Intake, messages: Messages, scope: Scope, receive: Receive) -> Messages:
    """The messages with checked pictures. Raises: ClientDisconnect, and what `Intake.take` raises."""
    begun = time.monotonic()
    try:
        return await while_connected(receive, intake.take(messages))
    finally:
        record_of(scope).waited(time.monotonic() - begun)


class Pictured(Response):
    """The response to a chat with pictures. `serve` makes the one to the same chat with checked ones."""

    def __init__(self, intake: Intake, messages: Messages, serve: Callable[[Messages], Response]) -> None:
        self.status_code = 200
        self.background = None
        self._intake = intake
        self._messages = messages
        self._serve = serve

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages = await taken(self._intake, self._messages, scope, receive)
        await self._serve(messages)(scope, receive, send)
