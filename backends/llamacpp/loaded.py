"""A GGUF model with its engine: the event loop's side of the engine's thread."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from typing_extensions import override

from backends import codec
from backends.errors import (
    BackendFailed,
    ContextLengthExceeded,
    InvalidParameter,
    ServiceError,
    UnsupportedParameter,
)
from backends.llamacpp.constraint import Constraint, ConstraintCompiler
from backends.llamacpp.constraint_source import source_of
from backends.llamacpp.conversation import Manner, manner_of, told
from backends.llamacpp.engine import Engine, EngineConfig
from backends.llamacpp.job import Delivery, Job
from backends.llamacpp.model import GgufModel
from backends.llamacpp.provenance import SHARED, Witness
from backends.llamacpp.reading import Reading, told_again
from backends.llamacpp.sampler import check_token_ids, draw_seed
from backends.llamacpp.template import ChatTemplate
from backends.loader import LoadedModel
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import (
    ChatPrompt,
    Event,
    EventBatch,
    Finished,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)

T = TypeVar("T")

_INLINE_BYTES = 4096
"""Requests whose prompts have up to this size together are rendered and tokenised on the event loop (well under 1 ms);
larger ones in a thread."""


class Inbox:
    """Events of one job between two visits of its reader. Used on the event loop only."""

    __slots__ = ("_error", "_events", "_waiter")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._error: ServiceError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, events: list[Event], error: ServiceError | None) -> None:
        self._events.extend(events)
        self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Event]:
        """Everything since the last call, at least one event. Raises the job's error after its events."""
        while not self._events:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events = self._events, []
        return events


