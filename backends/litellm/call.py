"""One call to a provider: asked again while that is safe, and turned into events as it is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from backends.errors import (
    BackendTimeout,
    ServiceError,
    UnsupportedParameter,
    UpstreamError,
)
from backends.litellm import patience as waits
from backends.litellm import transport, usage
from backends.litellm.chat import Chat
from backends.litellm.choice import Choice
from backends.litellm.deployment import Deployment
from backends.litellm.errors import Translator
from backends.litellm.measure import AnswerTooLong
from backends.litellm.parameters import Part, Plan
from backends.litellm.provenance import Testimony
from backends.litellm.transport import Connection
from backends.litellm.usage import Tokens
from backends.types import EventBatch, Prompt
from models.errors import ModelError

T = TypeVar("T")

USAGE_WAIT_S: Final = 5.0
"""How long a provider may take to report the tokens of an answer that it has finished."""

_NO_ANSWER: Final = frozenset({"text/html", "application/xhtml+xml"})
"""Content types of pages, never of answers. LiteLLM makes an empty answer with a finish reason out of a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Road:
    """What all calls of a process share."""

    sdk: Any
    chat: Chat
    internal: Any
    translator: Translator
    cooldowns: waits.Cooldowns
    patience: waits.Patience


class Call:
    """A part of a request under way. `put` takes its events in order and may hold it up; `deadline` in loop seconds."""

    def __init__(
        self,
        road: Road,
        deployment: Deployment,
        plan: Plan,
        part: Part,
        *,
        prompt: Prompt,
        model: str,
        put: Callable[[EventBatch], Awaitable[None]],
        deadline: float,
    ) -> None:
        self._road = road
        self._deployment = deployment
        self._plan = plan
        self._part = part
        self._prompt = prompt
        self._model = model
        self._put = put
        self._deadline = deadline
        self._passed_on = False
        self._connection = Connection()
        self.tokens: list[Tokens] = []
        self.testimony = Testimony()

    def close(self) -> None:
        """Close the connection, whatever it is doing. The task that runs the call is cancelled by its owner."""
        self._connection.close()

    async def run(self) -> None:
        """Make the call, until it was answered whole.

        Raises: what `errors.Translator` gives, once trying again is over.
        """
        road, label = self._road, self._deployment.label
        road.internal.set(True)
        defaults = set(self._plan.defaults)
        room = await self._room()
        attempt = 0
        while True:
            arguments = {**self._part.own_arguments(), **room}
            for name in self._plan.defaults - defaults:
                del arguments[name]
            road.cooldowns.check(label)
            self._connection = Connection(self._deployment.provider)
            transport.current.set(self._connection)
            self.testimony.sent, self.testimony.retries = arguments, attempt
            try:
                await self._once(arguments)
            except Exception as exc:
                error = road.translator.translate(exc, self._deployment, self._connection, model=self._model)
            else:
                road.cooldowns.succeeded(label)
                return
            finally:
                # An answer that was read to its end has given its connection back already.
                self._connection.close()
            if self._leave_out(error, defaults):
                continue
            road.cooldowns.failed(label, error)
            pause_s = self._pause_s(attempt, error)
            if pause_s is None:
                raise error from None
            await asyncio.sleep(pause_s)
            attempt += 1

    async def _room(self) -> dict[str, int]:
        """No limit means none; a completions endpoint that gets none stops after 16 tokens."""
        limit = self._deployment.context_length
        if not self._part.is_text or limit is None or "max_tokens" in self._part.arguments:
            return {}
        used = await asyncio.to_thread(usage.count_prompt, self._road.sdk, self._deployment, self._prompt)
        return {"max_tokens": max(1, limit - used)}

    def _leave_out(self, error: ServiceError | ModelError, defaults: set[str]) -> bool:
        """Whether the provider refused what only a default asked for; then it is left out, from now on."""
        if self._passed_on or not isinstance(error, UnsupportedParameter) or error.param not in defaults:
            return False
        defaults.discard(error.param)
        self._deployment.unsendable.add(error.param)
        return True

    def _pause_s(self, attempt: int, error: ServiceError | ModelError) -> float | None:
        """How long to wait before the next attempt; None: there is none."""
        is_last = self._passed_on or attempt >= self._road.patience.max_retries
        if is_last or self._connection.exceeded is not None or not waits.is_transient(error):
            return None
        pause_s = waits.delay_s(attempt, error)
        left_s = self._deadline - asyncio.get_running_loop().time()
        return pause_s if pause_s <= min(waits.WAITS_FOR_S, left_s) else None

    async def _once(self, arguments: dict[str, Any]) -> None:
        answer = await self._answer(arguments)
        if self._plan.stream:
            await self._read(answer)
            return
        missing = await self._take(answer, self._part.choices)
        if missing:
            # Some who copied OpenAI's API take `n` and answer with one choice all the same.
            self._deployment.unsendable.add("n")
            del arguments["n"]
        for index in missing:
            await self._take(await self._answer(arguments), (index,))

    async def _answer(self, arguments: Mapping[str, Any]) -> Any:
        every = {
            "model": self._deployment.model,
            "custom_llm_provider": self._deployment.provider,
            # Part of the key of LiteLLM's cache of clients: a time-out per request would make a client per request.
            "timeout": self._road.patience.request_timeout_s,
            "max_retries": 0,
            "num_retries": 0,
            **arguments,
        }
        if self._part.is_text:
            answer = await self._within(self._road.sdk.atext_completion(**every))
        else:
            answer = await self._within(self._road.chat.acompletion(self._deployment, every))
        if self._connection.content_type in _NO_ANSWER:
            raise UpstreamError(f"The provider {self._deployment.provider!r} answered with a page")
        return answer

    # A whole answer.

    async def _take(self, answer: Any, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Pass on the choices of an answer; those that it lacks."""
        choices = list(getattr(answer, "choices", None) or ())
        if not choices:
            raise UpstreamError(f"The provider {self._deployment.provider!r} answered with no choice")
        self.testimony.hear(answer)
        counts = getattr(answer, "usage", None)
        tokens = usage.reported([counts])
        events: EventBatch = []
        said = []
        for index, one in zip(wanted, choices, strict=False):
            choice = self._choice(index)
            count = tokens.completion // len(choices) if tokens is not None else 1
            message = _AsDelta(one.text) if self._part.is_text else one.message
            events += choice.add(message, getattr(one, "logprobs", None), num_tokens=count)
            events += choice.finish(getattr(one, "finish_reason", None), provider=self._deployment.provider)
            said.append(choice.said)
        if tokens is None:
            tokens, counts = await self._estimate(said), None
        hidden = getattr(answer, "_hidden_params", None)
        cost = hidden.get("response_cost") if isinstance(hidden, dict) else None
        if tokens.cost_usd is None and isinstance(cost, int | float) and (cost or self._deployment.is_known):
            tokens.cost_usd = float(cost)
        tokens.cost_usd = usage.price(self._road.sdk, self._deployment, counts, tokens)
        self.tokens.append(tokens)
        self._passed_on = True
        await self._put(events)
        return wanted[len(choices) :]

    # A stream.

    async def _read(self, answer: Any) -> None:
        # The wrapper for text completions turns the chunks of the inner one into another form and drops half of them.
        chunks = answer.completion_stream if self._part.is_text else answer
        choice = self._choice(self._part.choices[0])
        reason: str | None = None
        try:
            while (chunk := await self._within(anext(chunks, None), idle=self._passed_on)) is not None:
                if not chunk.choices:
                    continue
                self._check_stream()
                one = chunk.choices[0]
                if one.finish_reason is not None or not self._passed_on:
                    self.testimony.hear(chunk)
                events = choice.add(one.delta, getattr(one, "logprobs", None))
                if events:
                    self._passed_on = True
                    await self._put(events)
                if choice.stopped:
                    break
                if one.finish_reason is not None:
                    reason = one.finish_reason
                    break
            if not choice.stopped:
                self._check_stream()
                self._check_error()
                reason = reason if self._has_ended(_state_of(chunks)) else None
            events = choice.finish(reason, provider=self._deployment.provider)
            state = _state_of(chunks)
            late = [] if choice.stopped else await self._late_usages(state)
            self.tokens.append(await self._streamed_tokens(state, choice, late))
        finally:
            with contextlib.suppress(Exception):
                await chunks.aclose()
        self._passed_on = True
        await self._put(events)

    def _check_stream(self) -> None:
        """No text after a gap. Raises: UpstreamError for half a JSON, which LiteLLM skips; AnswerTooLong, which it may
        take for the end."""
        if self._connection.exceeded is not None:
            raise AnswerTooLong
        watch = self._connection.watch
        if watch is not None and watch.is_broken:
            provider = self._deployment.provider
            raise UpstreamError(f"The provider {provider!r} sent an event that makes no sense")

    def _check_error(self) -> None:
        """Raises: StreamFailed for an error that LiteLLM took for nothing."""
        watch = self._connection.watch
        if watch is not None and watch.error is not None and not watch.has_finished:
            raise StreamFailed

    def _has_ended(self, state: Any) -> bool:
        """Whether the provider itself ended the answer. LiteLLM takes a connection that closed for a `stop`."""
        watch = self._connection.watch
        if watch is not None and watch.is_openai:
            return watch.has_finished
        return state is None or any(
            getattr(state, name, None)
            for name in ("received_finish_reason", "intermittent_finish_reason", "received_any_finish_reason")
        )

    async def _late_usages(self, state: Any) -> list[Any]:
        """What the provider reports after the finish reason. Read past LiteLLM, which would put all chunks together
        again and count their tokens when its own stream ends. The answer is whole: no failure counts any more."""
        found: list[Any] = []
        with contextlib.suppress(Exception):
            async with asyncio.timeout(USAGE_WAIT_S):
                async for chunk in state.completion_stream:
                    counts = chunk.get("usage") if isinstance(chunk, dict) else getattr(chunk, "usage", None)
                    if counts is not None:
                        found.append(counts)
        return found

    async def _streamed_tokens(self, state: Any, choice: Choice, late: list[Any]) -> Tokens:
        usages = [
            found
            for chunk in getattr(state, "chunks", ())
            if (found := getattr(chunk, "usage", None)) is not None
        ]
        usages += late
        tokens = usage.reported(usages) or await self._estimate([choice.said])
        last = usages[-1] if len(usages) == 1 and not tokens.is_estimated else None
        tokens.cost_usd = usage.price(self._road.sdk, self._deployment, last, tokens)
        return tokens

    async def _estimate(self, said: list[str]) -> Tokens:
        """In a thread: a long prompt takes the tokenizer some time."""
        return await asyncio.to_thread(usage.estimated, self._road.sdk, self._deployment, self._prompt, said)

    def _choice(self, index: int) -> Choice:
        return Choice(index, stops=self._plan.stops, echo=self._part.echo)

    async def _within(self, step: Awaitable[T], *, idle: bool = False) -> T:
        """The result of a step, in what is left of the request's time, and of the gap in a stream.

        Raises: BackendTimeout.
        """
        loop = asyncio.get_running_loop()
        limit = self._deadline
        idle_s = self._road.patience.idle_timeout_s
        is_gap = idle and loop.time() + idle_s < limit
        if is_gap:
            limit = loop.time() + idle_s
        try:
            async with asyncio.timeout_at(limit) as timer:
                return await step
        except TimeoutError:
            if not timer.expired():
                raise
        provider = self._deployment.provider
        if is_gap:
            raise BackendTimeout(f"The provider {provider!r} sent nothing for {idle_s:g} s")
        limit_s = self._road.patience.request_timeout_s
        raise BackendTimeout(f"The provider {provider!r} did not finish within {limit_s:g} s")


class StreamFailed(Exception):
    """The stream holds an error; `Connection.watch` has it."""


class _AsDelta:
    """A text completion's text, where a message is expected."""

    __slots__ = ("content",)

    def __init__(self, content: str | None) -> None:
        self.content = content


def _state_of(chunks: Any) -> Any:
    """LiteLLM's own wrapper, which knows what was received; None if there is none to be found. A text completion's is a
    local variable of a generator within a generator."""
    for _ in range(4):
        frame = getattr(chunks, "ag_frame", None)
        if frame is None:
            break
        chunks = frame.f_locals.get("streamwrapper") or frame.f_locals.get("response")
    return chunks if hasattr(chunks, "completion_stream") else None
