"""One OpenAI-compatible server: vLLM, SGLang, llama-server, Ollama, TGI, or a cloud.

A request is one HTTP exchange on a kept-alive connection; closing the generator closes the connection, which is how all
of them are told to stop. Every read becomes one batch of events, however many chunks it held.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from backends.errors import (
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    ServiceError,
    UpstreamError,
)
from backends.link import Link, NotHttp, OpenExchange, PeerGone
from backends.types import ChatPrompt, EventBatch, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from backends.vllm import refusals
from backends.vllm.answers import Answer
from backends.vllm.chunks import Chunk, decode_chunk
from backends.vllm.dialect import GENERIC, LLAMA_SERVER, Dialect, dialect_of
from backends.vllm.refusals import Refusal, error_of, read_refusal
from backends.vllm.sse import EventSplitter
from backends.vllm.wire import INJECTED, Plan, Quirk, plan_of
from models import names
from models.errors import ModelError

MAX_ANSWER_BYTES: Final = 64 << 20
"""Longest whole answer (16 choices with 20 alternatives per token are the largest)."""
MAX_REFUSAL_BYTES: Final = 64 << 10
MAX_MODELS: Final = 1000
"""Models of one server that are looked at."""
HEALTH_TIMEOUT_S: Final = 0.8
CONTROL_TIMEOUT_S: Final = 5.0
COUNT_TIMEOUT_S: Final = 30.0
USAGE_WAIT_S: Final = 0.2
"""How long a usage that was not told is waited for after the end mark."""
RETRY_AFTER_S: Final = 2.0


class ServedModel(msgspec.Struct, frozen=True):
    """A model as its server lists it. `context_length`: tokens (`max_model_len`), None where it does not say."""

    id: str
    context_length: int | None = None


class Unreached(Exception):
    """The server produced nothing for this request, and another one may: `error` is what to say if there is none."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class _Known:
    """What the server's list of models says."""

    dialect: Dialect = GENERIC
    context_lengths: Mapping[str, int] = field(default_factory=dict)


