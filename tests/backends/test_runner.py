"""The wire between gateway and runner: what the contract suite cannot show, over real sockets.

The backends behind it are scripted here, so that a test decides when an event is there and sees what
reaches them.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from backends import codec
from backends.base import Backend
from backends.errors import (
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidParameter,
    ServiceError,
)
from backends.runner import RunnerClient, app, client, create_runner_app
from backends.runner.app import merge_text
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import (
    BackendHealth,
    ChatPrompt,
    ChoiceFinished,
    Event,
    EventBatch,
    Finished,
    GenerationRequest,
    LoadProgress,
    ModelStatus,
    Prompt,
    Started,
    TextDelta,
    TextPrompt,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from tests.backends.contract import request, until
from tests.backends.serving import served, serving

ANSWER: list[EventBatch] = [
    [Started(0.0, 3)],
    [TextDelta(0, "one")],
    [TextDelta(0, " two")],
    [ChoiceFinished(0, "stop")],
    [Finished(Usage(3, 2))],
]


class Scripted(Backend):
    """Yields `ANSWER`, each batch when `gate` lets it; remembers what reached it."""

    kind = "scripted"

    def __init__(self, batches: list[EventBatch] | None = None) -> None:
        self.batches = ANSWER if batches is None else batches
        self.gate: Callable[[int], Awaitable[None]] | None = None
        self.received: list[GenerationRequest] = []
        self.ended: list[str] = []
        self.phase = ""
        self.linger_s = 0.0
        self.closed = False
        self.error: Exception | None = None
        self.load_error: Exception | None = None

    @override
    async def start(self) -> None:
        self.phase = "started"

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        self.received.append(request)
        try:
            for i, batch in enumerate(self.batches):
                if self.gate is not None:
                    await self.gate(i)
                yield batch
            if self.error is not None:
                raise self.error
            await asyncio.sleep(self.linger_s)
            self.ended.append("whole")
        except (asyncio.CancelledError, GeneratorExit):
            self.ended.append("cut")
            raise

    @override
    async def abort(self, request_id: str) -> None: ...

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        return 7

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        if request.prompt == TextPrompt(text="bad"):
            raise InvalidParameter("prompt: bad", param="prompt")
        return Tokens(2, (4, 5), ("a", "b") if request.with_strings else None, 8, request.model == "guess")

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        return f"{request.model} {list(request.token_ids)} ä"

    @override
    async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        yield LoadProgress("fetching", 1, 4)
        if self.load_error is not None:
            raise self.load_error
        yield LoadProgress("ready", 4, 4)

    @override
    async def unload(self, model: str) -> None:
        self.ended.append(f"unloaded {model}")

    @override
    async def health(self) -> BackendHealth:
        return BackendHealth(healthy=True, models=(ModelStatus(id='a"b', state="loaded", running=2),))

    @override
    async def aclose(self) -> None:
        self.closed = True


async def forever(_: int) -> None:
    await asyncio.Event().wait()


def stall_at(step: int) -> Callable[[int], Awaitable[None]]:
    async def gate(i: int) -> None:
        if i == step:
            await forever(i)

    return gate


async def collect(backend: Backend, wanted: GenerationRequest) -> list[EventBatch]:
    async with asyncio.timeout(20), aclosing(backend.generate(wanted)) as batches:
        return [batch async for batch in batches]


async def until_it_ends(backend: Backend) -> tuple[list[Event], Exception | None]:
    """What a stream delivered, and the error that ended it."""
    seen: list[Event] = []
    try:
        async for batch in backend.generate(request("m", stream=True)):
            seen += batch
    except ServiceError as error:
        return seen, error
    return seen, None


def flat(batches: list[EventBatch]) -> list[Event]:
    return [event for batch in batches for event in batch]


@pytest.fixture
def backend() -> Scripted:
    return Scripted()


@pytest.fixture
async def runner(backend: Scripted) -> AsyncIterator[RunnerClient]:
    async with served(backend) as runner:
        yield runner


# What travels


async def test_the_request_arrives_as_it_was_sent(backend: Scripted, runner: RunnerClient):
    prompt = ChatPrompt(messages=[{"role": "user", "content": "ä 🙂"}], tools=[{"a": [1, None, 2.5]}])
    sent = request(
        "m", prompt, stop=("x",), logit_bias={7: -1.5}, seed=-(2**63), explicit=frozenset({"seed"})
    )
    await collect(runner, sent)

    assert backend.received == [sent]


async def test_a_request_that_is_not_streamed_comes_in_one_batch(runner: RunnerClient):
    (batch,) = await collect(runner, request("m", stream=False))

    assert batch == [
        Started(0.0, 3),
        TextDelta(0, "one two", 2),
        ChoiceFinished(0, "stop"),
        Finished(Usage(3, 2)),
    ]


async def test_a_stream_brings_its_events_in_order(runner: RunnerClient):
    assert flat(await collect(runner, request("m", stream=True))) == flat(ANSWER)


async def test_an_event_is_delivered_while_the_next_one_is_awaited(backend: Scripted, runner: RunnerClient):
    backend.gate = stall_at(2)

    async with asyncio.timeout(10), aclosing(runner.generate(request("m", stream=True))) as batches:
        seen: list[Event] = []
        async for batch in batches:
            seen += batch
            if len(seen) == 2:
                break
    assert seen == [Started(0.0, 3), TextDelta(0, "one")]


async def test_a_slow_reader_gets_what_piled_up_in_one_batch(backend: Scripted, runner: RunnerClient):
    backend.batches = [[Started(0.0, 3)], *[[TextDelta(0, f"{i} ")] for i in range(200)], *ANSWER[-2:]]
    sizes = []
    async with asyncio.timeout(10), aclosing(runner.generate(request("m", stream=True))) as batches:
        async for batch in batches:
            sizes.append(len(batch))
            await asyncio.sleep(0.02)

    assert sum(sizes) == 203
    assert len(sizes) < 20


async def test_a_reader_that_stops_reading_stops_the_backend(backend: Scripted, runner: RunnerClient):
    """Back-pressure: neither end may pile up an answer that nobody takes."""
    produced = 0

    async def gate(i: int) -> None:
        nonlocal produced
        produced = i
        await asyncio.sleep(0)

    backend.gate = gate
    piece = TextDelta(0, "x" * 65536)
    backend.batches = [[Started(0.0, 3)], *[[piece]] * 1000, *ANSWER[-2:]]
    generator = runner.generate(request("m", stream=True))
    await anext(generator)
    last = -1
    while produced != last:
        last = produced
        await asyncio.sleep(0.1)

    assert produced < 100
    rest = flat([batch async for batch in generator])
    assert sum(isinstance(event, TextDelta) for event in rest) >= 900


async def test_connections_are_kept(backend: Scripted, runner: RunnerClient):
    for _ in range(5):
        await collect(runner, request("m"))
        await collect(runner, request("m", stream=True))
        await runner.count_tokens("m", TextPrompt(text="x"))

    assert len(runner._link._idle) == 1


async def test_load_progress_and_its_error_travel(backend: Scripted, runner: RunnerClient):
    assert [step async for step in runner.load("m")] == [
        LoadProgress("fetching", 1, 4),
        LoadProgress("ready", 4, 4),
    ]

    backend.load_error = ContextLengthExceeded(prompt_tokens=9, context_length=8)
    steps = runner.load("m")
    assert await anext(steps) == LoadProgress("fetching", 1, 4)
    with pytest.raises(ContextLengthExceeded) as raised:
        await anext(steps)
    assert raised.value.context_length == 8


async def test_counting_unloading_and_health_travel(backend: Scripted, runner: RunnerClient):
    assert await runner.count_tokens("m", TextPrompt(text="x")) == 7
    await runner.unload("m")
    assert backend.ended == ["unloaded m"]
    assert await runner.health() == await backend.health()


async def test_tokens_and_their_text_travel(backend: Scripted, runner: RunnerClient):
    for model, with_strings in (("m", True), ("guess", False)):
        asked = TokenizeRequest(model=model, prompt=TextPrompt(text="x"), with_strings=with_strings)
        assert await runner.tokenize(asked) == await backend.tokenize(asked)
    back = DetokenizeRequest(model="m", token_ids=(4, 5))
    assert await runner.detokenize(back) == "m [4, 5] ä"
    with pytest.raises(InvalidParameter, match="bad"):
        await runner.tokenize(TokenizeRequest(model="m", prompt=TextPrompt(text="bad")))


async def test_the_lifespan_starts_and_closes_the_backend(backend: Scripted):
    async with served(backend):
        assert backend.phase == "started"
        assert not backend.closed
    assert backend.closed


# Ending early


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", [0, 2])
async def test_closing_the_generator_ends_the_backends_work(
    backend: Scripted, runner: RunnerClient, step: int, stream: bool
):
    """Before the first event and between events, streamed or not."""
    backend.gate = stall_at(step)
    task = asyncio.create_task(collect(runner, request("m", stream=stream)))
    await until(lambda: _true(bool(backend.received)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await until(lambda: _true(backend.ended == ["cut"]), patience_s=1)


async def test_an_abort_before_the_first_event_ends_the_generator(backend: Scripted, runner: RunnerClient):
    backend.gate = forever
    wanted = request("m", stream=True)
    task = asyncio.create_task(collect(runner, wanted))
    await until(lambda: _true(bool(backend.received)))
    await runner.abort(wanted.request_id)

    with pytest.raises(BackendFailed, match="aborted"):
        await task
    await until(lambda: _true(backend.ended == ["cut"]), patience_s=2)


async def test_an_answer_that_was_read_whole_is_not_cut(backend: Scripted, runner: RunnerClient):
    """Not even what the backend does after its last event, when the connection is free again."""
    backend.linger_s = 0.05
    for stream in (False, True):
        await collect(runner, request("m", stream=stream))

    await until(lambda: _true(len(backend.ended) == 2))
    assert backend.ended == ["whole", "whole"]


@asynccontextmanager
async def behind_a_backstop(backend: Backend, limit_s: float) -> AsyncIterator[RunnerClient]:
    async with serving(create_runner_app(backend, token=None, backstop_s=limit_s)) as url:
        runner = RunnerClient(backend.kind, url)
        await runner.start()
        yield runner
        await runner.aclose()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", [0, 2])
async def test_a_request_that_never_ends_is_ended(backend: Scripted, step: int, stream: bool):
    """With an error that the other end can read, whether the head has gone out or not."""
    backend.gate = stall_at(step)

    async with behind_a_backstop(backend, 0.3) as runner:
        with pytest.raises(BackendTimeout, match=r"longer than 0\.3 s"):
            await collect(runner, request("m", stream=stream))

    assert backend.ended == ["cut"]


async def test_a_load_takes_as_long_as_it_takes():
    class Slow(Scripted):
        @override
        async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
            await asyncio.sleep(0.1)
            yield LoadProgress("ready", 4, 4)

    async with behind_a_backstop(Slow(), 0.02) as runner:
        assert [step async for step in runner.load("m")] == [LoadProgress("ready", 4, 4)]


async def test_requests_that_ended_leave_no_timers(backend: Scripted):
    async with behind_a_backstop(backend, 600) as runner:
        for stream in (False, True) * 50:
            await collect(runner, request("m", stream=stream))
        loop: Any = asyncio.get_running_loop()
        late = [one for one in loop._scheduled if one.when() > loop.time() + 300 and not one.cancelled()]

    assert len(late) == 1


# What goes wrong behind the wire


async def test_an_error_before_any_event_is_raised_as_itself(backend: Scripted, runner: RunnerClient):
    backend.batches, backend.error = [], ContextLengthExceeded(prompt_tokens=9, context_length=8)

    with pytest.raises(ContextLengthExceeded, match="9 tokens"):
        await collect(runner, request("m", stream=True))


async def test_an_error_in_the_middle_comes_after_the_events_before_it(
    backend: Scripted, runner: RunnerClient
):
    backend.batches, backend.error = ANSWER[:2], BackendFailed("The engine stopped")
    seen, error = await until_it_ends(runner)

    assert seen == flat(ANSWER[:2])
    assert isinstance(error, BackendFailed)
    assert error.message == "The engine stopped"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_in_the_backend_is_a_failure_without_its_text(
    backend: Scripted, runner: RunnerClient, stream: bool, caplog: pytest.LogCaptureFixture
):
    backend.batches, backend.error = ANSWER[:2], RuntimeError("secret")

    with pytest.raises(BackendFailed) as raised:
        await collect(runner, request("m", stream=stream))
    assert "secret" not in str(raised.value)
    assert "secret" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_generation_that_ends_without_finished_is_a_failure(
    backend: Scripted, runner: RunnerClient, stream: bool
):
    backend.batches = ANSWER[:3]

    with pytest.raises(BackendFailed, match="without finishing"):
        await collect(runner, request("m", stream=stream))


async def test_a_value_that_msgpack_cannot_hold_is_the_callers_fault(runner: RunnerClient):
    for message in ({"content": 2**70}, {"content": "\ud800"}):
        with pytest.raises(InvalidParameter):
            await collect(runner, request("m", ChatPrompt(messages=[message])))


# Access and malformed input


async def raw(url: str, head: str, body: bytes = b"") -> tuple[int, bytes]:
    reader, writer = await asyncio.open_unix_connection(url.removeprefix("file://"))
    writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
    async with asyncio.timeout(10):
        answer = await reader.read(65536)
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("header", ["", "\nauthorization: Bearer wron", "\nauthorization: secret"])
@pytest.mark.parametrize("line", ["GET /health", "POST /generate", "GET /metrics", "POST /unload"])
async def test_without_the_token_every_route_is_401(backend: Scripted, line: str, header: str):
    async with serving(create_runner_app(backend, token="secret")) as url:
        status, _ = await raw(url, f"{line} HTTP/1.1\nhost: x\ncontent-length: 0{header}")

    assert status == 401
    assert not backend.received


async def test_the_client_brings_its_token(backend: Scripted):
    async with served(backend, token="sécret") as runner:
        assert await collect(runner, request("m"))


async def test_a_wrong_token_is_a_runner_that_cannot_be_reached(backend: Scripted):
    async with serving(create_runner_app(backend, token="secret")) as url:
        runner = RunnerClient("scripted", url, "other")

        with pytest.raises(BackendUnavailable, match="token"):
            await collect(runner, request("m"))
        assert (await runner.health()).healthy is False
        await runner.aclose()


@pytest.mark.parametrize(
    "path", ["/generate", "/load", "/unload", "/count_tokens", "/tokenize", "/detokenize"]
)
@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x91" * 5000, b"{}"])
async def test_a_malformed_body_is_400_and_harms_nothing(backend: Scripted, path: str, body: bytes):
    async with serving(create_runner_app(backend, token=None)) as url:
        status, text = await raw(url, f"POST {path} HTTP/1.1\nhost: x\ncontent-length: {len(body)}", body)
        runner = RunnerClient("scripted", url)
        healthy = (await runner.health()).healthy
        await runner.aclose()

    assert status == 400
    assert text.startswith(b"malformed body")
    assert healthy


async def test_a_body_over_the_limit_is_413(backend: Scripted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "MAX_BODY_BYTES", 1000)
    async with served(backend) as runner:
        with pytest.raises(BackendFailed, match="413"):
            await collect(runner, request("m", TextPrompt(text="x" * 2000)))


async def test_an_unknown_path_is_a_failure_that_names_the_status(backend: Scripted):
    async with serving(create_runner_app(backend, token=None)) as url:
        runner = RunnerClient("scripted", url)
        with pytest.raises(BackendFailed, match="404"):
            async with runner._sent("POST", "/nothing", None):
                pass
        await runner.aclose()


async def test_metrics_are_prometheus_text_with_escaped_labels(backend: Scripted):
    async with serving(create_runner_app(backend, token=None, extra_metrics=lambda: "more 1\n")) as url:
        status, body = await raw(url, "GET /metrics HTTP/1.1\nhost: x")

    assert status == 200
    lines = body.decode().splitlines()
    assert 'llm_runner_requests_running{backend="scripted",model="a\\"b"} 2' in lines
    assert lines[-1] == "more 1"
    assert all(line.startswith("# ") or line.rpartition(" ")[2].isdigit() for line in lines)


# A runner that is dead, dying, hanging or something else


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
        await until(lambda: _true(not any(e.usable for e in runner._link._idle)))
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


# Addresses


@pytest.mark.parametrize("url", ["ftp://x", "localhost:1234", "file://", "http://"])
def test_an_address_of_another_form_is_refused_at_once(url: str):
    with pytest.raises(ValueError, match="no such address"):
        RunnerClient("scripted", url)


async def test_the_address_may_be_known_later(backend: Scripted):
    known: list[str] = []
    runner = RunnerClient("scripted", lambda: known[0] if known else "")
    await runner.start()
    early = await runner.health()
    async with serving(create_runner_app(backend, token=None)) as url:
        known.append(url)
        late = await runner.health()
        await runner.aclose()

    assert early == BackendHealth(
        healthy=False, message="The runner cannot be reached: its address is not known yet"
    )
    assert late.healthy


def test_a_token_that_would_split_the_header_is_refused():
    with pytest.raises(ValueError, match="token"):
        RunnerClient("scripted", "file:///x", "a\r\nx-evil: 1")


# Merging


def test_merging_joins_each_choices_text_and_logprobs_and_keeps_the_count():
    def lp(text: str) -> TokenLogprobs:
        return TokenLogprobs(TokenLogprob(text.encode(), -1.0))

    merged = merge_text(
        [
            Started(0.0, 3),
            TextDelta(0, "a", 1, (lp("a"),)),
            TextDelta(1, "x", 1),
            TextDelta(0, "b", 2, (lp("b"), lp(""))),
            ChoiceFinished(0, "stop"),
            TextDelta(1, "y", 1),
            ChoiceFinished(1, "length"),
            Finished(Usage(3, 5)),
        ]
    )

    assert merged == [
        Started(0.0, 3),
        TextDelta(0, "ab", 3, (lp("a"), lp("b"), lp(""))),
        ChoiceFinished(0, "stop"),
        TextDelta(1, "xy", 2),
        ChoiceFinished(1, "length"),
        Finished(Usage(3, 5)),
    ]


async def _true(value: Any) -> bool:
    return bool(value)
