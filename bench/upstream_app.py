"""What the relay is compared with: the least an ASGI server does to stream the same chunks of its own.

Run as `uvicorn bench.upstream_app:app`. It takes the requests that `bench.upstream` takes, and sends each chunk by
itself.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

_CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"static","choices":'
    b'[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    script = json.loads(json.loads(body)["messages"][-1]["content"]) if body else {"chunks": 0}
    gap_s = script.get("gap_ms", 0) / 1000
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(script["chunks"]):
        await asyncio.sleep(gap_s)
        await send({"type": "http.response.body", "body": _CHUNK, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
