"""As much of the hub's HTTP as fetching a file needs, on a local port."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves `files` (path in the repository -> content) of the one repository `o/r`.

    `refuse` answers every request with that status. `cut_after` breaks each answer off after so many bytes.
    `sent` is what went out in place of the content, for a file damaged on its way. `ranges` lists the `Range`
    headers of the requests for content.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.refuse: tuple[int, str] | None = None
        self.cut_after: int | None = None
        self.sent: dict[str, bytes] = {}
        self.ranges: list[str | None] = []
        self.url = ""


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub, answering on `hub.url` until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args: object) -> None:
            """Quiet."""

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            name = self.path.partition("/resolve/")[2].partition("/")[2]
            content = hub.files.get(name)
            refusal = hub.refuse
            if refusal is None and not self.path.startswith("/o/r/"):
                refusal = (404, "RepoNotFound")
            if refusal is None and content is None:
                refusal = (404, "EntryNotFound")
            if refusal is not None or content is None:
                status, code = refusal or (404, "")
                self.send_response(status)
                self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            etag = hashlib.sha256(content).hexdigest()
            start = 0
            if body:
                wanted = self.headers.get("Range")
                hub.ranges.append(wanted)
                start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
            piece = hub.sent.get(name, content)[start:]
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(piece)))
            self.end_headers()
            if body:
                self.wfile.write(piece[: hub.cut_after])
                self.close_connection = hub.cut_after is not None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
