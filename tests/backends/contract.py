"""What every backend must show, whatever makes its tokens. `tests/backends/test_*_backend.py` subclass it.

A subclass provides two fixtures: `backend`, started and not yet used, closed by the fixture; and `model`,
the id of a card that it can load, with a context of a few hundred to a few thousand tokens (a test fills
it). Nothing in here may depend on what the model says, only on what the backend makes of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest

from backends.base import Backend
from backends.errors import BackendError, BackendFailed, ContextLengthExceeded, InvalidParameter, NotSupported
from backends.loader import LoadedModel
from backends.types import (
    ChatPrompt,
    ChoiceFinished,
    Event,
    Finished,
    GenerationRequest,
    ModelStatus,
    Prompt,
    SamplingParams,
    Started,
    TextDelta,
    TextPrompt,
    TokenLogprobs,
    TokenPrompt,
    ToolCallDelta,
)
from models.errors import UnknownModel

PROMPT = TextPrompt(text="The quick brown fox jumps over the lazy dog and runs into the dark forest")
CHAT = ChatPrompt(
    messages=[
        {"role": "system", "content": "You answer in one sentence."},
        {"role": "user", "content": "Tell me what a river is and where it ends, please."},
    ]
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""A schema that one text meets, whatever the model."""
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"Get the {name}", "parameters": CITY}}
    for name in ("weather", "time")
]
PATIENCE_S = 50.0

_ids = count()


def request(model: str, prompt: Prompt | Sequence[Prompt] = PROMPT, **fields: Any) -> GenerationRequest:
    """Greedy, 12 tokens unless told otherwise. Fields of SamplingParams and of GenerationRequest may be
    mixed."""
    outer = {k: fields.pop(k) for k in GenerationRequest.__struct_fields__ if k in fields}
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **fields})
    prompts = tuple(prompt) if isinstance(prompt, list | tuple) else (prompt,)
    return GenerationRequest(
        **{"request_id": f"r{next(_ids)}", "model": model, "prompts": prompts, "sampling": sampling, **outer}
    )


def endless(model: str, **fields: Any) -> GenerationRequest:
    """A request that streams until somebody ends it (or the context does)."""
    return request(model, **{"max_tokens": None, "ignore_eos": True, "stream": True, **fields})


async def events_of(
    backend: Backend | LoadedModel, wanted: GenerationRequest, *, patience_s: float = PATIENCE_S
) -> list[Event]:
    async with asyncio.timeout(patience_s), aclosing(backend.generate(wanted)) as batches:
        return [event async for batch in batches for event in batch]


def text_of(events: Sequence[Event], index: int = 0) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta) and e.index == index)


def calls_of(events: Sequence[Event], index: int = 0) -> list[list[ToolCallDelta]]:
    """The deltas of one choice's tool calls, call by call."""
    deltas = [e for e in events if isinstance(e, ToolCallDelta) and e.index == index]
    number = max((delta.call_index for delta in deltas), default=-1) + 1
    return [[delta for delta in deltas if delta.call_index == i] for i in range(number)]


def endings_of(events: Sequence[Event]) -> dict[int, ChoiceFinished]:
    return {e.index: e for e in events if isinstance(e, ChoiceFinished)}


