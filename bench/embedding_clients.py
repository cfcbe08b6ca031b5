"""Clients of `/v1/embeddings` that ask for one text at a time, each on a connection that it keeps.

    python -m bench.embedding_clients PORT CLIENTS AMOUNT WORDS SEED

AMOUNT is a number of requests of all clients together, or seconds as `12.5s`. A program of its own, which
`bench embeddings` starts: on a machine of two cores the clients' CPU time is part of what is measured. One loop over
sockets with requests built ahead takes 30 µs a request. Prints JSON: `Told`.
"""

from __future__ import annotations

import json
import random
import re
import selectors
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Final, TypedDict

from bench.raw_http import request
from bench.stats import percentile
from bench.workload import WORDS

MODEL: Final = "all-minilm-l6-v2"
SILENCE_S: Final = 60.0
"""Without any answer for so long, what is still open counts as lost."""
MAX_ERRORS: Final = 20
_MAX_BUILT: Final = 20_000
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)


class Told(TypedDict):
    """What the clients saw. `lost`: requests without a vector. `cpu_s`: of this program while they asked."""

    requests: int
    lost: int
    seconds: float
    p50_s: float | None
    p99_s: float | None
    cpu_s: float
    errors: list[str]


def texts(seed: str, words: int, count: int) -> list[str]:
    """The same for the same seed."""
    source = random.Random(f"{seed}/texts/{words}")
    return [" ".join(source.choices(WORDS, k=words)) for _ in range(count)]


def requests(seed: str, words: int, count: int) -> list[bytes]:
    return [
        request(
            "POST",
            "/v1/embeddings",
            json.dumps({"model": MODEL, "input": text, "encoding_format": "base64"}).encode(),
        )
        for text in texts(seed, words, count)
    ]


class Clients:
    """`number` clients that take their next request from one row when they have the answer to the last. They stop when
    the row ends, or `seconds` after the begin."""

    def __init__(self, port: int, number: int, row: Iterator[bytes], seconds: float | None = None) -> None:
        self._port = port
        self._row = row
        self._seconds = seconds
        self._ends_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._begun: dict[socket.socket, float] = {}
        self._parts: dict[socket.socket, bytes] = {}
        self._number = number
        self._latencies: list[float] = []
        self._errors: list[str] = []
        self._sent = 0
        self._lost = 0

    def run(self) -> Told:
        cpu_s, begin = time.process_time(), time.perf_counter()
        if self._seconds is not None:
            self._ends_at = begin + self._seconds
        for _ in range(self._number):
            self._connect_and_ask()
        while self._begun:
            ready = self._selector.select(SILENCE_S)
            if not ready:
                self._lose(f"no answer for {SILENCE_S:g} s", len(self._begun))
                break
            for key, _ in ready:
                self._read(key.fileobj)  # type: ignore[arg-type]
        seconds = time.perf_counter() - begin
        self._close()
        return Told(
            requests=self._sent,
            lost=self._lost,
            seconds=seconds,
            p50_s=percentile(self._latencies, 0.5),
            p99_s=percentile(self._latencies, 0.99),
            cpu_s=time.process_time() - cpu_s,
            errors=self._errors,
        )

    def _next(self) -> bytes | None:
        if self._ends_at is not None and time.perf_counter() >= self._ends_at:
            return None
        return next(self._row, None)

    def _connect_and_ask(self) -> None:
        asked = self._next()
        if asked is None:
            return
        try:
            connection = socket.create_connection(("127.0.0.1", self._port), timeout=SILENCE_S)
        except OSError as error:
            self._sent += 1
            self._lose(str(error))
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ)
        self._ask(connection, asked)

    def _ask(self, connection: socket.socket, asked: bytes) -> None:
        self._sent += 1
        self._begun[connection] = time.perf_counter()
        try:
            connection.sendall(asked)
        except OSError as error:
            self._drop(connection, str(error))

    def _read(self, connection: socket.socket) -> None:
        if connection not in self._begun:
            return
        try:
            received = connection.recv(1 << 16)
        except OSError as error:
            self._drop(connection, str(error))
            return
        if not received:
            self._drop(connection, "closed by the server")
            return
        answer = self._parts.pop(connection, b"") + received
        size = answer_size(answer)
        if size is None or len(answer) < size:
            self._parts[connection] = answer
            return
        self._latencies.append(time.perf_counter() - self._begun.pop(connection))
        if not is_vector(answer):
            self._lose(answer[:300].decode("utf-8", "replace"))
        if (asked := self._next()) is not None:
            self._ask(connection, asked)

    def _drop(self, connection: socket.socket, why: str) -> None:
        """The connection and its request are gone; its client goes on with a new one."""
        self._lose(why)
        self._begun.pop(connection, None)
        self._parts.pop(connection, None)
        self._selector.unregister(connection)
        connection.close()
        self._connect_and_ask()

    def _lose(self, why: str, count: int = 1) -> None:
        self._lost += count
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(why)

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()


def answer_size(received: bytes) -> int | None:
    """Of the whole answer, head and body; None while its head has not arrived. An answer without a length is nothing
    that this service gives: it counts as its head alone, and so as lost."""
    head = received.find(b"\r\n\r\n")
    if head < 0:
        return None
    length = _LENGTH.search(received, 0, head + 2)
    return head + 4 + (int(length[1]) if length else 0)


def is_vector(answer: bytes) -> bool:
    return answer[9:12] == b"200" and b'"embedding":"' in answer


def main(arguments: Sequence[str]) -> Told:
    port, number, amount, words, seed = arguments
    if amount.endswith("s"):
        built = requests(seed, int(words), 1000)
        return Clients(int(port), int(number), cycle(built), float(amount[:-1])).run()
    count = int(amount)
    built = requests(seed, int(words), min(count, _MAX_BUILT))
    return Clients(int(port), int(number), islice(cycle(built), count)).run()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
