"""A runner that is dead, dying, hanging or something else."""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from backends import codec
from backends.errors import BackendFailed, BackendTimeout, BackendUnavailable, ContextLengthExceeded
from backends.runner import RunnerClient, app, client
from backends.types import BackendHealth, Event, Finished, Started, Usage
from tests.backends.contract import request, until
from tests.backends.scripted_runner import ANSWER, Scripted, at_once, collect, flat, until_it_ends
from tests.backends.serving import served


@pytest.fixture
def backend() -> Scripted:
    return Scripted()


@asynccontextmanager
async def scripted_server(
    *connections: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server that treats its first connection as the first script says, and so on; the last one again and
    again."""
    scripts = list(connections)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        try:
            await script(reader, writer)
        finally:
            writer.close()

    with tempfile.TemporaryDirectory(prefix="wire") as folder:
        path = str(Path(folder) / "r.sock")
        server = await asyncio.start_unix_server(serve, path)
        yield f"file://{path}"
        server.close()
        await server.wait_closed()


async def read_request(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    await reader.readexactly(size)


WHOLE = b"".join(codec.encode_frame(codec.EVENTS, batch) for batch in ANSWER)


def answer(body: bytes, *, announced: int | None = None, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {announced or len(body)}\r\n\r\n".encode() + body


def says(
    data: bytes, *, hang: bool = False
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Reads one request, writes `data` and closes (or hangs until the client closes)."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(data)
        if hang:
            await reader.read()

    return script


async def test_nobody_listening_is_unavailable_with_a_hint_when_to_come_back(tmp_path: Path):
    runner = RunnerClient("scripted", f"file://{tmp_path}/none.sock")

    with pytest.raises(BackendUnavailable, match="Connection refused") as raised:
        await collect(runner, request("m"))
    assert raised.value.retry_after_s == 2.0
    assert await runner.health() == BackendHealth(healthy=False, message="Connection refused")


async def test_a_closed_tcp_port_is_unavailable():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        runner = RunnerClient("scripted", f"http://127.0.0.1:{held.getsockname()[1]}")

        assert await runner.health() == BackendHealth(healthy=False, message="Connection refused")


@pytest.mark.parametrize("last_words", [b"", answer(b"", announced=99)], ids=["no head", "head"])
async def test_a_runner_that_dies_before_the_first_event_is_unavailable(last_words: bytes):
    async with scripted_server(says(last_words)) as url:
        runner = RunnerClient("scripted", url)
        with pytest.raises(BackendUnavailable, match="died before"):
            await collect(runner, request("m", stream=True))
        await runner.aclose()


async def test_a_runner_that_dies_in_the_middle_is_a_failure_and_half_a_frame_is_not_delivered():
    half = WHOLE[: len(codec.encode_frame(codec.EVENTS, ANSWER[0])) + 7]
    async with scripted_server(says(answer(half, announced=len(WHOLE)))) as url:
        runner = RunnerClient("scripted", url)
        seen, error = await until_it_ends(runner)
        await runner.aclose()

    assert seen == [Started(0.0, 3)]
    assert isinstance(error, BackendFailed)
    assert "died while" in str(error)


async def test_a_response_that_ends_too_early_is_a_failure():
    async with scripted_server(says(answer(WHOLE[:20]))) as url:
        runner = RunnerClient("scripted", url)
        with pytest.raises(BackendFailed, match="before the generation was finished"):
            await collect(runner, request("m", stream=True))
        await runner.aclose()


async def test_a_stale_connection_is_replaced_once_and_nobody_notices():
    async def once_then_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(WHOLE))
        await read_request(reader)  # the second request comes, and the connection ends over it

    async with scripted_server(once_then_close, says(answer(WHOLE))) as url:
        runner = RunnerClient("scripted", url)
        first = await collect(runner, request("m"))
        second = await collect(runner, request("m"))
        await runner.aclose()

    assert first == second


async def test_a_runner_that_died_over_an_accepted_request_is_not_asked_again():
    asked = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await read_request(reader)
        writer.write(answer(WHOLE))
        await read_request(reader)
        asked += 1
        writer.write(answer(b"", announced=99))

    async with scripted_server(script) as url:
        runner = RunnerClient("scripted", url)
        await collect(runner, request("m"))
        with pytest.raises(BackendUnavailable):
            await collect(runner, request("m"))
        await runner.aclose()
    assert asked == 1


async def test_a_connection_that_idled_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backends.link.IDLE_S", -1.0)
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await says(answer(WHOLE), hang=True)(reader, writer)

    async with scripted_server(script) as url:
        runner = RunnerClient("scripted", url)
        await collect(runner, request("m"))
        await collect(runner, request("m"))
        await runner.aclose()
    assert connections == 2


async def test_a_runner_that_accepts_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "ACCEPT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(client, "HEALTH_TIMEOUT_S", 0.1)
    async with scripted_server(says(b"", hang=True)) as url:
        runner = RunnerClient("scripted", url)
        with pytest.raises(BackendUnavailable, match="does not answer"):
            await collect(runner, request("m"))
        assert await runner.health() == BackendHealth(healthy=False, message="The runner does not answer")
        await runner.aclose()


async def test_a_long_wait_for_the_first_event_is_not_taken_for_a_dead_runner(
    backend: Scripted, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(app, "HEAD_DELAY_S", 0.01)
    monkeypatch.setattr(client, "ACCEPT_TIMEOUT_S", 0.3)

    async def slow(i: int) -> None:
        await asyncio.sleep(0.5 if i == 0 else 0)

    backend.gate = slow
    async with served(backend) as runner:
        for stream in (False, True):
            assert flat(await collect(runner, request("m", stream=stream)))[-1] == Finished(Usage(3, 2))


async def test_an_error_after_an_early_head_still_arrives(backend: Scripted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "HEAD_DELAY_S", 0.0)

    async def slow(i: int) -> None:
        await asyncio.sleep(0.05)
        raise ContextLengthExceeded(prompt_tokens=9, context_length=8)

    backend.gate = slow
    async with served(backend) as runner:
        with pytest.raises(ContextLengthExceeded):
            await collect(runner, request("m"))


@pytest.mark.parametrize(
    "stray", [b"SSH-2.0-OpenSSH_9\r\n", answer(b"<html>hello</html>"), answer(b"E\0\0\0\1\xc1")]
)
async def test_something_that_is_no_runner_is_a_failure(stray: bytes):
    async with scripted_server(says(stray)) as url:
        runner = RunnerClient("scripted", url)
        with pytest.raises(BackendFailed):
            await collect(runner, request("m"))
        assert (await runner.health()).healthy is False
        await runner.aclose()


@pytest.mark.parametrize(
    ("status", "error"),
    [("429 Busy", BackendUnavailable), ("503 Busy", BackendUnavailable), ("504 Late", BackendTimeout)],
)
async def test_a_status_before_the_runner_is_understood(status: str, error: type[Exception]):
    async with scripted_server(says(answer(b"{}", status=status))) as url:
        runner = RunnerClient("scripted", url)
        with pytest.raises(error):
            await collect(runner, request("m"))
        await runner.aclose()


async def test_bytes_that_nobody_asked_for_end_an_idle_connection():
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer(WHOLE))
        await asyncio.sleep(0.05)
        writer.write(answer(b"poison"))
        await reader.read()

    async with scripted_server(script) as url:
        runner = RunnerClient("scripted", url)
        await collect(runner, request("m"))
        await until(lambda: at_once(not any(e.usable for e in runner._link._idle)))
        assert flat(await collect(runner, request("m")))[-1] == Finished(Usage(3, 2))
        await runner.aclose()


RUNNER_PROGRAM = """
import sys, uvicorn
from backends.fake import FakeLoader, FakeScript
from backends.pool import PooledBackend
from backends.runner import create_runner_app
loader = FakeLoader({"fake-echo": FakeScript(itl_s=0.01, context_length=100_000)})
uvicorn.run(create_runner_app(PooledBackend(loader), token=None), uds=sys.argv[1], log_level="critical")
"""


@asynccontextmanager
async def runner_process(path: str) -> AsyncIterator[asyncio.subprocess.Process]:
    root = str(Path(__file__).parents[2])
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", RUNNER_PROGRAM, path, cwd=root)
    probe = RunnerClient("fake", f"file://{path}")
    try:

        async def answers() -> bool:
            return (await probe.health()).healthy

        await until(answers, patience_s=30)
        yield process
    finally:
        await probe.aclose()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_killed_runner_fails_its_stream_is_unavailable_and_works_again_when_it_is_back():
    endless = request("fake-echo", stream=True, ignore_eos=True, max_tokens=None)
    with tempfile.TemporaryDirectory(prefix="wire") as folder:
        path = f"{folder}/r.sock"
        runner = RunnerClient("fake", f"file://{path}")
        async with runner_process(path) as process:
            await collect(runner, request("fake-echo"))
            stream = runner.generate(endless)
            await anext(stream)
            process.kill()
            with pytest.raises(BackendFailed, match="died while"):
                _ = [batch async for batch in stream]
        with pytest.raises(BackendUnavailable, match="Connection refused"):
            await collect(runner, request("fake-echo"))
        async with runner_process(path):
            assert await collect(runner, request("fake-echo"))
        await runner.aclose()


def test_the_wire_works_on_uvloop():
    """Its transports inherit from nothing of asyncio, and it is what serves."""
    uvloop = pytest.importorskip("uvloop")

    async def play() -> list[Event]:
        async with served(Scripted()) as runner:
            for _ in range(3):
                await collect(runner, request("m"))
            assert len(runner._link._idle) == 1
            async with aclosing(runner.generate(request("m", stream=True))) as batches:
                await anext(batches)
            return flat(await collect(runner, request("m", stream=True)))

    assert uvloop.run(play()) == flat(ANSWER)
