"""The runner's end of the wire: a small ASGI app in front of one Backend.

    POST /generate       GenerationRequest  -> E frames                       raw ASGI: the hot path
    POST /embed          EmbeddingRequest   -> V frame, Embeddings
    POST /rerank         RerankRequest      -> S frame, Ranking
    POST /load           ModelCall          -> P frames, the last one `ready`
    POST /unload         ModelCall          -> R frame, nil
    POST /count_tokens   ModelCall          -> R frame, an integer
    POST /tokenize       TokenizeRequest    -> T frame, Tokens
    POST /detokenize     DetokenizeRequest  -> D frame, a text
    GET  /health                            -> BackendHealth as JSON, always 200
    GET  /offers                            -> Offers as JSON
    GET  /metrics                           -> Prometheus text

Bodies are msgpack (`backends.codec`). An error of the backend is an X frame under status 200, before or
after other frames; a status of 4xx means that the request was not one of this wire. One HTTP request
carries one generation, and its connection is the generation's life line: when it closes, in whatever phase,
the engine's work is aborted.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Generic, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from backends import codec
from backends.backstop import Backstop
from backends.base import Backend
from backends.codec import CountCall, ModelCall
from backends.embedding import EmbeddingRequest, RerankRequest
from backends.errors import BackendFailed, BackendTimeout, ServiceError
from backends.tokenizing import DetokenizeRequest, TokenizeRequest
from backends.types import (
    BackendHealth,
    ChoiceFinished,
    EventBatch,
    Finished,
    GenerationRequest,
    LoadProgress,
    TextDelta,
)
from models.errors import ModelError

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BODY_BYTES = 64 << 20
"""The wire's own bodies are bounded at the gateway (16 MiB by default); msgpack of token ids may be
larger."""

HEAD_DELAY_S = 0.25
"""The response's head goes out with the first frame or after this time. A client that has no head after
some seconds knows that nobody accepts its request (a dead process's socket still takes connections),
however long a prefill is."""

LAST_WORDS_S = 5.0
"""How long the error of a request that was ended may take to be sent."""

_FRAMES = (b"content-type", b"application/x-llm-frames")
_JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


def create_runner_app(
    backend: Backend | Callable[[], Backend],
    *,
    token: str | None,
    backstop_s: float | None = None,
) -> Starlette:
    """The ASGI app of a runner process. Its lifespan starts and closes the backend.

    `backend`: or what makes it, called when the app starts: a process that only imports this app then loads
    no engine. `app.state.drain(grace_s=…, timeout_s=…)` goes on taking requests for `grace_s`, then drains
    the backend.
    `token`: required as a bearer token on every request, compared in constant time; None only on a socket
    that nobody else can reach. `backstop_s`: the longest that a request may take, loads aside.
    """
    secret = None if token is None else f"Bearer {token}".encode()
    backstop = Backstop(backstop_s) if backstop_s is not None else None
    made: Backend | None = backend if isinstance(backend, Backend) else None

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        nonlocal made
        if not isinstance(backend, Backend):
            made = backend()
        await the().start()
        try:
            yield
        finally:
            await the().aclose()

    def the() -> Backend:
        assert made is not None, "the app serves before its lifespan began"
        return made

    async def generate(exchange: _Exchange, request: GenerationRequest) -> None:
        await exchange.generation(the().generate(request), hold=not request.stream)

    async def embed(exchange: _Exchange, request: EmbeddingRequest) -> None:
        await exchange.answer(codec.VECTORS, the().embed(request))

    async def rerank(exchange: _Exchange, request: RerankRequest) -> None:
        await exchange.answer(codec.SCORES, the().rerank(request))

    async def load(exchange: _Exchange, call: ModelCall) -> None:
        await exchange.progress(the().load(call.model))

    async def unload(exchange: _Exchange, call: ModelCall) -> None:
        await exchange.result(the().unload(call.model))

    async def count_tokens(exchange: _Exchange, call: CountCall) -> None:
        await exchange.result(the().count_tokens(call.model, call.prompt))

    async def tokenize(exchange: _Exchange, request: TokenizeRequest) -> None:
        await exchange.answer(codec.TOKENS, the().tokenize(request))

    async def detokenize(exchange: _Exchange, request: DetokenizeRequest) -> None:
        await exchange.answer(codec.TEXT, the().detokenize(request))

    async def health(exchange: _Exchange, _: bytes) -> None:
        await exchange.whole(_JSON, msgspec.json.encode(await the().health()))

    async def offers(exchange: _Exchange, _: bytes) -> None:
        await exchange.whole(_JSON, msgspec.json.encode(await the().offers()))

    async def metrics(exchange: _Exchange, _: bytes) -> None:
        text = metrics_text(the().kind, await the().health())
        await exchange.whole(_TEXT, text.encode() + await the().metrics())

    def post(
        path: str,
        decode: Callable[[bytes], T],
        serve: Callable[[_Exchange, T], Awaitable[None]],
        *,
        is_bounded: bool = True,
    ) -> Route:
        endpoint = _Endpoint(decode, serve, secret, backstop if is_bounded else None)
        return Route(path, endpoint, methods=["POST"])

    def get(path: str, serve: Callable[[_Exchange, bytes], Awaitable[None]]) -> Route:
        return Route(path, _Endpoint(bytes, serve, secret, backstop), methods=["GET"])

    async def drain(*, grace_s: float, timeout_s: float) -> bool:
        # The gateway drains at the same time; what it let in before must still be taken.
        await asyncio.sleep(grace_s)
        return await the().drain(timeout_s)

    app = Starlette(
        routes=[
            post("/generate", codec.decode_request, generate),
            post("/embed", codec.decode_embed, embed),
            post("/rerank", codec.decode_rerank, rerank),
            # As long as the file and the engine take; the gateway leaves when its own time is over.
            post("/load", codec.decode_call, load, is_bounded=False),
            post("/unload", codec.decode_call, unload),
            post("/count_tokens", codec.decode_count, count_tokens),
            post("/tokenize", codec.decode_tokenize, tokenize),
            post("/detokenize", codec.decode_detokenize, detokenize),
            get("/health", health),
            get("/offers", offers),
            get("/metrics", metrics),
        ],
        lifespan=lifespan,
    )
    app.state.drain = drain
    return app


class _Endpoint(Generic[T]):
    """One route as a bare ASGI callable: checks the token, reads the body, watches the connection, reports
    errors."""

    def __init__(
        self,
        decode: Callable[[bytes], T],
        serve: Callable[[_Exchange, T], Awaitable[None]],
        secret: bytes | None,
        backstop: Backstop | None,
    ) -> None:
        self._decode = decode
        self._serve = serve
        self._secret = secret
        self._backstop = backstop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(send)
        if self._backstop is None:
            await self._run(exchange, scope, receive)
            return
        try:
            with self._backstop.hold(f"{scope['method']} {scope['path']}"):
                await self._run(exchange, scope, receive)
        except BackendTimeout as error:
            # Whoever does not read would hold this up for ever, too; what is not whole is cut off by the server.
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await exchange.fail(error)

    async def _run(self, exchange: _Exchange, scope: Scope, receive: Receive) -> None:
        if self._secret is not None:
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, self._secret):
                await exchange.refuse(401, "the runner's token is missing or wrong")
                return
        body = await _read_body(receive)
        if body is None:
            return  # the client left
        if len(body) > MAX_BODY_BYTES:
            await exchange.refuse(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
            return
        try:
            call = self._decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            await exchange.refuse(400, f"malformed body: {error}")
            return
        watch = asyncio.create_task(exchange.cancel_when_closed(receive))
        try:
            await self._serve(exchange, call)
        except asyncio.CancelledError:
            if not exchange.closed:
                raise  # the server is stopping
            exchange.task.uncancel()
        except Exception as error:
            await exchange.fail(error)
        finally:
            watch.cancel()
            exchange.end()


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body, or its beginning where that is too long already; None if the client left meanwhile."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False) or size > MAX_BODY_BYTES:
            return parts[0] if len(parts) == 1 else b"".join(parts)


class _Exchange:
    """One request's response: its head, its frames, and what its connection's end does."""

    def __init__(self, send: Send) -> None:
        self._send = send
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self._head_timer: asyncio.TimerHandle | None = None
        self._early_head: asyncio.Task[None] | None = None
        self._started = False
        self._complete = False
        self.closed = False
        """The client left before the response was complete."""

    async def cancel_when_closed(self, receive: Receive) -> None:
        """Waits for the client to leave, and then cancels the request's task wherever it is."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._complete:
            self.closed = True
            self.task.cancel()

    async def generation(self, batches: AsyncGenerator[EventBatch, None], *, hold: bool) -> None:
        """Send every batch as one frame as soon as it is there; with `hold` one frame when all of them are.

        While `send` waits for a slow reader nobody takes batches, the engine's ready events pile up, and
        the next batch holds all of them: so a slow reader gets few large frames.
        """
        self._promise_head()
        held: EventBatch = []
        async with aclosing(batches):
            async for batch in batches:
                last = type(batch[-1]) is Finished
                if hold:
                    held += batch
                    if last:
                        await self._frames(codec.encode_frame(codec.EVENTS, merge_text(held)), last=True)
                else:
                    await self._frames(codec.encode_frame(codec.EVENTS, batch), last=last)
        if not self._complete:
            raise BackendFailed("The backend ended a generation without finishing it")

    async def progress(self, steps: AsyncGenerator[LoadProgress, None]) -> None:
        self._promise_head()
        async with aclosing(steps):
            async for step in steps:
                await self._frames(codec.encode_frame(codec.PROGRESS, step), last=False)
        await self._frames(codec.encode_frame(codec.RESULT, None), last=True)

    async def result(self, call: Awaitable[int | None]) -> None:
        await self.answer(codec.RESULT, call)

    async def answer(self, kind: int, call: Awaitable[object]) -> None:
        """The result of a call in one frame of the kind."""
        self._promise_head()
        await self._frames(codec.encode_frame(kind, await call), last=True)

    async def fail(self, error: Exception) -> None:
        if not isinstance(error, ServiceError | ModelError):
            log.exception("a request to the runner failed", exc_info=error)
        if not self._complete:
            await self._frames(codec.encode_error(error), last=True)

    async def refuse(self, status: int, why: str) -> None:
        await self.whole(_TEXT, why.encode("utf-8", "replace"), status)

    async def whole(self, content_type: tuple[bytes, bytes], body: bytes, status: int = 200) -> None:
        self._started = self._complete = True
        headers = [content_type, (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def end(self) -> None:
        """Nothing more will be sent."""
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _promise_head(self) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_DELAY_S, self._send_early_head)

    def _send_early_head(self) -> None:
        if not self._started:
            self._started = True
            self._early_head = asyncio.create_task(self._send_head())

    async def _send_head(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": [_FRAMES]})

    async def _frames(self, frame: bytes, *, last: bool) -> None:
        if last:
            self._complete = True
            if not self._started:
                await self.whole(_FRAMES, frame)
                return
        if self._early_head is not None:
            await self._early_head
            self._early_head = None
        elif not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": [_FRAMES]})
        await self._send({"type": "http.response.body", "body": frame, "more_body": not last})


def merge_text(events: EventBatch) -> EventBatch:
    """The same events with one TextDelta per choice, just before the choice's end: nobody reads them one by
    one."""
    merged: EventBatch = []
    deltas: dict[int, list[TextDelta]] = {}
    for event in events:
        if type(event) is TextDelta:
            deltas.setdefault(event.index, []).append(event)
            continue
        if type(event) is ChoiceFinished and (parts := deltas.pop(event.index, None)):
            merged.append(parts[0] if len(parts) == 1 else _joined(parts))
        merged.append(event)
    return merged


def _joined(parts: list[TextDelta]) -> TextDelta:
    logprobs = tuple(entry for part in parts for entry in part.logprobs or ())
    return TextDelta(
        index=parts[0].index,
        text="".join([part.text for part in parts]),
        num_tokens=sum(part.num_tokens for part in parts),
        logprobs=logprobs if any(part.logprobs is not None for part in parts) else None,
    )


def metrics_text(kind: str, health: BackendHealth) -> str:
    """Gauges of one backend in Prometheus' text format; its label values are ids of known models only."""
    rows: dict[str, list[tuple[str, float]]] = {
        "llm_runner_healthy": [(f'backend="{kind}"', health.healthy)],
        "llm_runner_model_loaded": [],
        "llm_runner_requests_running": [],
        "llm_runner_requests_waiting": [],
    }
    for model in health.models:
        escaped = model.id.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels = f'backend="{kind}",model="{escaped}"'
        rows["llm_runner_model_loaded"].append((labels, model.state == "loaded"))
        rows["llm_runner_requests_running"].append((labels, model.running))
        rows["llm_runner_requests_waiting"].append((labels, model.waiting))
    lines = []
    for name, values in rows.items():
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge"]
        lines += [f"{name}{{{labels}}} {int(value)}" for labels, value in values]
    return "\n".join(lines) + "\n"


_HELP = {
    "llm_runner_healthy": "1 when the runner can serve its preloaded models.",
    "llm_runner_model_loaded": "1 while the model is in memory.",
    "llm_runner_requests_running": "Requests that the engine works on.",
    "llm_runner_requests_waiting": "Requests that wait for the model to load or for a slot.",
}