class Upstream:
    """One server, reached when it is first needed.

    `url`: `http(s)://host:port[/path][/v1]`, `file:///path.sock`, or a callable that gives it then. `api_key` goes with
    every request and into no message. Used from one event loop.
    """

    def __init__(self, url: str | Callable[[], str], *, api_key: str | None = None) -> None:
        root = _root(url) if isinstance(url, str) else lambda: _root(url())
        self._link = Link(root, exchange=OpenExchange, token=api_key, content_type="application/json")
        self._api_key = api_key
        self._calls: dict[str, set[_Call]] = {}
        self._known: _Known | None = None
        self._quirks: set[Quirk] = set()
        self._running = 0
        self._count = 0
        self._closed = False

    @property
    def running(self) -> int:
        """Generations under way."""
        return self._running

    async def generate(
        self, request: GenerationRequest, *, served_name: str
    ) -> AsyncGenerator[EventBatch, None]:
        """Run one request, as `Backend.generate` does. `served_name`: what the server calls the model."""
        try:
            async with aclosing(self.attempt(request, served_name=served_name)) as batches:
                async for batch in batches:
                    yield batch
        except Unreached as unreached:
            raise unreached.error from None

    async def attempt(
        self, request: GenerationRequest, *, served_name: str
    ) -> AsyncGenerator[EventBatch, None]:
        """The same, for a caller that has other servers.

        Raises: Unreached instead of an error that says nothing of the request itself, before any event.
        """
        call = _Call()
        calls = self._calls.setdefault(request.request_id, set())
        calls.add(call)
        self._running += 1
        begun = time.monotonic()
        try:
            plan = await self._plan(request, served_name)
            while True:
                exchange = await self._send("POST", plan.path, plan.encode(), request.request_id)
                try:
                    call.attach(exchange)
                    if await exchange.head() == 200:
                        async with aclosing(self._answers(exchange, Answer(plan, request, begun))) as batches:
                            async for batch in batches:
                                yield batch
                        return
                    refusal = await self._refusal(exchange)
                except PeerGone:
                    raise Unreached(_unavailable("The server broke off its answer")) from None
                except NotHttp:
                    raise UpstreamError("The server's answer makes no sense") from None
                finally:
                    exchange.close(asyncio.get_running_loop().time())
                call.detach()
                plan = await self._replan(plan, refusal, request, served_name)
        finally:
            self._running -= 1
            calls.discard(call)
            if not calls:
                self._calls.pop(request.request_id, None)

    async def abort(self, request_id: str) -> None:
        """End a generation: its connection closes, its generator raises BackendFailed. Others are no error."""
        for call in self._calls.get(request_id, ()):
            call.abort()

    async def count_tokens(self, served_name: str, prompt: Prompt) -> int:
        """Tokens of a prompt by the server's own tokenizer and template.

        Raises: NotSupported where the server has no such route; what `generate` raises for an unreachable one.
        """
        if isinstance(prompt, TokenPrompt):
            return len(prompt.token_ids)
        known = await self._know()
        if known.dialect is LLAMA_SERVER and isinstance(prompt, ChatPrompt):
            rendered = await self._asked("/apply-template", served_name, _chat_body(served_name, prompt))
            prompt = TextPrompt(text=str(rendered.get("prompt", "")))
        if isinstance(prompt, ChatPrompt):
            body = _chat_body(served_name, prompt)
        elif known.dialect is LLAMA_SERVER:
            body = {"content": prompt.text, "add_special": True}
        else:
            body = {"model": served_name, "prompt": prompt.text}
        said = await self._asked("/tokenize", served_name, body)
        count, tokens = said.get("count"), said.get("tokens")
        if type(count) is int and count >= 0:
            return count
        if isinstance(tokens, list):
            return len(tokens)
        raise UpstreamError("The server counted no tokens")

    async def models(self) -> list[ServedModel]:
        """What the server lists, without names that cannot be a model's and beyond the first thousand.

        Raises: BackendUnavailable, UpstreamError, UpstreamAuthFailed, NotSupported.
        """
        status, headers, body = await self._control("GET", "/v1/models", b"", CONTROL_TIMEOUT_S)
        if status != 200:
            raise self._control_error(status, headers, body, "")
        try:
            said = msgspec.json.decode(body)
            entries = [entry for entry in said["data"] if isinstance(entry, dict)][:MAX_MODELS]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
            raise UpstreamError("The server's list of models makes no sense") from None
        served = {}
        for entry in entries:
            name = entry.get("id")
            if isinstance(name, str) and names.is_safe(name) and not name.startswith("/"):
                served[name] = ServedModel(name, _context_length(entry))
        self._known = _Known(
            dialect_of(entries[0]) if entries else GENERIC,
            {model.id: model.context_length for model in served.values() if model.context_length},
        )
        return list(served.values())

    async def is_healthy(self) -> bool:
        """Whether `ailment` finds nothing."""
        return await self.ailment() is None

    async def ailment(self) -> str | None:
        """Why the server can serve nothing, in one sentence, or None: asks `GET /health`, or where it has no such route
        `GET /v1/models`. Below 1 s, free of charge; never raises."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                status, _, _ = await self.call("GET", "/health", b"")
                if status in (404, 405):
                    status, _, _ = await self.call("GET", "/v1/models", b"")
        except TimeoutError:
            return "The server does not answer"
        except ServiceError as error:
            return error.message
        if status in (401, 403):
            return "The server refused the key that this service shows it"
        return None if status == 200 else f"The server is not well (status {status})"

    async def metrics(self) -> bytes:
        """The server's own Prometheus text; empty when it has none or does not answer in time."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                status, _, body = await self.call("GET", "/metrics", b"")
        except (TimeoutError, ServiceError):
            return b""
        return body if status == 200 else b""

    async def call(self, method: str, path: str, body: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        """One whole exchange: status, headers (names in lower case) and body, whatever the status says. Not bounded in
        time; cancelling it closes the connection.

        Raises: BackendUnavailable, UpstreamError.
        """
        try:
            exchange = await self._send(method, path, body, None)
        except Unreached as unreached:
            raise unreached.error from None
        try:
            status = await exchange.head()
            return status, exchange.headers, await _whole(exchange, MAX_ANSWER_BYTES)
        except PeerGone:
            raise UpstreamError("The server broke off its answer") from None
        except NotHttp:
            raise UpstreamError("The server's answer makes no sense") from None
        finally:
            exchange.close(asyncio.get_running_loop().time())

    async def aclose(self) -> None:
        """End what runs and close every connection. Idempotent."""
        self._closed = True
        for call in [call for calls in self._calls.values() for call in calls]:
            call.abort()
        self._link.close()

    # One call.

    async def _send(self, method: str, path: str, body: bytes, request_id: str | None) -> OpenExchange:
        """Raises: Unreached."""
        if self._closed:
            raise Unreached(_unavailable("This process is shutting down"))
        headers = b""
        if request_id is not None and request_id.isascii() and request_id.isprintable():
            # Ours at the front, so that logs can be joined; a number behind it, because vLLM's ids must differ.
            self._count += 1
            headers = f"x-request-id: {request_id}.{self._count}\r\n".encode()
        try:
            return await self._link.send(method, path, body, accept_timeout_s=None, headers=headers)
        except PeerGone:
            error: ServiceError = _unavailable("The server closed the connection before it answered")
        except NotHttp:
            raise UpstreamError("What answers at the server's address is no HTTP server") from None
        except TimeoutError:
            error = _unavailable("The server does not answer")
        except (ConnectionRefusedError, FileNotFoundError):
            error = _unavailable("Connection refused")
        except ValueError as problem:
            error = _unavailable(f"The server cannot be reached: {problem}")
        except OSError as problem:
            error = _unavailable(f"The server cannot be reached: {problem.strerror or 'no connection'}")
        raise Unreached(error) from None

    async def _answers(self, exchange: OpenExchange, answer: Answer) -> AsyncGenerator[EventBatch, None]:
        """The events of an accepted call, in whichever form the server answers it.

        Raises: Unreached and PeerGone before the first event; UpstreamError and errors inside the stream.
        """
        kind = exchange.headers.get(b"content-type", b"").lower()
        if kind.startswith(b"application/json"):
            yield await self._document(exchange, answer)
            return
        if kind.startswith(b"text/html"):
            raise UpstreamError("The server answered with a web page")
        splitter = EventSplitter()
        done = False
        while not done:
            try:
                data = await exchange.read()
            except PeerGone:
                if answer.started:
                    raise UpstreamError("The server broke off its answer") from None
                raise
            batch: EventBatch = []
            done = self._take(splitter.feed(data) if data else splitter.flush(), answer, batch) or not data
            if answer.overruns:
                done = True
            elif done and data:
                if answer.complete and not answer.has_usage:
                    await self._late_usage(exchange, splitter, answer)
                exchange.release(asyncio.get_running_loop().time())
            if done:
                batch.append(answer.finish())
            if batch:
                yield batch

    def _take(self, payloads: list[bytes], answer: Answer, batch: EventBatch) -> bool:
        """Whether the end mark is among them."""
        done = False
        for payload in payloads:
            if payload == b"[DONE]":
                done = True
            else:
                answer.take(self._decoded(payload, answer), batch)
        return done

    def _decoded(self, payload: bytes, answer: Answer) -> Chunk:
        """Raises: UpstreamError, or the error that the payload is."""
        try:
            chunk = decode_chunk(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UpstreamError("The server's answer makes no sense") from None
        if chunk.object == "error" or (chunk.error and bytes(chunk.error) != b"null"):
            raise self._error_inside(payload, answer)
        return chunk

    def _error_inside(self, payload: bytes, answer: Answer) -> ServiceError | ModelError | Unreached:
        """What an error in a 200 means. Its integer code is a status; without one it is the server's failure."""
        status = refusals.status_inside(payload)
        refusal = read_refusal(status, payload, {}, secret=self._api_key)
        error = error_of(refusal, model=answer.model, has_chat=answer.is_chat)
        if not answer.started and status in refusals.ELSEWHERE and isinstance(error, ServiceError):
            return Unreached(error)
        return error

    async def _document(self, exchange: OpenExchange, answer: Answer) -> EventBatch:
        batch: EventBatch = []
        answer.take(self._decoded(await _whole(exchange, MAX_ANSWER_BYTES), answer), batch)
        batch.append(answer.finish())
        return batch

    async def _late_usage(self, exchange: OpenExchange, splitter: EventSplitter, answer: Answer) -> None:
        """Look for a usage behind the end mark, for a moment."""
        rest: EventBatch = []
        try:
            async with asyncio.timeout(USAGE_WAIT_S):
                while not answer.has_usage and (data := await exchange.read()):
                    for payload in splitter.feed(data):
                        if payload != b"[DONE]":
                            answer.take(decode_chunk(payload), rest)
        except (TimeoutError, PeerGone, NotHttp, msgspec.DecodeError, UpstreamError):
            return

    # What the server takes.

    async def _plan(self, request: GenerationRequest, served_name: str) -> Plan:
        known = await self._know()
        return plan_of(
            request,
            served_name,
            known.dialect,
            context_length=known.context_lengths.get(served_name),
            quirks=self._quirks,
        )

    async def _know(self) -> _Known:
        """The server's own words about itself, asked for once; nothing where it has none."""
        if self._known is None:
            try:
                await self.models()
            except (ServiceError, ModelError):
                return _Known()
        assert self._known is not None
        return self._known

    async def _replan(
        self, plan: Plan, refusal: Refusal, request: GenerationRequest, served_name: str
    ) -> Plan:
        """The call to make after a refusal: without a field that nobody asked for, or with an answer's limit that fits.

        Raises: what the refusal means.
        """
        quirk = None if refusal.status not in (400, 422) else _quirk_in(refusal, plan)
        if quirk is not None and quirk not in self._quirks:
            self._quirks.add(quirk)
            return await self._plan(request, served_name)
        if refusal.is_too_long and refusal.status < 501:
            return await self._fitted(plan, refusal, request, served_name)
        error = error_of(refusal, model=request.model, has_chat=plan.is_chat)
        if refusal.status in refusals.ELSEWHERE and isinstance(error, ServiceError):
            raise Unreached(error)
        raise error

    async def _fitted(
        self, plan: Plan, refusal: Refusal, request: GenerationRequest, served_name: str
    ) -> Plan:
        """A prompt that fits is answered as far as the context goes, whatever `max_tokens` says.

        Raises: ContextLengthExceeded.
        """
        known = self._known or _Known()
        context = refusal.context_length or known.context_lengths.get(served_name)
        prompt_tokens = refusal.prompt_tokens if refusal.is_exact else None
        if prompt_tokens is None or len(request.prompts) > 1:
            try:
                counts = [await self.count_tokens(served_name, prompt) for prompt in request.prompts]
                prompt_tokens = max(counts)
            except (ServiceError, ModelError):
                prompt_tokens = None
        limit = plan.body.get("max_tokens", plan.body.get("max_completion_tokens"))
        if prompt_tokens is not None and context is not None and limit is not None:
            room = context - prompt_tokens
            if 0 < room < limit:
                return plan.with_max_tokens(room)
        raise refusals.too_long(
            refusal, has_chat=plan.is_chat, prompt_tokens=prompt_tokens, context_length=context
        )

    async def _refusal(self, exchange: OpenExchange) -> Refusal:
        status = await exchange.head()
        try:
            body = await _whole(exchange, MAX_REFUSAL_BYTES)
        except UpstreamError:
            body = b""
        return read_refusal(status, body, exchange.headers, secret=self._api_key)

    async def _control(
        self, method: str, path: str, body: bytes, timeout_s: float
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.call(method, path, body)
        except TimeoutError:
            raise BackendTimeout(f"The server did not answer within {timeout_s:g} s") from None

    async def _asked(self, path: str, served_name: str, body: dict[str, Any]) -> dict[str, Any]:
        encoded = msgspec.json.encode(body)
        status, headers, answer = await self._control("POST", path, encoded, COUNT_TIMEOUT_S)
        if status != 200:
            raise self._control_error(status, headers, answer, served_name)
        try:
            said = msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise UpstreamError("The server's answer makes no sense")
        return said

    def _control_error(
        self, status: int, headers: Mapping[bytes, bytes], body: bytes, model: str
    ) -> ServiceError | ModelError:
        refusal = read_refusal(status, body[:MAX_REFUSAL_BYTES], headers, secret=self._api_key)
        return error_of(refusal, model=model, has_chat=True)


class _Call:
    """A generation under way, as far as `abort` must know it."""

    __slots__ = ("_aborted", "_exchange")

    def __init__(self) -> None:
        self._aborted = False
        self._exchange: OpenExchange | None = None

    def attach(self, exchange: OpenExchange) -> None:
        self._exchange = exchange
        if self._aborted:
            self.abort()

    def detach(self) -> None:
        self._exchange = None

    def abort(self) -> None:
        self._aborted = True
        if self._exchange is not None:
            self._exchange.fail(BackendFailed("The request was aborted"))


async def _whole(exchange: OpenExchange, limit_bytes: int) -> bytes:
    """The body. Raises: UpstreamError beyond the limit, PeerGone, NotHttp."""
    parts = []
    size = 0
    while part := await exchange.read():
        parts.append(part)
        size += len(part)
        if size > limit_bytes:
            raise UpstreamError(f"The server's answer is longer than {limit_bytes} bytes")
    return b"".join(parts)


def _root(url: str) -> str:
    """The address without the `/v1` that OpenAI's clients want: `/health` and `/tokenize` stand beside it."""
    return url.rstrip("/").removesuffix("/v1") if not url.startswith("file:") else url


def _context_length(entry: Mapping[str, Any]) -> int | None:
    """vLLM's and SGLang's `max_model_len`, our own `context_length`, llama-server's `meta.n_ctx`."""
    meta = entry.get("meta")
    for value in (
        entry.get("max_model_len"),
        entry.get("context_length"),
        meta.get("n_ctx") if isinstance(meta, dict) else None,
    ):
        if type(value) is int and 0 < value < 1 << 31:
            return value
    return None


def _chat_body(served_name: str, prompt: ChatPrompt) -> dict[str, Any]:
    body: dict[str, Any] = {"model": served_name, "messages": prompt.messages}
    if prompt.tools:
        body["tools"] = prompt.tools
    if prompt.template_kwargs:
        body["chat_template_kwargs"] = prompt.template_kwargs
    if prompt.continue_final_message:
        body["continue_final_message"] = True
    if prompt.continue_final_message or not prompt.add_generation_prompt:
        body["add_generation_prompt"] = False
    return body


def _quirk_in(refusal: Refusal, plan: Plan) -> Quirk | None:
    """The field that we added and the server does not know, if that is what a 400 or 422 is about."""
    said = f"{refusal.param} {refusal.message}"
    body = plan.body
    if body.get("chat_template_kwargs") == INJECTED and (
        "chat_template_kwargs" in said or "enable_thinking" in said
    ):
        return "no_template_kwargs"
    options = body.get("stream_options")
    if options and "continuous_usage_stats" in said:
        return "no_chunk_counts"
    if options and ("stream_options" in said or "include_usage" in said):
        return "no_chunk_counts" if "continuous_usage_stats" in options else "no_usage_option"
    if "max_tokens" in body and plan.is_chat and "max_completion_tokens" in said and not refusal.is_too_long:
        return "max_completion_tokens"
    return None


def _unavailable(message: str) -> BackendUnavailable:
    return BackendUnavailable(message, retry_after_s=RETRY_AFTER_S)
