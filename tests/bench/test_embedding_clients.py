"""The clients that `bench embeddings` measures with: what they count, and what counts as lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bench.embedding_clients import Clients, Told, answer_size, requests, texts

Answer = Callable[[int], bytes]


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


VECTOR = answer(b'{"data":[{"embedding":"AAAA"}]}')
CLOSE = b""


@asynccontextmanager
async def server(answers: Answer) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Answers the n-th request, of all connections, with what `answers` gives; `CLOSE` closes instead. Answers are
    written in two pieces."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = answer_size(head + b"x")
                assert length is not None
                seen.append(await reader.readexactly(length - len(head)))
                reply = answers(len(seen))
                if not reply:
                    break
                writer.write(reply[:40])
                await writer.drain()
                writer.write(reply[40:])
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    started = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with started:
        yield started.sockets[0].getsockname()[1], seen


async def asked(answers: Answer, count: int = 20, clients: int = 4) -> tuple[Told, list[bytes]]:
    async with server(answers) as (port, seen):
        row = iter(requests("1", 3, count))
        return await asyncio.to_thread(Clients(port, clients, row).run), seen


async def test_every_request_of_the_row_is_asked_once() -> None:
    told, seen = await asked(lambda _: VECTOR)

    assert (told["requests"], told["lost"], told["errors"]) == (20, 0, [])
    assert sorted(json.loads(body)["input"] for body in seen) == sorted(texts("1", 3, 20))


async def test_an_answer_without_a_vector_is_lost() -> None:
    told, _ = await asked(lambda n: answer(b"{}", "503 Busy") if n == 7 else VECTOR)

    assert (told["requests"], told["lost"]) == (20, 1)
    assert told["errors"][0].startswith("HTTP/1.1 503")


async def test_an_empty_answer_with_status_200_is_lost() -> None:
    told, _ = await asked(lambda n: answer(b"{}") if n == 7 else VECTOR)

    assert told["lost"] == 1


async def test_a_connection_that_closes_costs_its_request_and_the_client_goes_on() -> None:
    told, seen = await asked(lambda n: CLOSE if n == 3 else VECTOR, clients=1)

    assert (told["requests"], told["lost"], told["errors"]) == (20, 1, ["closed by the server"])
    assert len(seen) == 20


async def test_a_server_that_is_gone_is_counted_and_ends_the_clients() -> None:
    async with server(lambda _: VECTOR) as (port, _):
        pass

    told = await asyncio.to_thread(Clients(port, 4, iter(requests("1", 3, 20))).run)

    assert (told["requests"], told["lost"]) == (4, 4)


async def test_clients_with_a_time_stop_when_it_is_over() -> None:
    async with server(lambda _: VECTOR) as (port, _):
        row = iter(requests("1", 3, 20))
        told = await asyncio.to_thread(Clients(port, 2, row, 0.0).run)

    assert told["requests"] == 0


def test_texts_are_the_same_for_the_same_seed_only() -> None:
    assert texts("1", 8, 3) == texts("1", 8, 3) != texts("2", 8, 3)
    assert {len(text.split()) for text in texts("1", 8, 3)} == {8}
