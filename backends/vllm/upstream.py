"""One OpenAI-compatible server: vLLM, SGLang, llama-server, Ollama, TGI, or a cloud.

A request is one HTTP exchange on a kept-alive connection; closing the generator closes the connection, which is how all
of them are told to stop. Every read becomes one batch of events, however many chunks it held.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import msgspec

from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import (
    BackendFailed,
    BackendTimeout,
    InvalidGrammar,
    NotSupported,
    ServiceError,
    UpstreamError,
)
from backends.link import NotHttp, OpenExchange, PeerGone
from backends.pictures import places
from backends.provenance import Provenance
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import ChatPrompt, EventBatch, Finished, GenerationRequest, Prompt, Started, Usage
from backends.vllm import constraints, counting, pooling, refusals, transport
from backends.vllm.answers import Answer
from backends.vllm.listing import Listing, ServedModel
from backends.vllm.provenance import Version, provenance_of
from backends.vllm.reading import read_answer
from backends.vllm.refusals import Refusal, error_of, read_refusal
from backends.vllm.transport import InternalFailure, Transport, Unreached
from backends.vllm.wire import INJECTED, Plan, Quirk, grammar_chars, plan_of
from models.errors import ModelError

MAX_REFUSAL_BYTES: Final = 64 << 10
_INLINE_CHARS: Final = 4096
"""A longer grammar is read in a thread: one of 65,536 characters takes 80 ms."""
HEALTH_TIMEOUT_S: Final = 0.8
CONTROL_TIMEOUT_S: Final = 5.0
COUNT_TIMEOUT_S: Final = 30.0


class Upstream:
    """One server, reached when it is first needed.

    `url`: `http(s)://host:port[/path][/v1]`, `file:///path.sock`, or a callable that gives it then. `api_key` goes with
    every request and into no message. Used from one event loop.
    """

    def __init__(self, url: str | Callable[[], str], *, api_key: str | None = None) -> None:
        self._transport = Transport(url, api_key)
        self._api_key = api_key
        self._calls: dict[str, set[_Call]] = {}
        self._listing: Listing | None = None
        self._quirks: set[Quirk] = set()
        self._running = 0
        self._version = Version()
        self.received = 0
        """Batches of events, of all generations so far."""

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
        try:
            async with aclosing(self._batches(request, served_name, call)) as batches:
                async for batch in batches:
                    self.received += 1
                    last = batch[-1]
                    if request.wants_provenance and type(last) is Finished:
                        told = await self._provenance(request, call.plan)
                        batch[-1] = msgspec.structs.replace(last, provenance=told)
                    yield batch
        finally:
            self._running -= 1
            calls.discard(call)
            if not calls:
                self._calls.pop(request.request_id, None)

    async def _provenance(self, request: GenerationRequest | None, plan: Plan | None) -> Provenance:
        dialect = (await self._known()).dialect
        return provenance_of(dialect, await self._version.of(self._get, dialect), request, plan)

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Raises: TimeoutError, BackendUnavailable, UpstreamError."""
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            status, _, body = await self.call("GET", path, b"")
        return status, body

    async def abort(self, request_id: str) -> None:
        """End a generation: its connection closes, its generator raises BackendFailed. Others are no error."""
        for call in self._calls.get(request_id, ()):
            call.abort()

    def take_back(self, error: Exception) -> None:
        """Let every generation end with `error` for which the server has not answered with so much as a head."""
        for call in [call for calls in self._calls.values() for call in calls]:
            call.take_back(error)

    async def count_tokens(self, served_name: str, prompt: Prompt) -> int:
        """Tokens of a prompt by the server's own tokenizer and template.

        Raises: NotSupported where the server has no such route; BackendUnavailable, BackendTimeout, UpstreamError.
        """

        async def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
            return await self._asked(path, served_name, body)

        return await counting.count_tokens(ask, (await self._known()).dialect, served_name, prompt)

    async def tokenize(self, served_name: str, request: TokenizeRequest) -> Tokens:
        """As `Backend.tokenize`, by the server's own tokenizer and template. Raises: as `count_tokens`."""

        async def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
            return await self._asked(path, served_name, body)

        return await counting.tokenize(ask, (await self._known()).dialect, served_name, request)

    async def detokenize(self, served_name: str, request: DetokenizeRequest) -> str:
        """As `Backend.detokenize`; otherwise as `tokenize`."""

        async def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
            return await self._asked(path, served_name, body)

        return await counting.detokenize(ask, (await self._known()).dialect, served_name, request.token_ids)

    async def embed(self, request: EmbeddingRequest, *, served_name: str) -> Embeddings:
        """As `Backend.embed`. Not bounded in time; cancelling it closes the connection.

        Raises: as `Backend.embed`, BackendUnavailable for a server that produced nothing.
        """

        async def count(prompt: Prompt) -> int:
            return await self.count_tokens(served_name, prompt)

        found = await pooling.embed(self._answering(request.model), count, request, served_name)
        if request.wants_provenance:
            found = msgspec.structs.replace(found, provenance=await self._provenance(None, None))
        return found

    async def rerank(self, request: RerankRequest, *, served_name: str) -> Ranking:
        """As `Backend.rerank`; otherwise as `embed`."""
        return await pooling.rerank(self._answering(request.model), request, served_name)

    def _answering(self, model: str) -> pooling.Ask:
        async def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
            self._running += 1
            try:
                status, headers, answer = await self.call("POST", path, msgspec.json.encode(body))
            finally:
                self._running -= 1
            if status != 200:
                raise self._control_error(status, headers, answer, model)
            return _object_of(answer)

        return ask

    async def models(self) -> list[ServedModel]:
        """What the server lists, without names that cannot be a model's and beyond the first thousand.

        Raises: BackendUnavailable, BackendTimeout, UpstreamError, UpstreamAuthFailed, NotSupported.
        """
        status, headers, body = await self._control("GET", "/v1/models", b"", CONTROL_TIMEOUT_S)
        if status != 200:
            raise self._control_error(status, headers, body, "")
        self._listing = Listing.read(body)
        return list(self._listing.models)

    async def is_healthy(self) -> bool:
        """Whether `ailment` finds nothing."""
        return await self.ailment() is None

    async def ailment(self, *, timeout_s: float | None = None) -> str | None:
        """Why the server can serve nothing, in one sentence, or None: asks `GET /health`, or where it has no such route
        `GET /v1/models`. Below 1 s unless told otherwise, free of charge; never raises."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S if timeout_s is None else timeout_s):
                status, _, _ = await self.call("GET", "/health", b"")
                if status in (404, 405):
                    status, _, _ = await self.call("GET", "/v1/models", b"")
        except TimeoutError:
            return transport.SILENT
        except ServiceError as error:
            return error.message
        if status in (401, 403):
            return "The server refused the key that this service shows it"
        # A server that has neither route can still be asked to generate.
        return None if status in (200, 404, 405) else f"The server is not well (status {status})"

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
        return await self._transport.call(method, path, body)

    async def aclose(self) -> None:
        """End what runs and close every connection. Idempotent."""
        self._transport.close()
        for call in [call for calls in self._calls.values() for call in calls]:
            call.abort()

    # One request: a call, and another one where the server's refusal leaves a way.

    async def _batches(
        self, request: GenerationRequest, served_name: str, call: _Call
    ) -> AsyncGenerator[EventBatch, None]:
        begun = time.monotonic()
        plan = await self._plan(request, served_name)
        while plan is not None:
            call.plan = plan
            exchange = await self._transport.send(
                "POST", plan.path, plan.encode(), request_id=request.request_id, began=call.attach
            )
            answer = Answer(plan, request, begun)
            try:
                if await exchange.head() == 200:
                    async with aclosing(read_answer(exchange, answer, secret=self._api_key)) as batches:
                        async for batch in batches:
                            yield batch
                    return
                refusal = await self._refusal(exchange)
            except InternalFailure as failure:
                raise await self._blamed(failure, request, answer) from None
            except PeerGone:
                raise Unreached(transport.unavailable("The server broke off its answer")) from None
            except NotHttp:
                raise UpstreamError("The server's answer makes no sense") from None
            finally:
                exchange.close(asyncio.get_running_loop().time())
            call.detach()
            call.plan = None
            try:
                plan = await self._replan(plan, refusal, request, served_name)
            except InternalFailure as failure:
                raise await self._blamed(failure, request, answer) from None
        async with aclosing(self._one_by_one(request, served_name, call)) as batches:
            async for batch in batches:
                yield batch

    async def _blamed(
        self, failure: InternalFailure, request: GenerationRequest, answer: Answer
    ) -> ServiceError:
        """A server that is well and yet fails over an answer that a grammar confines, before its first token, could not
        use that grammar: vLLM compiles it when it needs it, and of one that allows nothing (a rule of nothing but
        itself) it says no more than 500."""
        param = _constraint_of(request)
        if param is None or answer.has_content or await self.ailment() is not None:
            return failure.error
        return InvalidGrammar(f"The server can make no answer that {param!r} allows", param=param)

    async def _plan(self, request: GenerationRequest, served_name: str) -> Plan | None:
        """None: one call per prompt."""
        listing = await self._known()
        if listing.dialect.counts_first_only and len(request.prompts) > 1:
            return None
        plan = partial(
            plan_of,
            request,
            served_name,
            listing.dialect,
            context_length=listing.context_lengths.get(served_name),
            quirks=self._quirks,
        )
        return plan() if grammar_chars(request) <= _INLINE_CHARS else await asyncio.to_thread(plan)

    async def _known(self) -> Listing:
        """The server's own words about itself, asked for once; nothing where it has none."""
        if self._listing is None:
            try:
                await self.models()
            except NotSupported:
                self._listing = Listing()
            except (ServiceError, ModelError):
                return Listing()
        assert self._listing is not None
        return self._listing

    async def _replan(
        self, plan: Plan, refusal: Refusal, request: GenerationRequest, served_name: str
    ) -> Plan | None:
        """The call to make after a refusal: without a field that nobody asked for, or with an answer's limit that fits.
        None: one call per prompt.

        Raises: what the refusal means, InternalFailure for a status of 500.
        """
        quirk = _quirk_in(refusal, plan) if refusal.status in (400, 422) else None
        if quirk is not None and quirk not in self._quirks:
            self._quirks.add(quirk)
            return await self._plan(request, served_name)
        if refusal.is_too_long and refusal.status < 501:
            return await self._fitted(plan, refusal, request, served_name)
        pictures = places(request.prompts[0].messages) if isinstance(request.prompts[0], ChatPrompt) else ()
        error = error_of(refusal, model=request.model, has_chat=plan.is_chat, pictures=pictures)
        error = refusals.about(_constraint_of(request), error)
        if refusal.status in refusals.ELSEWHERE and isinstance(error, ServiceError):
            raise Unreached(error)
        if refusal.status == 500 and isinstance(error, ServiceError):
            raise InternalFailure(error)
        raise error

    async def _fitted(
        self, plan: Plan, refusal: Refusal, request: GenerationRequest, served_name: str
    ) -> Plan | None:
        """A prompt that fits is answered as far as the context goes, whatever `max_tokens` says.

        Raises: ContextLengthExceeded.
        """
        context = refusal.context_length or (await self._known()).context_lengths.get(served_name)
        longest = refusal.prompt_tokens if refusal.is_exact else None
        if longest is None or len(request.prompts) > 1:
            try:
                longest = max([await self.count_tokens(served_name, prompt) for prompt in request.prompts])
            except (ServiceError, ModelError):
                longest = None
        limit = plan.limit
        if (
            longest is not None
            and context is not None
            and limit is not None
            and 0 < context - longest < limit
        ):
            return plan.with_limit(context - longest) if len(request.prompts) == 1 else None
        raise refusals.too_long(refusal, has_chat=plan.is_chat, prompt_tokens=longest, context_length=context)

    async def _one_by_one(
        self, request: GenerationRequest, served_name: str, call: _Call
    ) -> AsyncGenerator[EventBatch, None]:
        """A list of prompts that all have room for an answer, though not for the one asked for: call after call."""
        prompt_tokens = completion_tokens = cached_tokens = 0
        is_estimated = False
        begun, first = time.monotonic(), 0.0
        for number, prompt in enumerate(request.prompts):
            part = msgspec.structs.replace(request, prompts=(prompt,))
            async with aclosing(self._batches(part, served_name, call)) as batches:
                async for batch in batches:
                    first = first or time.monotonic()
                    events: EventBatch = []
                    for event in batch:
                        if isinstance(event, Finished):
                            used = event.usage
                            prompt_tokens += used.prompt_tokens
                            completion_tokens += used.completion_tokens
                            cached_tokens += used.cached_tokens
                            is_estimated = is_estimated or used.is_estimated
                        elif isinstance(event, Started):
                            events += [event] if number == 0 else []
                        else:
                            events.append(
                                msgspec.structs.replace(event, index=event.index + number * request.n)
                            )
                    if events:
                        yield events
        call.plan = None  # one of several
        usage = Usage(prompt_tokens, completion_tokens, cached_tokens, is_estimated=is_estimated)
        yield [Finished(usage, 0.0, (first - begun) * 1000, (time.monotonic() - first) * 1000)]

    async def _refusal(self, exchange: OpenExchange) -> Refusal:
        status = await exchange.head()
        try:
            body = await transport.whole(exchange, MAX_REFUSAL_BYTES)
        except UpstreamError:
            body = b""
        return read_refusal(status, body, exchange.headers, secret=self._api_key)

    # The other routes.

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
        return _object_of(answer)

    def _control_error(
        self, status: int, headers: Mapping[bytes, bytes], body: bytes, model: str
    ) -> ServiceError | ModelError:
        refusal = read_refusal(status, body[:MAX_REFUSAL_BYTES], headers, secret=self._api_key)
        return error_of(refusal, model=model, has_chat=True)


