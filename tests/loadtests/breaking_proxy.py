"""Stands in front of the service and breaks what it says, in one way: to see that the load tests notice.

wrong-id    the third chunk of every tenth stream has another id
no-done     every tenth stream ends without `[DONE]`
errors      every hundredth completion is answered with 500
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from typing_extensions import override

PASSED_ON = ("content-type", "authorization")
KEPT = ("content-type", "retry-after", "x-request-id")
_ID = re.compile(rb'"id": ?"[^"]*"')


@contextmanager
def broken(upstream: str, how: str | None) -> Iterator[str]:
    """The address of a proxy that breaks what `upstream` answers; None breaks nothing."""
    streams, completions = itertools.count(1), itertools.count(1)
    address = urlsplit(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        upstream: http.client.HTTPConnection | None = None

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

        @override
        def finish(self) -> None:
            if self.upstream is not None:
                self.upstream.close()
            super().finish()

        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
            if how == "errors" and "completions" in self.path and next(completions) % 100 == 0:
                error = json.dumps(
                    {"detail": "broken", "error": {"message": "broken", "code": "backend_error"}}
                )
                return self._whole(500, {"Content-Type": "application/json"}, error.encode())
            if self.upstream is None:
                self.upstream = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
            headers = {name: value for name in PASSED_ON if (value := self.headers.get(name)) is not None}
            self.upstream.request(self.command, self.path, body, headers)
            response = self.upstream.getresponse()
            kept = {name: value for name in KEPT if (value := response.getheader(name)) is not None}
            if not kept.get("content-type", "").startswith("text/event-stream"):
                return self._whole(response.status, kept, response.read())
            try:
                self._stream(response, kept)
            except OSError:  # the caller left, and so do we
                self.upstream.close()
                self.upstream = None
                self.close_connection = True
            return None

        def _whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, response: http.client.HTTPResponse, headers: dict[str, str]) -> None:
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            is_broken, pending, number = next(streams) % 10 == 0, b"", 0
            while received := response.read1(65536):
                *frames, pending = (pending + received).split(b"\n\n")
                for frame in frames:
                    number += 1
                    if is_broken and how == "no-done" and frame == b"data: [DONE]":
                        continue
                    is_other = is_broken and how == "wrong-id" and number == 3
                    sent = _ID.sub(b'"id":"chatcmpl-other"', frame, count=1) if is_other else frame
                    self._chunk(sent + b"\n\n")
            self.wfile.write(b"0\r\n\r\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
