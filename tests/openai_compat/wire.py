"""An ASGI client that sees every message, and an app around a scripted backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from backends.base import Backend
from models.card import ModelCard
from models.catalogue import Catalogue
from openai_compat.app import create_app
from openai_compat.config import WireConfig
from openai_compat.record import RequestRecord, record_of
from tests.openai_compat.scripted_backend import ScriptedBackend

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


def card(id: str = "tiny", **fields: Any) -> ModelCard:
    """A card for the fake backend."""
    return ModelCard.model_validate(
        {"id": id, "sources": {"fake": {"name": id}}, "created": 1_700_000_000, **fields}
    )


def make_app(
    backend: Backend | None = None,
    *,
    cards: Sequence[ModelCard] = (),
    backends: Mapping[str, Backend] | None = None,
    scrapes: Sequence[Callable[[], Awaitable[bytes]]] = (),
    **config: Any,
) -> FastAPI:
    """An app without rate limit and access log, unless `config` says otherwise."""
    settings: dict[str, Any] = {"default_backend": "fake", "rate_limit_rps": 0, "access_log": False, **config}
    app = create_app(
        backends=backends or {"fake": backend or ScriptedBackend()},
        catalogue=Catalogue(cards or [card()]),
        config=WireConfig(**settings),
        scrapes=scrapes,
    )
    _made.append(app)
    return app


_made: list[FastAPI] = []


def close_apps() -> None:
    """Close the metric files of every app made since the last call: most tests never run an app's lifespan."""
    for app in _made:
        app.state.gateway.metrics.close()
    _made.clear()


@dataclass
class Reply:
    """What came back. `messages` holds the raw ASGI messages with the loop time of each."""

    messages: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    @property
    def status(self) -> int:
        return next(int(message["status"]) for _, message in self.messages if "status" in message)

    @property
    def headers(self) -> dict[str, str]:
        raw = next(message["headers"] for _, message in self.messages if "status" in message)
        return {name.decode(): value.decode() for name, value in raw}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for _, message in self.messages)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def frames(self) -> list[str]:
        """The payload of every event, comments left out."""
        blocks = self.body.decode().split("\n\n")
        assert blocks[-1] == ""
        return [block.removeprefix("data: ") for block in blocks[:-1] if block.startswith("data: ")]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        assert self.frames[-1] == "[DONE]"
        return [json.loads(frame) for frame in self.frames[:-1]]

    def text(self, index: int = 0) -> str:
        """A streamed choice's text."""
        choices = [choice for chunk in self.chunks for choice in chunk["choices"] if choice["index"] == index]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content", "") for choice in choices)

    def begun_at(self) -> float:
        """Loop time of the headers."""
        return next(at for at, message in self.messages if "status" in message)


class Connection:
    """One request, driven by hand: `await connection.run()`, and `leave()` at any time."""

    def __init__(
        self,
        app: Any,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        query: str = "",
        http_version: str = "1.1",
    ) -> None:
        self.reply = Reply()
        self._app = app
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": http_version,
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": ("127.0.0.1", 5000),
            "server": ("127.0.0.1", 14011),
        }

    @property
    def record(self) -> RequestRecord:
        """What the service noted about the request."""
        return record_of(self._scope)

    async def run(self) -> Reply:
        await self._app(self._scope, self._incoming.get, self._send)
        return self.reply

    def leave(self) -> None:
        """The client closes the connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def _send(self, message: Any) -> None:
        self.reply.messages.append((asyncio.get_running_loop().time(), dict(message)))


async def call(app: Any, method: str, path: str, body: Any = None, **parts: Any) -> Reply:
    """One whole request. `body` is bytes, or something that becomes JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return await Connection(app, method, path, body=data, **parts).run()


async def chat(app: Any, **fields: Any) -> Reply:
    """A chat request with `HELLO` as its base."""
    return await call(app, "POST", "/v1/chat/completions", {**HELLO, **fields})