def finished_of(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def logprobs_of(events: Sequence[Event]) -> list[TokenLogprobs]:
    return [entry for e in events if isinstance(e, TextDelta | ChoiceFinished) for entry in e.logprobs or ()]


async def status_of(backend: Backend, model: str) -> ModelStatus | None:
    return next((m for m in (await backend.health()).models if m.id == model), None)


async def until(condition: Callable[[], Awaitable[bool]], patience_s: float = 5.0) -> None:
    """Poll: what is waited for happens in another thread or process."""
    async with asyncio.timeout(patience_s):
        while not await condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


async def until_idle(backend: Backend, model: str) -> None:
    async def idle() -> bool:
        status = await status_of(backend, model)
        return status is None or status.running == status.waiting == 0

    await until(idle)


@asynccontextmanager
async def streaming(backend: Backend, wanted: GenerationRequest) -> AsyncIterator[Any]:
    """The generator of a request whose first text has arrived."""
    async with asyncio.timeout(PATIENCE_S), aclosing(backend.generate(wanted)) as batches:
        async for batch in batches:
            if any(isinstance(event, TextDelta) for event in batch):
                break
        yield batches


async def load(backend: Backend, model: str) -> list[str]:
    async with asyncio.timeout(PATIENCE_S), aclosing(backend.load(model)) as steps:
        return [step.phase async for step in steps]


async def filling(backend: Backend, model: str, room_left: int) -> tuple[TextPrompt, int, int]:
    """A prompt that leaves about `room_left` tokens (negative: too long by so many), its size and the
    context's."""
    with suppress(NotSupported):
        await load(backend, model)
    status = await status_of(backend, model)
    assert status is not None
    assert status.context_length is not None
    context = status.context_length
    words = 1
    while await backend.count_tokens(model, TextPrompt(text=" word" * words)) < context - room_left:
        words += max(1, context // 64)
    while (
        words > 1
        and await backend.count_tokens(model, TextPrompt(text=" word" * words)) > context - room_left
    ):
        words -= 1
    if room_left <= 0:
        words += 1
    prompt = TextPrompt(text=" word" * words)
    return prompt, await backend.count_tokens(model, prompt), context


class BackendContract:
    async def test_events_begin_with_started_and_end_with_one_finished(self, backend: Backend, model: str):
        events = await events_of(backend, request(model, stream=True))

        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
        assert sum(isinstance(e, Started | Finished) for e in events) == 2

    async def test_every_choice_ends_once_and_after_its_last_text(self, backend: Backend, model: str):
        events = await events_of(backend, request(model, n=3, stream=True))

        for index in range(3):
            of_choice = [e for e in events if isinstance(e, TextDelta | ChoiceFinished) and e.index == index]
            assert [isinstance(e, ChoiceFinished) for e in of_choice].count(True) == 1
            assert isinstance(of_choice[-1], ChoiceFinished)

    async def test_no_batch_and_no_piece_of_text_is_empty(self, backend: Backend, model: str):
        async with aclosing(backend.generate(request(model, stream=True))) as generator:
            batches = [batch async for batch in generator]

        assert all(batches)
        assert all(e.text for batch in batches for e in batch if isinstance(e, TextDelta))

    async def test_nothing_happens_before_the_first_step_of_the_generator(self, backend: Backend, model: str):
        generator = backend.generate(request("no-such-model"))

        await generator.aclose()

    async def test_queue_prefill_and_decode_times_are_not_negative(self, backend: Backend, model: str):
        finished = finished_of(await events_of(backend, request(model)))

        assert min(finished.queue_ms, finished.prefill_ms, finished.decode_ms) >= 0

    async def test_the_text_of_a_stream_is_the_text_without_stream(self, backend: Backend, model: str):
        plain = await events_of(backend, request(model, CHAT))
        streamed = await events_of(backend, request(model, CHAT, stream=True))

        assert text_of(plain) == text_of(streamed) != ""
        assert finished_of(plain).usage.completion_tokens == finished_of(streamed).usage.completion_tokens

    async def test_prompt_tokens_are_those_that_count_tokens_gives(self, backend: Backend, model: str):
        counted = await backend.count_tokens(model, CHAT)
        events = await events_of(backend, request(model, CHAT))

        assert isinstance(events[0], Started)
        assert events[0].prompt_tokens == finished_of(events).usage.prompt_tokens == counted > 0

    async def test_a_template_counts_more_than_its_text(self, backend: Backend, model: str):
        text = "hello there"
        chat = ChatPrompt(messages=[{"role": "user", "content": text}])

        assert await backend.count_tokens(model, chat) > await backend.count_tokens(
            model, TextPrompt(text=text)
        )

    async def test_max_tokens_is_exact_and_ends_with_length(self, backend: Backend, model: str):
        events = await events_of(backend, request(model, max_tokens=5, ignore_eos=True))

        assert finished_of(events).usage.completion_tokens == 5
        assert endings_of(events)[0].finish_reason == "length"

    async def test_one_token_may_be_asked_for(self, backend: Backend, model: str):
        events = await events_of(backend, request(model, max_tokens=1, ignore_eos=True, stream=True))

        assert finished_of(events).usage.completion_tokens == 1
        assert sum(e.num_tokens for e in events if isinstance(e, TextDelta)) <= 1

    async def test_min_tokens_overrides_a_stop(self, backend: Backend, model: str):
        text = text_of(await events_of(backend, request(model, ignore_eos=True)))
        events = await events_of(backend, request(model, ignore_eos=True, min_tokens=6, stop=(text[:2],)))

        assert finished_of(events).usage.completion_tokens >= 6

    async def test_greedy_choices_are_equal_whatever_the_seed(self, backend: Backend, model: str):
        events = await events_of(backend, request(model, n=2, seed=7))
        again = await events_of(backend, request(model, seed=8))

        assert text_of(events, 0) == text_of(events, 1) == text_of(again)

    async def test_one_seed_gives_one_text(self, backend: Backend, model: str):
        wanted = {"temperature": 1.0, "seed": 1234}

        assert text_of(await events_of(backend, request(model, **wanted))) == text_of(
            await events_of(backend, request(model, **wanted))
        )

    async def test_a_picture_that_would_have_to_be_fetched_is_refused_by_its_place(
        self, backend: Backend, model: str
    ):
        """A gateway puts every picture into the request; here is the last that looks."""
        if "vision" not in backend.features:
            pytest.skip("takes no pictures")
        link = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}
        chat = ChatPrompt(messages=[{"role": "user", "content": [{"type": "text", "text": "?"}, link]}])
        with pytest.raises(InvalidParameter) as refused:
            await events_of(backend, request(model, chat))

        assert refused.value.param == "messages[0].content[1].image_url"

    @pytest.mark.parametrize("stream", [False, True])
    async def test_how_an_answer_was_made_is_told_where_it_is_wanted_and_changes_nothing(
        self, backend: Backend, model: str, stream: bool
    ):
        plain = await events_of(backend, request(model, stream=stream))
        asked = await events_of(backend, request(model, stream=stream, wants_provenance=True))
        told = finished_of(asked).provenance

        assert finished_of(plain).provenance is None
        assert told is not None
        assert told.engine
        assert (told.why_not is None) == (told.repeats == "exact")
        assert text_of(asked) == text_of(plain)

    async def test_an_engine_that_promises_the_same_text_gives_it_whatever_it_did_meanwhile(
        self, backend: Backend, model: str
    ):
        wanted = {"temperature": 1.0, "seed": 77, "n": 2, "wants_provenance": True}
        before = await events_of(backend, request(model, CHAT, **wanted))
        told = finished_of(before).provenance
        assert told is not None
        if told.repeats != "exact":
            pytest.skip("promises nothing")
        await asyncio.gather(*[events_of(backend, request(model, CHAT, temperature=1.0)) for _ in range(3)])
        after = await events_of(backend, request(model, CHAT, **wanted))

        assert [text_of(after, i) for i in range(2)] == [text_of(before, i) for i in range(2)]
        assert finished_of(after).provenance == told

    async def test_n_choices_have_their_indexes_and_the_prompt_counts_once(
        self, backend: Backend, model: str
    ):
        one = await events_of(backend, request(model, ignore_eos=True, max_tokens=4))
        three = await events_of(backend, request(model, ignore_eos=True, max_tokens=4, n=3))

        assert sorted(endings_of(three)) == [0, 1, 2]
        assert finished_of(three).usage.prompt_tokens == finished_of(one).usage.prompt_tokens
        assert finished_of(three).usage.completion_tokens == 12

    async def test_a_list_of_prompts_gives_choices_in_order(self, backend: Backend, model: str):
        prompts = [TextPrompt(text="One river and"), TextPrompt(text="Two mountains and three")]
        alone = [await events_of(backend, request(model, prompt, max_tokens=4)) for prompt in prompts]
        events = await events_of(backend, request(model, prompts, max_tokens=4, n=2))

        assert sorted(endings_of(events)) == [0, 1, 2, 3]
        assert [text_of(events, i) for i in (0, 2)] == [text_of(a) for a in alone]
        assert finished_of(events).usage.prompt_tokens == sum(
            finished_of(a).usage.prompt_tokens for a in alone
        )

    async def test_token_ids_are_a_prompt_as_they_are(self, backend: Backend, model: str):
        events = await events_of(backend, request(model, TokenPrompt(token_ids=[10, 11, 12]), max_tokens=2))

        assert finished_of(events).usage.prompt_tokens == 3

    @pytest.mark.parametrize("token_id", [-1, 10**9])
    async def test_token_ids_outside_the_vocabulary_are_refused(
        self, backend: Backend, model: str, token_id: int
    ):
        with pytest.raises(InvalidParameter):
            await events_of(backend, request(model, TokenPrompt(token_ids=[10, token_id])))

    async def test_echo_puts_the_prompt_before_the_answer(self, backend: Backend, model: str):
        plain = await events_of(backend, request(model))
        echoed = await events_of(backend, request(model, echo=True))

        assert text_of(echoed) == PROMPT.text + text_of(plain)
        assert finished_of(echoed).usage == finished_of(plain).usage or (
            finished_of(echoed).usage.completion_tokens == finished_of(plain).usage.completion_tokens
        )

    async def text_and_stop(self, backend: Backend, model: str, **fields: Any) -> tuple[str, str]:
        """A greedy answer, and three characters from its middle."""
        text = text_of(await events_of(backend, request(model, ignore_eos=True, **fields)))
        assert len(text) >= 8, f"too short for this test: {text!r}"
        return text, text[len(text) // 2 : len(text) // 2 + 3]

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_stop_string_cuts_at_its_first_occurrence(
        self, backend: Backend, model: str, stream: bool
    ):
        text, stop = await self.text_and_stop(backend, model)
        events = await events_of(backend, request(model, ignore_eos=True, stop=(stop,), stream=stream))

        assert text_of(events) == text[: text.index(stop)]
        assert endings_of(events)[0].finish_reason == "stop"
        assert endings_of(events)[0].stop_reason == stop

    async def test_of_several_stops_the_one_earliest_in_the_text_cuts(self, backend: Backend, model: str):
        text, _ = await self.text_and_stop(backend, model)
        late, early = text[-4:-1], text[3:6]
        events = await events_of(backend, request(model, ignore_eos=True, stop=(late, early)))

        assert text_of(events) == text[: min(text.index(late), text.index(early))]

    async def test_what_only_looks_like_a_stop_is_not_lost(self, backend: Backend, model: str):
        text, _ = await self.text_and_stop(backend, model)
        never = text[-3:] + "\x00never"
        events = await events_of(backend, request(model, ignore_eos=True, stop=(never,), stream=True))

        assert text_of(events) == text
        assert endings_of(events)[0].finish_reason == "length"

    @pytest.mark.parametrize("stream", [False, True])
    async def test_every_sampled_token_has_its_logprob_and_alternatives(
        self, backend: Backend, model: str, stream: bool
    ):
        events = await events_of(backend, request(model, ignore_eos=True, logprobs=3, stream=stream))
        entries = logprobs_of(events)

        assert len(entries) == finished_of(events).usage.completion_tokens == 12
        assert all(entry.chosen.logprob <= 0 for entry in entries)
        assert all(len(entry.top) == 3 for entry in entries)
        assert b"".join(entry.chosen.token for entry in entries).decode() == text_of(events)

    async def test_the_best_alternative_is_the_greedy_token(self, backend: Backend, model: str):
        entries = logprobs_of(await events_of(backend, request(model, logprobs=2)))

        assert entries
        for entry in entries:
            assert entry.top[0] == entry.chosen
            assert entry.top[0].logprob >= entry.top[1].logprob

    async def test_no_alternatives_may_be_asked_for(self, backend: Backend, model: str):
        entries = logprobs_of(await events_of(backend, request(model, logprobs=0)))

        assert entries
        assert all(entry.top == () for entry in entries)

    async def test_logprobs_that_were_not_asked_for_do_not_come(self, backend: Backend, model: str):
        assert logprobs_of(await events_of(backend, request(model))) == []

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}])
    async def test_a_tool_that_must_be_called_is(
        self, backend: Backend, model: str, choice: str | dict[str, Any], stream: bool
    ):
        if "tools" not in backend.features:
            pytest.skip("takes no tools")
        chat = ChatPrompt(messages=CHAT.messages, tools=TOOLS)
        events = await events_of(
            backend, request(model, chat, tool_choice=choice, max_tokens=100, stream=stream)
        )
        calls = calls_of(events)
        first, *others = calls[0]

        assert first.id
        assert first.name == "time" if isinstance(choice, dict) else first.name in ("weather", "time")
        assert all((delta.id, delta.name) == (None, None) for delta in others)
        assert json.loads("".join(delta.arguments for delta in calls[0])) == {"city": "Oslo"}
        assert all(delta.arguments for delta in others)
        assert text_of(events) == ""
        assert endings_of(events)[0].finish_reason == "tool_calls"
        assert [e.call_index for e in events if isinstance(e, ToolCallDelta) and e.id] == [*range(len(calls))]

    @pytest.mark.parametrize(
        "constraint",
        [
            {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}},
            {"structured_outputs": {"json": CITY}},
        ],
        ids=lambda constraint: next(iter(constraint)),
    )
    async def test_what_a_schema_asks_for_comes_out(
        self, backend: Backend, model: str, constraint: dict[str, Any]
    ):
        if "structured_outputs" not in backend.features:
            pytest.skip("takes no schemas")
        events = await events_of(backend, request(model, CHAT, max_tokens=100, **constraint))

        assert json.loads(text_of(events)) == {"city": "Oslo"}
        assert endings_of(events)[0].finish_reason == "stop"

    async def test_a_prompt_that_leaves_no_room_is_refused_before_any_event(
        self, backend: Backend, model: str
    ):
        prompt, size, context = await filling(backend, model, room_left=-20)

        with pytest.raises(ContextLengthExceeded) as refused:
            await anext(backend.generate(request(model, prompt)))

        assert (refused.value.prompt_tokens, refused.value.context_length) == (size, context)
        await until_idle(backend, model)

    async def test_little_room_ends_with_length(self, backend: Backend, model: str):
        prompt, size, context = await filling(backend, model, room_left=8)
        events = await events_of(backend, request(model, prompt, ignore_eos=True, max_tokens=100))

        assert endings_of(events)[0].finish_reason == "length"
        assert 0 < finished_of(events).usage.completion_tokens <= context - size

    async def test_an_unknown_model_is_refused_everywhere(self, backend: Backend, model: str):
        with pytest.raises(UnknownModel):
            await anext(backend.generate(request("no-such-model")))
        with pytest.raises(UnknownModel):
            await backend.count_tokens("no-such-model", PROMPT)
        with pytest.raises(UnknownModel):
            await load(backend, "no-such-model")
        with pytest.raises(UnknownModel):
            await backend.unload("no-such-model")

    async def test_closing_the_generator_ends_the_work(self, backend: Backend, model: str):
        async with streaming(backend, endless(model)):
            pass

        await until_idle(backend, model)
        assert text_of(await events_of(backend, request(model)))

    async def test_cancelling_the_reader_ends_the_work(self, backend: Backend, model: str):
        reader = asyncio.create_task(events_of(backend, endless(model, n=2)))
        await until(lambda: self.is_running(backend, model))
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

        await until_idle(backend, model)

    async def test_closing_many_generators_leaves_full_capacity(self, backend: Backend, model: str):
        for _ in range(12):
            generator = backend.generate(endless(model))
            await anext(generator)
            await generator.aclose()

        await until_idle(backend, model)
        answers = await asyncio.gather(*[events_of(backend, request(model)) for _ in range(4)])
        assert len({text_of(answer) for answer in answers}) == 1

    async def test_an_abort_ends_the_generator_with_an_error(self, backend: Backend, model: str):
        wanted = endless(model)
        async with streaming(backend, wanted) as batches:
            await backend.abort(wanted.request_id)

            with pytest.raises(BackendFailed):
                async for _ in batches:
                    pass
        await until_idle(backend, model)

    async def test_an_abort_of_nothing_is_no_error(self, backend: Backend, model: str):
        wanted = request(model)
        events = await events_of(backend, wanted)

        await backend.abort(wanted.request_id)
        await backend.abort("never-seen")
        assert text_of(await events_of(backend, wanted)) == text_of(events)

    async def test_an_abort_touches_nobody_else(self, backend: Backend, model: str):
        doomed = endless(model)
        other = asyncio.create_task(events_of(backend, request(model, ignore_eos=True, max_tokens=40)))
        async with streaming(backend, doomed):
            await backend.abort(doomed.request_id)
            await backend.abort(doomed.request_id)

        assert finished_of(await other).usage.completion_tokens == 40

    async def test_requests_side_by_side_are_all_complete(self, backend: Backend, model: str):
        wanted = [request(model, n=1 + i % 2, stream=i % 3 == 0, ignore_eos=True) for i in range(8)]
        answers = await asyncio.gather(*[events_of(backend, one) for one in wanted])

        for one, events in zip(wanted, answers, strict=True):
            assert finished_of(events).usage.completion_tokens == 12 * one.n
            assert len(endings_of(events)) == one.n

    async def test_two_requests_may_carry_one_id(self, backend: Backend, model: str):
        answers = await asyncio.gather(
            *[events_of(backend, request(model, request_id="same")) for _ in range(2)]
        )

        assert text_of(answers[0]) == text_of(answers[1])

    async def test_health_and_counting_do_not_wait_for_a_generation(self, backend: Backend, model: str):
        async with streaming(backend, endless(model)):
            async with asyncio.timeout(2):
                health = await backend.health()
                counted = await backend.count_tokens(model, PROMPT)

        assert health.healthy
        assert counted > 0
        assert [(m.state, m.running) for m in health.models if m.id == model] == [("loaded", 1)]

    async def test_a_load_ends_with_ready_and_shows(self, backend: Backend, model: str):
        phases = await load(backend, model)

        status = await status_of(backend, model)
        assert phases[-1] == "ready"
        assert phases.count("ready") == 1
        assert status is not None
        assert status.state == "loaded"
        assert status.context_length is not None

    async def test_a_second_load_joins_or_finds_it_loaded(self, backend: Backend, model: str):
        side_by_side = await asyncio.gather(load(backend, model), load(backend, model))
        again = await load(backend, model)

        assert [phases[-1] for phases in side_by_side] == ["ready", "ready"]
        assert again == ["ready"]

    async def test_a_request_loads_what_is_not_loaded(self, backend: Backend, model: str):
        assert text_of(await events_of(backend, request(model)))

    async def test_an_unload_takes_it_away_and_the_next_request_brings_it_back(
        self, backend: Backend, model: str
    ):
        before = text_of(await events_of(backend, request(model)))
        await backend.unload(model)
        status = await status_of(backend, model)

        assert status is None or status.state == "unloaded"
        assert (await backend.health()).healthy
        assert text_of(await events_of(backend, request(model))) == before

    async def test_an_unload_of_what_is_not_loaded_succeeds(self, backend: Backend, model: str):
        await backend.unload(model)
        await backend.unload(model)

    async def test_an_unload_lets_a_running_request_finish(self, backend: Backend, model: str):
        wanted = request(model, ignore_eos=True, max_tokens=40, stream=True)
        async with streaming(backend, wanted) as batches:
            unloads = [asyncio.create_task(backend.unload(model)) for _ in range(2)]
            rest = [event async for batch in batches for event in batch]
            await asyncio.gather(*unloads)

        assert finished_of(rest).usage.completion_tokens == 40
        status = await status_of(backend, model)
        assert status is None or status.state == "unloaded"

    async def test_a_request_during_an_unload_waits_and_loads_again(self, backend: Backend, model: str):
        await load(backend, model)
        unload = asyncio.create_task(backend.unload(model))
        await asyncio.sleep(0)
        events = await events_of(backend, request(model))
        await unload

        assert text_of(events)

    async def test_aclose_ends_what_runs_and_may_be_repeated(self, backend: Backend, model: str):
        generator = backend.generate(endless(model))
        await anext(generator)
        await backend.aclose()

        with pytest.raises(BackendError):
            async for _ in generator:
                pass
        await generator.aclose()
        await backend.aclose()

    async def test_a_closed_backend_refuses_work(self, backend: Backend, model: str):
        await backend.aclose()

        with pytest.raises(BackendError):
            await events_of(backend, request(model))

    async def is_running(self, backend: Backend, model: str) -> bool:
        status = await status_of(backend, model)
        return status is not None and status.running > 0
