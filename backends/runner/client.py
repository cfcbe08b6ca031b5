"""The gateway's end of the wire: a runner in another process, seen as a Backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import msgspec
from typing_extensions import override

from backends import codec
from backends.base import Backend
from backends.codec import CountCall, FrameSplitter, ModelCall
from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import (
    BackendError,
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    InvalidParameter,
)
from backends.link import Exchange, Link, NotHttp, PeerGone
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import (
    BackendHealth,
    EventBatch,
    Feature,
    Finished,
    GenerationRequest,
    LoadProgress,
    Prompt,
)

T = TypeVar("T")

ACCEPT_TIMEOUT_S: Final = 10.0
"""Longest wait for a response's head. A runner sends it within `app.HEAD_DELAY_S`, however long its prefill
is; a process that is gone sends none, although the socket that its supervisor holds still takes the
connection. Longer than a runner needs to come back (about 4 s), so that a request that meets the restart is
served after it."""
COUNT_TIMEOUT_S: Final = 120.0
"""Counting may have to load the model first."""
UNLOAD_TIMEOUT_S: Final = 180.0
"""An unload waits for running requests; the runner bounds that."""
HEALTH_TIMEOUT_S: Final = 0.8
RETRY_AFTER_S: Final = 2.0

_decode_health = msgspec.json.Decoder(BackendHealth).decode


class RunnerClient(Backend):
    """One runner, which has started or will; nothing here waits for it before the first call.

    `url`: `file:///path.sock` or `http://host:port`, or a callable that gives it later (BentoML knows a
    runner's address only in a serving process). `token`: sent with every request. `features`: what its backend takes;
    the runner is not asked.

    What happens to the runner shows as: nobody listens or it does not accept -> BackendUnavailable; it dies
    before the first event -> BackendUnavailable; it dies later -> BackendFailed out of the iterator.
    """

    def __init__(
        self,
        kind: str,
        url: str | Callable[[], str],
        token: str | None = None,
        *,
        features: frozenset[Feature] = frozenset(),
    ) -> None:
        self.kind = kind
        self.features = features
        self._link = Link(url, exchange=Exchange, token=token)
        self._calls: dict[str, set[_Call]] = {}
        self._closed = False

    @override
    async def start(self) -> None:
        """Nothing to do: connections are made when they are needed."""

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        call = _Call()
        calls = self._calls.setdefault(request.request_id, set())
        calls.add(call)
        begun = finished = False
        try:
            async with self._sent("POST", "/generate", request) as exchange:
                call.attach(exchange)
                splitter = FrameSplitter()
                while data := await exchange.read():
                    events: EventBatch = []
                    error: Exception | None = None
                    for kind, payload in splitter.feed(data):
                        if kind == codec.EVENTS:
                            events += codec.decode_events(payload)
                        elif kind == codec.ERROR:
                            error = codec.decode_error(payload)
                    if events:
                        begun = True
                        finished = type(events[-1]) is Finished
                        yield events
                    if error is not None:
                        raise error
                if not finished:
                    raise BackendFailed("The runner ended the response before the generation was finished")
        except PeerGone:
            if finished:
                return
            if begun:
                raise BackendFailed("The runner died while it generated") from None
            raise _unavailable("The runner died before it answered") from None
        finally:
            calls.discard(call)
            if not calls:
                self._calls.pop(request.request_id, None)

    @override
    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        return await self._answer("/embed", request, codec.VECTORS, codec.decode_vectors)

    @override
    async def rerank(self, request: RerankRequest) -> Ranking:
        return await self._answer("/rerank", request, codec.SCORES, codec.decode_scores)

    async def _answer(self, path: str, body: object, wanted: int, decode: Callable[[memoryview], T]) -> T:
        """The one frame that answers a call. Its time is bounded by who awaits it: leaving closes the connection."""
        async with self._sent("POST", path, body) as exchange:
            async for kind, payload in _frames(exchange):
                if kind == wanted:
                    return decode(payload)
        raise BackendFailed("The runner's answer holds no result")

    @override
    async def abort(self, request_id: str) -> None:
        for call in self._calls.get(request_id, ()):
            call.abort()

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        count = await self._result("/count_tokens", CountCall(model, prompt), COUNT_TIMEOUT_S)
        if count is None:
            raise BackendFailed("The runner counted no tokens")
        return count

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        return await self._answer("/tokenize", request, codec.TOKENS, codec.decode_tokens)

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        return await self._answer("/detokenize", request, codec.TEXT, codec.decode_text)

    @override
    async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        async with self._sent("POST", "/load", ModelCall(model)) as exchange:
            async for kind, payload in _frames(exchange):
                if kind == codec.RESULT:
                    return
                yield codec.decode_progress(payload)
        raise _unavailable("The runner ended the response before the model was loaded")

    @override
    async def unload(self, model: str) -> None:
        await self._result("/unload", ModelCall(model), UNLOAD_TIMEOUT_S)

    @override
    async def metrics(self) -> bytes:
        """The runner's own Prometheus text; empty when it does not answer in time."""
        try:
            return await self._text("/metrics")
        except (TimeoutError, BackendError, PeerGone):
            return b""

    async def _text(self, path: str) -> bytes:
        async with asyncio.timeout(HEALTH_TIMEOUT_S), self._sent("GET", path, None) as exchange:
            body = b""
            while part := await exchange.read():
                body += part
            return body

    @override
    async def health(self) -> BackendHealth:
        try:
            return _decode_health(await self._text("/health"))
        except TimeoutError:
            return BackendHealth(healthy=False, message="The runner does not answer")
        except BackendError as error:
            return BackendHealth(healthy=False, message=error.message)
        except PeerGone:
            return BackendHealth(healthy=False, message="The runner died before it answered")
        except msgspec.DecodeError:
            return BackendHealth(healthy=False, message="The runner's answer makes no sense")

    @override
    async def aclose(self) -> None:
        self._closed = True
        for call in [call for calls in self._calls.values() for call in calls]:
            call.abort()
        self._link.close()

    async def _result(self, path: str, body: object, timeout_s: float) -> int | None:
        try:
            async with asyncio.timeout(timeout_s), self._sent("POST", path, body) as exchange:
                async for kind, payload in _frames(exchange):
                    if kind == codec.RESULT:
                        return codec.decode_result(payload)
        except TimeoutError:
            raise BackendTimeout(f"The runner did not finish within {timeout_s:g} s") from None
        raise BackendFailed("The runner's answer holds no result")

    @asynccontextmanager
    async def _sent(self, method: str, path: str, body: object) -> AsyncIterator[Exchange]:
        """A request that the runner has accepted, and whose connection ends or is kept when the block ends.

        Raises: BackendUnavailable, BackendFailed, InvalidParameter (the body cannot be put into msgpack).
        """
        if self._closed:
            raise _unavailable("This process is shutting down")
        try:
            encoded = b"" if body is None else codec.encode_body(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            # A number of more than 64 bits in a tool's schema, a lone surrogate, a too deep nesting.
            raise InvalidParameter(f"The request holds a value that cannot be passed on: {error}") from None
        try:
            exchange = await self._link.send(method, path, encoded, accept_timeout_s=ACCEPT_TIMEOUT_S)
        except PeerGone:
            raise _unavailable("The runner died before it answered") from None
        except NotHttp:
            raise BackendFailed("What answers at the runner's address is not a runner") from None
        except TimeoutError:
            raise _unavailable("The runner does not answer") from None
        except (ConnectionRefusedError, FileNotFoundError):
            raise _unavailable("Connection refused") from None
        except ValueError as error:
            raise _unavailable(f"The runner cannot be reached: {error}") from None
        except OSError as error:
            raise _unavailable(f"The runner cannot be reached: {error.strerror or 'no connection'}") from None
        try:
            status = await exchange.head()
            if status != 200:
                raise _refusal(status)
            yield exchange
        except (NotHttp, msgspec.DecodeError):
            raise BackendFailed("The runner's answer makes no sense") from None
        finally:
            exchange.close(asyncio.get_running_loop().time())


class _Call:
    """A generation under way, as far as `abort` must know it."""

    __slots__ = ("_aborted", "_exchange")

    def __init__(self) -> None:
        self._aborted = False
        self._exchange: Exchange | None = None

    def attach(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._aborted:
            self.abort()

    def abort(self) -> None:
        self._aborted = True
        if self._exchange is not None:
            self._exchange.fail(BackendFailed("The request was aborted"))


async def _frames(exchange: Exchange) -> AsyncIterator[tuple[int, memoryview]]:
    """The frames of a response, an X frame as the error it holds.

    Raises: BackendUnavailable when the runner dies meanwhile.
    """
    splitter = FrameSplitter()
    try:
        while data := await exchange.read():
            for kind, payload in splitter.feed(data):
                if kind == codec.ERROR:
                    raise codec.decode_error(payload)
                yield kind, payload
    except PeerGone:
        raise _unavailable("The runner died before it answered") from None


def _unavailable(message: str) -> BackendUnavailable:
    return BackendUnavailable(message, retry_after_s=RETRY_AFTER_S)


def _refusal(status: int) -> BackendError:
    """What a status other than 200 means; the runner's app gives only 4xx, and those mean that the two ends
    disagree."""
    if status == 401:
        return _unavailable("The runner refused our token")
    if status in (429, 503):
        return _unavailable("The runner takes no more requests")
    if status == 504:
        return BackendTimeout("The runner did not answer in time")
    return BackendFailed(f"The runner refused the request with status {status}")