def _constraint_of(request: GenerationRequest) -> str | None:
    """The field that confines the whole answer, if there is one."""
    if request.structured_outputs is not None:
        return f"{constraints.PARAM}.{constraints.constraint_in(request.structured_outputs)}"
    given = {
        "response_format": request.response_format,
        "grammar": request.sampling.grammar,
        "tools": request.tool_choice if request.tool_choice not in ("auto", "none") else None,
    }
    return next((name for name, value in given.items() if value is not None), None)


def _object_of(answer: bytes) -> dict[str, Any]:
    """Raises: UpstreamError for what is no JSON object."""
    try:
        said = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise UpstreamError("The server's answer makes no sense")
    return said


class _Call:
    """A generation under way, as far as `abort` must know it, and a receipt."""

    __slots__ = ("_aborted", "_exchange", "plan")

    def __init__(self) -> None:
        self.plan: Plan | None = None
        """What the server was asked; None between two calls, and after several."""
        self._aborted = False
        self._exchange: OpenExchange | None = None

    def attach(self, exchange: OpenExchange) -> None:
        self._exchange = exchange
        if self._aborted:
            self.abort()

    def detach(self) -> None:
        self._exchange = None

    def take_back(self, error: Exception) -> None:
        if self._exchange is not None and not self._exchange.accepted:
            self._exchange.fail(error)

    def abort(self) -> None:
        self._aborted = True
        if self._exchange is not None:
            self._exchange.fail(BackendFailed("The request was aborted"))


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