class LlamaCppModel(LoadedModel):
    """Made by `LlamaCppLoader`; owns the weights and the engine."""

    def __init__(
        self,
        card_id: str,
        model: GgufModel,
        template: ChatTemplate | None,
        config: EngineConfig,
        *,
        memory_bytes: int,
        loop: asyncio.AbstractEventLoop,
        witness: Witness | None = None,
    ) -> None:
        """May run in another thread than `loop`'s. `witness` None: nothing is told of where answers come from.

        Raises: InsufficientMemory.
        """
        self.card_id = card_id
        self.context_length = config.context_length
        self.memory_bytes = memory_bytes
        self._model = model
        self._template = template
        self._loop = loop
        self._witness = witness
        self._jobs: dict[str, set[Job]] = {}
        self._constraints = ConstraintCompiler(model)
        self._trying = asyncio.Lock()
        """Whose constraint has to be tried first waits here for his turn, and takes no thread from others."""
        self._engine = Engine(model, config, self._deliver)
        self._in_threads: set[asyncio.Future[Any]] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    @override
    def running(self) -> int:
        return self._engine.num_running

    @property
    @override
    def waiting(self) -> int:
        return self._engine.num_waiting

    @property
    @override
    def failure(self) -> str | None:
        return self._engine.failure

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        inbox = Inbox()
        witness = self._witness if request.wants_provenance else None
        if witness is not None:
            witness.begin()
        request = told(request, self._template)
        job, manner = await self._job(request, inbox)
        copies = request.n if job.n < request.n else 1
        reading = Reading(manner.grammar, len(job.prompts) * job.n) if manner is not None else None
        self._jobs.setdefault(request.request_id, set()).add(job)
        self._engine.submit(job)
        is_over = False
        try:
            while not is_over:
                events = await inbox.take()
                last = events[-1]
                is_over = type(last) is Finished
                if is_over and witness is not None:
                    why_not = None if self._engine.is_exact else SHARED
                    found = await witness.testify(job.prompts, job.params, why_not=why_not)
                    events[-1] = msgspec.structs.replace(last, provenance=found)
                if reading is not None:
                    events = reading.read(events)
                if copies > 1:
                    events = told_again(events, copies, manner.grammar if manner is not None else None)
                if events:
                    yield events
        except ServiceError:
            is_over = True
            raise
        finally:
            if not is_over:
                self._engine.abort(job)
            same_id = self._jobs[request.request_id]
            same_id.discard(job)
            if not same_id:
                del self._jobs[request.request_id]

    async def _job(self, request: GenerationRequest, inbox: Inbox) -> tuple[Job, Manner | None]:
        """Everything that can be wrong with a request is found here, before the engine hears of it. Besides the job,
        how its texts are read; None: as they are."""
        params = request.sampling
        check_token_ids(params, self._model.num_vocab_tokens)
        if request.echo and params.logprobs is not None:
            raise UnsupportedParameter("logprobs: not available for an echoed prompt", param="logprobs")
        prompts, echoes = await self._read(request.prompts, self._read_request, request)
        manner = self._manner(request, prompts[0])
        is_greedy = params.temperature == 0
        job = Job(
            params=params,
            prompts=prompts,
            echoes=echoes,
            # Greedy choices are equal by definition: one is computed and told n times.
            n=1 if is_greedy else request.n,
            seed=draw_seed() if params.seed is None else params.seed,
            # Which tokens were thoughts can be told only while they come one by one.
            is_streaming=request.stream or (manner is not None and manner.grammar.thoughts is not None),
            must_repeat=is_greedy or params.seed is not None,
            accepted_at=time.monotonic(),
            receive=inbox.put,
            shown=manner.shown if manner is not None else {},
            constraint=await self._constraint(request, manner),
        )
        return job, manner

    async def _constraint(self, request: GenerationRequest, manner: Manner | None) -> Constraint | None:
        source = source_of(request)
        if manner is not None:
            source = replace(source, around=manner.around) if source is not None else manner.source
        if source is None:
            return None
        made = self._constraints.kept(source)
        if made is not None:
            return made
        if source.is_plain:
            return await self._in_thread(self._constraints.compile, source)
        async with self._trying:
            return await self._in_thread(self._constraints.compile, source)

    def _manner(self, request: GenerationRequest, tokens: list[int]) -> Manner | None:
        if self._template is None:
            return None
        return manner_of(request, request.prompts[0], tokens, self._template, self._model)

    async def _read(self, prompts: tuple[Prompt, ...], work: Callable[..., T], *args: object) -> T:
        """`work(*args)`, which reads the prompts: here where they are short, in a thread where it would hold up the
        streams of others. Their size in msgpack counts everything a template may print, tool calls included."""
        if len(codec.encode_body(prompts)) > _INLINE_BYTES:
            return await self._in_thread(work, *args)
        self._check_open()
        return work(*args)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        """Like asyncio.to_thread, and `aclose` knows of it: the weights stay until the thread is done with them, also
        when nobody waits for its result any more."""
        self._check_open()
        running: asyncio.Future[T] = asyncio.ensure_future(asyncio.to_thread(work, *args))
        self._in_threads.add(running)
        running.add_done_callback(self._in_threads.discard)
        result = await asyncio.shield(running)
        self._check_open()
        return result

    def _check_open(self) -> None:
        if self._closing is not None:
            raise BackendFailed("The model was unloaded before the request was complete")

    def _read_request(self, request: GenerationRequest) -> tuple[list[list[int]], list[str]]:
        prompts: list[list[int]] = []
        echoes: list[str] = []
        for prompt in request.prompts:
            tokens = self._tokenize(prompt)
            param = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
            if not tokens:
                raise InvalidParameter("prompt: it holds no token", param=param)
            if len(tokens) >= self.context_length:
                raise ContextLengthExceeded(
                    prompt_tokens=len(tokens), context_length=self.context_length, param=param
                )
            prompts.append(tokens)
            echoes.append(self._echo(prompt, tokens) if request.echo else "")
        return prompts, echoes

    def _tokenize(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, ChatPrompt):
            return self._model.tokenize_rendered(self._rendered(prompt))
        if isinstance(prompt, TextPrompt):
            return self._model.tokenize(prompt.text, add_special=True, parse_special=True) or self._bos()
        self._model.check_ids(prompt.token_ids, "prompt")
        return list(prompt.token_ids)

    def _rendered(self, prompt: ChatPrompt) -> str:
        if self._template is None:
            raise UnsupportedParameter(
                f"The model {self.card_id!r} has no chat template; use /v1/completions", param="messages"
            )
        return self._template.render(prompt)

    def _bos(self) -> list[int]:
        """What an empty text stands for: the beginning of one."""
        bos = self._model.text_of_special("bos")
        return self._model.tokenize(bos, add_special=False, parse_special=True) if bos else []

    def _echo(self, prompt: Prompt, tokens: list[int]) -> str:
        if isinstance(prompt, TextPrompt):
            return prompt.text
        return b"".join(map(self._model.printable_piece, tokens)).decode("utf-8", "replace")

    @override
    async def abort(self, request_id: str) -> None:
        for job in self._jobs.get(request_id, ()):
            self._engine.abort(job)

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return len(await self._read((prompt,), self._tokenize, prompt))

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        ids, strings = await self._read((request.prompt,), self._tokens_of, request)
        return Tokens(len(ids), tuple(ids), strings, self.context_length)

    def _tokens_of(self, request: TokenizeRequest) -> tuple[list[int], tuple[str, ...] | None]:
        prompt, add_special = request.prompt, request.add_special_tokens
        if add_special is None or isinstance(prompt, TokenPrompt):
            ids = self._tokenize(prompt)
        else:
            text = self._rendered(prompt) if isinstance(prompt, ChatPrompt) else prompt.text
            ids = self._model.tokenize(text, add_special=add_special, parse_special=True)
        return ids, tuple(map(self._model.vocabulary_text, ids)) if request.with_strings else None

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        self._model.check_ids(request.token_ids, "tokens")
        if len(request.token_ids) > _INLINE_BYTES:
            return await self._in_thread(self._model.detokenize, request.token_ids)
        self._check_open()
        return self._model.detokenize(request.token_ids)

    @override
    async def aclose(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._in_threads:
            await asyncio.wait(self._in_threads)
        await asyncio.to_thread(self._free)

    def _free(self) -> None:
        if self._witness is not None:
            self._witness.close()
        self._engine.close()
        self._constraints.close()
        self._model.close()
        if sys.platform == "linux":
            # glibc keeps freed arenas; the operator who unloads a model wants to see its memory come back.
            ctypes.CDLL(None).malloc_trim(0)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_dispatch, deliveries)


def _dispatch(deliveries: list[Delivery]) -> None:
    for job, events, error in deliveries:
        job.receive(events, error)
