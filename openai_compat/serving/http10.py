"""Streams for HTTP/1.0 clients, which know no chunks.

Servers frame a body of unknown length in chunks whatever the client's version (uvicorn 0.54, httptools), and
such a client would read the chunk sizes as text. So it gets the same events in one piece, with their length.
"""

from __future__ import annotations

from starlette.types import Message, Scope, Send


def whole_for_http10(scope: Scope, send: Send) -> Send:
    """`send` itself, or for an HTTP/1.0 client one that holds everything until the body is complete."""
    if scope.get("http_version") != "1.0":
        return send
    start: Message = {}
    parts: list[bytes] = []

    async def send_whole(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
            return
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            body = b"".join(parts)
            length = (b"content-length", str(len(body)).encode())
            await send({**start, "headers": [*start["headers"], length]})
            await send({"type": "http.response.body", "body": body})

    return send_whole
