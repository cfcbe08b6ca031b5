"""A model that echoes: no weights, real tokens, real waiting, real slots."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from typing_extensions import override

from backends.clock import Clock
from backends.errors import BackendFailed, ContextLengthExceeded, UnsupportedParameter
from backends.fake import tokens
from backends.fake.intent import Intent, intent_of
from backends.fake.provenance import provenance_of
from backends.fake.sequence import Answer, Sequence
from backends.loader import LoadedModel
from backends.tokenizing import TokenizeRequest, Tokens
from backends.types import (
    ChatPrompt,
    EventBatch,
    Finished,
    FinishReason,
    GenerationRequest,
    Prompt,
    Started,
    TextPrompt,
    TokenPrompt,
    Usage,
)

STEPS_BETWEEN_PAUSES = 256
"""Steps that a generation without waiting takes before it lets the event loop serve the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeScript:
    """How one fake model behaves. Times in seconds."""

    ttft_s: float = 0.0
    """From the slot to the first token."""
    itl_s: float = 0.0
    """Between tokens. 0: a stream brings one token per batch as fast as it is read."""
    reply: str | None = None
    """What it says, whatever it is asked; None echoes."""
    num_tokens: int | None = None
    """Length of every answer, by repeating what it says; None says it once."""
    context_length: int = 8192
    num_slots: int | None = None
    """Requests that run at once, the others wait in order; None: all."""
    load_s: float = 0.0
    memory_bytes: int = 0
    load_error: str | None = None
    """Loading ends with UnusableModel and this message."""


