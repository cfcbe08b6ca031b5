"""An HTTP server in a thread that answers with the bytes it was given: right ones, and every kind of wrong ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override


@dataclass
class Scripted:
    """One answer. A list of pieces goes out in chunks; `cut` closes the connection instead of ending the body."""

    status: int = 200
    body: Any = None
    pieces: list[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


def chunk(
    *, chunk_id: str = "chatcmpl-1", created: int = 5, usage: Any = None, **choice: Any
) -> dict[str, Any]:
    """A chat chunk: `delta` and `finish_reason` of its one choice, or the usage."""
    found = {"id": chunk_id, "object": "chat.completion.chunk", "created": created, "model": "m"}
    if usage is not None:
        return {**found, "choices": [], "usage": usage}
    return {**found, "choices": [{"index": 0, "delta": {}, "finish_reason": None, **choice}]}


def usage(prompt: int = 3, completion: int = 2) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def good_chunks(text: tuple[str, ...] = ("Hel", "lo")) -> list[dict[str, Any]]:
    return [
        chunk(delta={"role": "assistant"}),
        *(chunk(delta={"content": piece}) for piece in text),
        chunk(finish_reason="stop"),
        chunk(usage=usage(completion=len(text))),
    ]


def frames(*chunks: dict[str, Any], done: bool = True) -> list[bytes]:
    """Each chunk as the bytes of a frame."""
    return [b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks] + (
        [b"data: [DONE]\n\n"] if done else []
    )


def streamed(*chunks: dict[str, Any], done: bool = True) -> Scripted:
    return Scripted(pieces=frames(*chunks, done=done), headers={"Content-Type": "text/event-stream"})


class ScriptedServer:
    """`answer` gets method, path and body. `asked` holds (method, path, headers, body) of every request."""

    def __init__(self, answer: Callable[[str, str, Any], Scripted]) -> None:
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.connections = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            @override
            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            @override
            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the tests look at `asked`."""

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def _answer(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.loads(raw) if raw else None
                outer.asked.append((self.command, self.path, dict(self.headers.items()), body))
                try:
                    outer._send(self, answer(self.command, self.path, body))
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, scripted: Scripted) -> None:
        handler.send_response(scripted.status)
        for name, value in scripted.headers.items():
            handler.send_header(name, value)
        if scripted.pieces is None:
            raw = scripted.body if isinstance(scripted.body, bytes) else json.dumps(scripted.body).encode()
            handler.send_header("Content-Length", str(len(raw)))
            handler.end_headers()
            handler.wfile.write(raw)
            return
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in scripted.pieces:
            handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            handler.wfile.flush()
        if scripted.cut:
            handler.close_connection = True
        else:
            handler.wfile.write(b"0\r\n\r\n")

    @contextmanager
    def running(self) -> Iterator[ScriptedServer]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
