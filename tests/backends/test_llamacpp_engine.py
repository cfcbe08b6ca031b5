"""The engine with the real model: who gets a slot, who is stopped, and what others notice of it."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.errors import BackendFailed, InvalidGrammar, InvalidParameter, UnsupportedParameter
from backends.llamacpp.context import Context
from backends.llamacpp.loaded import LlamaCppModel
from backends.types import ChatPrompt, Event, Started, TextDelta, TextPrompt, TokenPrompt
from tests.backends.contract import endings_of, events_of, finished_of, request, text_of, until
from tests.backends.shipped_model import MODEL, a_model, prose

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]


def endless(**fields: Any) -> Any:
    return request(MODEL, prose(8), **{"max_tokens": None, "ignore_eos": True, "stream": True, **fields})


async def first_text(batches: Any) -> None:
    async for batch in batches:
        if any(isinstance(event, TextDelta) for event in batch):
            return


async def until_free(model: LlamaCppModel, *, within_s: float = 10.0) -> None:
    async def free() -> bool:
        return model.running == model.waiting == 0

    await until(free, within_s)


@pytest.mark.parametrize("n_slots", [1, 2])
async def test_more_choices_than_slots_all_finish(n_slots: int):
    async with a_model(num_slots=n_slots) as model:
        wanted = request(MODEL, prose(10), temperature=1.0, n=5, max_tokens=3, ignore_eos=True)
        events = await events_of(model, wanted)

    assert sorted(endings_of(events)) == [0, 1, 2, 3, 4]
    assert finished_of(events).usage.completion_tokens == 15


async def test_more_requests_than_slots_all_finish_in_order_of_arrival():
    async with a_model(num_slots=1) as model:
        order: list[int] = []

        async def one(i: int) -> list[Event]:
            events = await events_of(model, request(MODEL, prose(6, seed=i), max_tokens=2, ignore_eos=True))
            order.append(i)
            return events

        answers = await asyncio.gather(*[one(i) for i in range(6)])

    assert order == list(range(6))
    assert [finished_of(events).usage.completion_tokens for events in answers] == [2] * 6


async def test_waiting_for_a_slot_is_told_as_queue_time():
    async with a_model(num_slots=1) as model:
        answers = await asyncio.gather(
            *[
                events_of(model, request(MODEL, prose(6, seed=i), max_tokens=8, ignore_eos=True))
                for i in range(2)
            ]
        )
        first, second = (finished_of(events) for events in answers)

    assert second.queue_ms > first.queue_ms
    assert second.queue_ms >= first.decode_ms


async def test_running_and_waiting_requests_are_counted():
    async with a_model(num_slots=1) as model:
        running, waiting = model.generate(endless()), model.generate(endless())
        await first_text(running)
        pending = asyncio.ensure_future(anext(waiting))

        async def both() -> bool:
            return (model.running, model.waiting) == (1, 1)

        await until(both)
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await waiting.aclose()
        await running.aclose()
        await until_free(model)


@pytest.mark.parametrize("phase", ["queued", "prefilling", "decoding"])
async def test_an_abort_frees_everything_and_others_go_on(phase: str):
    async with a_model(num_slots=2, n_batch=16, prefill_chunk_tokens=8) as model:
        other = asyncio.create_task(
            events_of(model, request(MODEL, prose(6, seed=5), max_tokens=40, ignore_eos=True))
        )
        blocker = model.generate(endless()) if phase == "queued" else None
        if blocker is not None:
            await first_text(blocker)
        victim = model.generate(
            request(MODEL, prose(400, seed=7), max_tokens=4, stream=True)
            if phase == "prefilling"
            else endless()
        )
        if phase == "decoding":
            await first_text(victim)
        elif phase == "prefilling":
            await anext(victim)
        pending = asyncio.ensure_future(anext(victim))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await victim.aclose()
        if blocker is not None:
            await blocker.aclose()

        async def gone() -> bool:
            return (model.running + model.waiting) <= (0 if other.done() else 1)

        await until(gone)
        took = time.monotonic() - began
        events = await other

    assert took < 1
    assert finished_of(events).usage.completion_tokens == 40


async def test_fifty_aborts_leave_full_capacity():
    async with a_model(num_slots=3, n_batch=16) as model:
        for i in range(50):
            generator = model.generate(
                endless() if i % 2 else request(MODEL, prose(100, seed=i), stream=True)
            )
            if i % 3:
                await anext(generator)
            else:
                pending = asyncio.ensure_future(anext(generator))
                await asyncio.sleep(0)
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)
            await generator.aclose()
        await until_free(model)
        answers = await asyncio.gather(
            *[events_of(model, request(MODEL, prose(6, seed=i), max_tokens=2)) for i in range(3)]
        )

    assert len(answers) == 3
    assert not any(slot.is_busy for slot in model._engine._scheduler.slots.slots)


async def test_closing_the_model_ends_everything_with_an_error():
    async with a_model(num_slots=1) as model:
        running, waiting = model.generate(endless()), model.generate(endless())
        await first_text(running)
        queued = asyncio.ensure_future(anext(waiting))
        await asyncio.sleep(0.05)
        await model.aclose()

        with pytest.raises(BackendFailed, match="unloaded"):
            async for _ in running:
                pass
        with pytest.raises(BackendFailed):
            await queued
        with pytest.raises(BackendFailed):
            await events_of(model, request(MODEL, prose(4)))
        await model.aclose()


async def test_a_step_that_fails_ends_its_requests_and_no_others(monkeypatch: pytest.MonkeyPatch):
    async with a_model() as model:
        decode = Context.decode

        def broken(self: Context) -> Any:
            monkeypatch.setattr(Context, "decode", decode)
            raise BackendFailed("The engine failed to compute a step")

        monkeypatch.setattr(Context, "decode", broken)
        with pytest.raises(BackendFailed, match="failed to compute"):
            await events_of(model, request(MODEL, prose(6)))
        events = await events_of(model, request(MODEL, prose(6), max_tokens=3, ignore_eos=True))

        assert finished_of(events).usage.completion_tokens == 3
        assert finished_of(events).usage.cached_tokens == 0
        assert model.failure is None


async def test_a_bug_in_the_loop_ends_requests_and_is_told_as_a_failure(monkeypatch: pytest.MonkeyPatch):
    def broken(self: Context) -> Any:
        raise ZeroDivisionError

    async with a_model() as model:
        monkeypatch.setattr(Context, "decode", broken)
        for _ in range(2):
            with pytest.raises(BackendFailed, match="internal error"):
                await events_of(model, request(MODEL, prose(6)), patience_s=5)

        assert model.failure is not None


async def test_streams_go_on_while_a_long_prompt_is_read():
    async with a_model(num_slots=3, n_ctx=1024, prefill_chunk_tokens=16) as model:
        streams = [model.generate(endless(request_id=f"s{i}")) for i in range(2)]
        for stream in streams:
            await first_text(stream)
        long = asyncio.create_task(events_of(model, request(MODEL, prose(300, seed=3), max_tokens=1)))
        arrived: list[int] = [0, 0]

        async def read(i: int) -> None:
            async for batch in streams[i]:
                arrived[i] += sum(e.num_tokens for e in batch if isinstance(e, TextDelta))

        readers = [asyncio.create_task(read(i)) for i in range(2)]
        events = await long
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for stream in streams:
            await stream.aclose()

    # 300 tokens in chunks of 16 are 19 steps, each of which brings every stream a token (some bring no text yet).
    assert min(arrived) >= 12
    assert finished_of(events).usage.prompt_tokens == 300


@pytest.mark.parametrize("stream", [True, False])
async def test_characters_of_many_tokens_arrive_whole(stream: bool):
    said = "😀 海は深い — é\n👩‍🚀"
    literal = said.replace("\n", "\\n")
    async with a_model() as model:
        wanted = request(
            MODEL, prose(4), grammar=f'root ::= "{literal}"', max_tokens=80, stream=stream, logprobs=0
        )
        events = await events_of(model, wanted)

    assert text_of(events) == said
    assert endings_of(events)[0].finish_reason == "stop"
    assert not any("\ufffd" in event.text for event in events if isinstance(event, TextDelta))


async def test_a_stop_string_may_lie_over_several_tokens_and_characters():
    async with a_model() as model:
        wanted = request(
            MODEL,
            prose(4),
            grammar='root ::= "one 海😀 two 海😀 three"',
            max_tokens=60,
            stop=("海😀 t",),
            stream=True,
        )
        events = await events_of(model, wanted)

    assert text_of(events) == "one "
    assert endings_of(events)[0].stop_reason == "海😀 t"


@pytest.mark.parametrize("never_ends", [{"ignore_eos": True}, {"min_tokens": 40}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_complete_grammar_ends_the_answer_and_nobody_elses(
    temperature: float, never_ends: dict[str, Any]
):
    async with a_model() as model:
        wanted = request(MODEL, prose(4), grammar='root ::= "yes"', temperature=temperature, **never_ends)
        other = request(MODEL, prose(5), max_tokens=12, ignore_eos=True)
        events, others = await asyncio.gather(events_of(model, wanted), events_of(model, other))

    assert text_of(events) == "yes"
    assert endings_of(events)[0].finish_reason == "stop"
    assert finished_of(others).usage.completion_tokens == 12


async def test_a_chat_is_rendered_with_the_models_own_template():
    async with a_model() as model:
        chat = ChatPrompt(messages=[{"role": "user", "content": "Hi"}])
        text = (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )

        assert model._tokenize(chat) == model._tokenize(TextPrompt(text=text))


async def test_special_tokens_of_a_turn_are_no_text_of_the_answer():
    async with a_model() as model:
        chat = ChatPrompt(messages=[{"role": "user", "content": "Say yes."}])
        events = await events_of(model, request(MODEL, chat, max_tokens=60))

    assert "<|im_end|>" not in text_of(events)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"grammar": "root ::= nothing"}, InvalidGrammar),
        ({"logit_bias": {49_152: 1.0}}, InvalidParameter),
        ({"stop_token_ids": (-1,)}, InvalidParameter),
        ({"echo": True, "logprobs": 1}, UnsupportedParameter),
    ],
)
async def test_what_cannot_be_honoured_is_refused_before_anything_runs(
    fields: dict[str, Any], error: type[Exception]
):
    async with a_model() as model:
        with pytest.raises(error):
            await anext(model.generate(request(MODEL, prose(4), **fields)))

        assert (model.running, model.waiting) == (0, 0)


async def test_an_empty_text_stands_for_the_beginning_of_one():
    async with a_model() as model:
        events = await events_of(model, request(MODEL, TextPrompt(text=""), max_tokens=2, ignore_eos=True))

    assert isinstance(events[0], Started)
    assert events[0].prompt_tokens == 1


async def test_an_echo_of_token_ids_shows_their_text():
    async with a_model() as model:
        ids = model._tokenize(TextPrompt(text="<|im_start|>海 and"))
        events = await events_of(model, request(MODEL, TokenPrompt(token_ids=ids), echo=True, max_tokens=1))

    assert text_of(events).startswith("<|im_start|>海 and")


async def test_a_reader_that_sleeps_finds_everything_in_one_batch():
    async with a_model() as model, aclosing(model.generate(endless(max_tokens=12))) as batches:
        await anext(batches)
        await until_free(model)
        await asyncio.sleep(0.05)
        rest = await anext(batches)

    assert finished_of(rest).usage.completion_tokens == 12