class FakeModel(LoadedModel):
    """Says its script's reply, or the prompt's text, once.

    It has one continuation per prompt: temperature, penalties and seed change nothing, all `n` choices are
    equal. `ignore_eos`, `min_tokens` and a script's `num_tokens` repeat the text, unless it meets a schema. What would
    need a distribution over tokens (`logit_bias`, `grammar`) is refused. Tools, reasoning, schemas: `intent`.
    """

    def __init__(self, card_id: str, script: FakeScript, clock: Clock) -> None:
        self.card_id = card_id
        self.context_length = script.context_length
        self.memory_bytes = script.memory_bytes
        self._script = script
        self._clock = clock
        self._runs: set[_Run] = set()
        self._queue: deque[_Run] = deque()
        self._running = 0
        self._closed = False

    @property
    @override
    def running(self) -> int:
        return self._running

    @property
    @override
    def waiting(self) -> int:
        return len(self._queue)

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        self._check_prompt(prompt)
        return tokens.count(prompt)

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """Of a conversation only how many there are: what stands around its messages has no text."""
        prompt = request.prompt
        self._check_prompt(prompt)
        if isinstance(prompt, TextPrompt):
            words = tuple(tokens.split(prompt.text))
            ids = tuple(map(tokens.token_id, words))
            return Tokens(len(ids), ids, words if request.with_strings else None, self.context_length)
        if request.with_strings:
            raise UnsupportedParameter("The fake backend tells no tokens of this", param="return_token_strs")
        return Tokens(tokens.count(prompt), context_length=self.context_length, is_estimated=True)

    @override
    async def abort(self, request_id: str) -> None:
        for run in self._runs:
            if run.request_id == request_id:
                run.end("The request was aborted")

    @override
    async def aclose(self) -> None:
        self._closed = True
        for run in self._runs:
            run.end("The model was unloaded")

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        self._check(request)
        counts = [tokens.count(prompt) for prompt in request.prompts]
        for prompt, size in zip(request.prompts, counts, strict=True):
            if size >= self.context_length:
                raise ContextLengthExceeded(
                    prompt_tokens=size,
                    context_length=self.context_length,
                    param="messages" if isinstance(prompt, ChatPrompt) else "prompt",
                )
        choices = [
            Sequence(p * request.n + i, self._answer(prompt, size, request), prompt, request)
            for p, (prompt, size) in enumerate(zip(request.prompts, counts, strict=True))
            for i in range(request.n)
        ]
        accepted = self._clock.now()
        async with self._slot(request.request_id) as run:
            started = self._clock.now()
            queue_ms = (started - accepted) * 1000
            batch: EventBatch = [Started(queue_ms, sum(counts))]
            await run.wait(self._script.ttft_s)
            first = self._clock.now()
            active, steps = choices, 0
            while active:
                for _ in range(self._steps_due(steps, first, stream=request.stream)):
                    for choice in active:
                        choice.step(batch)
                    active = [choice for choice in active if not choice.finished]
                    steps += 1
                    if not active:
                        break
                if request.stream and active:
                    yield batch
                    batch = []
                if active:
                    due = first + steps * self._script.itl_s
                    await run.wait(max(0.0, due - self._clock.now()) if self._script.itl_s else 0.0)
            usage = Usage(
                sum(counts),
                sum(choice.sampled for choice in choices),
                reasoning_tokens=sum(choice.thought for choice in choices),
            )
            done = self._clock.now()
            times = (queue_ms, (first - started) * 1000, (done - first) * 1000)
            told = provenance_of(self.context_length) if request.wants_provenance else None
            batch.append(Finished(usage, *times, told))
            yield batch

    def _steps_due(self, taken: int, first: float, *, stream: bool) -> int:
        """Steps to take now: a reader that comes late finds all that became ready meanwhile."""
        if self._script.itl_s:
            return max(1, int((self._clock.now() - first) / self._script.itl_s) + 1 - taken)
        return 1 if stream else STEPS_BETWEEN_PAUSES

    def _answer(self, prompt: Prompt, size: int, request: GenerationRequest) -> Answer:
        intent, sampling = intent_of(prompt, request), request.sampling
        before = len(intent.thoughts) + sum(call.num_tokens for call in intent.calls)
        room = self.context_length - size
        limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        said, wanted = self._said(prompt, intent)
        if wanted is not None:
            wanted += before
        if not intent.is_fixed and sampling.ignore_eos:
            wanted = None
        elif not intent.is_fixed and wanted is not None and wanted < sampling.min_tokens:
            wanted = sampling.min_tokens
        if wanted is not None and wanted <= limit:
            # An end of turn that falls together with the limit was not sampled any more: `length`, as in an
            # engine.
            end: FinishReason = "tool_calls" if intent.calls else "stop"
            return Answer(intent, said, wanted, end if wanted < limit else "length")
        return Answer(intent, said, limit, "length")

    def _said(self, prompt: Prompt, intent: Intent) -> tuple[list[str], int | None]:
        """The text's tokens (repeated as often as it takes), and how many it has."""
        if intent.said is not None or intent.calls:
            said = intent.said or []
            return said, 0 if intent.calls else len(said)
        said = tokens.split(tokens.text_of(prompt) if self._script.reply is None else self._script.reply)
        return said or [" fake"], len(said) if self._script.num_tokens is None else self._script.num_tokens

    def _check(self, request: GenerationRequest) -> None:
        sampling = request.sampling
        for name in ("grammar", "logit_bias"):
            if getattr(sampling, name):
                raise UnsupportedParameter(f"The fake backend cannot honour {name!r}", param=name)
        for prompt in request.prompts:
            self._check_prompt(prompt)
        tokens.check_ids(sampling.stop_token_ids, "stop_token_ids")

    def _check_prompt(self, prompt: Prompt) -> None:
        if isinstance(prompt, TokenPrompt):
            tokens.check_ids(prompt.token_ids, "prompt")

    @asynccontextmanager
    async def _slot(self, request_id: str) -> AsyncIterator[_Run]:
        """A running request's place; waits in order of arrival. Raises: BackendFailed when aborted."""
        if self._closed:
            raise BackendFailed("The model was unloaded")
        run = _Run(request_id, self._clock)
        self._runs.add(run)
        try:
            if self._script.num_slots is None or self._running < self._script.num_slots:
                self._running += 1
            else:
                self._queue.append(run)
                await self._turn(run)
            try:
                yield run
            finally:
                self._release()
        finally:
            self._runs.discard(run)

    async def _turn(self, run: _Run) -> None:
        try:
            await run.turn()
        except BaseException:
            if run in self._queue:
                self._queue.remove(run)
            else:
                self._release()  # the slot was handed over at the same moment
            raise

    def _release(self) -> None:
        """Give the slot to the next in the queue, or free it."""
        if self._queue:
            self._queue.popleft().grant()
        else:
            self._running -= 1


class _Run:
    """One request inside the model: what it waits for, and how it is told to end."""

    def __init__(self, request_id: str, clock: Clock) -> None:
        self.request_id = request_id
        self._clock = clock
        self._why: str | None = None
        self._signal: asyncio.Future[None] | None = None

    def end(self, why: str) -> None:
        """The generator raises BackendFailed where it waits, or where it next does."""
        self._why = why
        self.grant()

    def grant(self) -> None:
        if self._signal is not None and not self._signal.done():
            self._signal.set_result(None)

    async def turn(self) -> None:
        self._signal = asyncio.get_running_loop().create_future()
        await self._signal
        self._signal = None
        self._check()

    async def wait(self, seconds: float) -> None:
        self._check()
        if seconds <= 0:
            await asyncio.sleep(0)
        else:
            self._signal = asyncio.get_running_loop().create_future()
            sleep = asyncio.ensure_future(self._clock.sleep(seconds))
            try:
                await asyncio.wait({sleep, self._signal}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleep.cancel()
                self._signal = None
        self._check()

    def _check(self) -> None:
        if self._why is not None:
            raise BackendFailed(self._why)
