"""What a server does not take is asked for in another way."""

from __future__ import annotations

import pytest

from backends.types import ChatPrompt, Started, TextPrompt, Usage
from backends.vllm.upstream import Upstream
from tests.backends.contract import CHAT, endings_of, finished_of, request, text_of
from tests.backends.openai_upstream import (
    OpenAIUpstream,
    counts,
    document,
    finish,
    refused,
    stream,
    text,
    usage,
    whole,
)
from tests.backends.upstream_answers import answer, chat, events_of, streamed


async def test_the_injected_template_variable_is_dropped_once_for_a_server_that_does_not_know_it(
    server: OpenAIUpstream, upstream: Upstream
):
    prompt = ChatPrompt(messages=CHAT.messages, template_kwargs={"enable_thinking": False})
    server.answers(refused(400, "Unrecognized request argument supplied: chat_template_kwargs"))
    server.answers(whole("a"), whole("b"))
    first = await events_of(upstream, request("card", prompt))
    second = await events_of(upstream, request("card", prompt))

    assert (text_of(first), text_of(second)) == ("a", "b")
    assert ["chat_template_kwargs" in one.body for one in server.completions] == [True, False, False]


async def test_a_callers_template_variable_is_never_dropped(server: OpenAIUpstream, upstream: Upstream):
    prompt = ChatPrompt(messages=CHAT.messages, template_kwargs={"enable_thinking": True})
    server.answers(refused(400, "Unrecognized request argument supplied: chat_template_kwargs"))

    with pytest.raises(Exception, match="chat_template_kwargs"):
        await events_of(upstream, request("card", prompt))
    assert len(server.completions) == 1


async def test_a_server_without_usage_in_streams_is_not_asked_again(
    server: OpenAIUpstream, upstream: Upstream
):
    server.answers(refused(422, "Extra inputs are not permitted", param="stream_options"))
    server.answers(stream(text("a"), finish()))
    events = await events_of(upstream, streamed())

    assert text_of(events) == "a"
    assert ["stream_options" in one.body for one in server.completions] == [True, False]


async def test_a_model_that_wants_the_new_name_of_the_limit_gets_it(
    server: OpenAIUpstream, upstream: Upstream
):
    message = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    server.answers(refused(400, message, code="unsupported_parameter", param="max_tokens"), whole("a"))
    await events_of(upstream, chat(max_tokens=9))

    assert server.completions[1].body["max_completion_tokens"] == 9


async def test_a_refusal_that_repeats_itself_is_not_tried_for_ever(
    server: OpenAIUpstream, upstream: Upstream
):
    server.answers(*[refused(400, "unknown field stream_options") for _ in range(9)])

    with pytest.raises(Exception, match="stream_options"):
        await events_of(upstream, streamed())
    assert len(server.completions) == 2


async def test_an_answer_that_does_not_fit_behind_its_prompt_is_asked_for_again_with_what_fits(
    server: OpenAIUpstream, upstream: Upstream
):
    message = (
        "This model's maximum context length is 1000 tokens. However, you requested 900 output tokens and your "
        "prompt contains at least 101 input tokens, for a total of at least 1001 tokens."
    )
    server.token_count = 400
    server.answers(refused(400, message), whole("a", "length"))
    events = await events_of(upstream, chat(max_tokens=900))

    assert endings_of(events)[0].finish_reason == "length"
    assert server.completions[1].body["max_tokens"] == 600


async def test_a_list_of_prompts_of_which_one_leaves_little_room_is_answered_one_by_one(
    server: OpenAIUpstream, upstream: Upstream
):
    message = (
        "This model's maximum context length is 1000 tokens. However, you requested 996 output tokens and your "
        "prompt contains 7 input tokens, for a total of 1003 tokens."
    )
    choice = {"index": 0, "finish_reason": "length"}
    server.answers(
        refused(400, message),
        document({"choices": [{**choice, "text": "a"}], "usage": counts(7, 1)}),
        refused(400, message),
        document({"choices": [{**choice, "text": "b"}], "usage": counts(7, 2)}),
    )
    wanted = request("card", [TextPrompt(text="x"), TextPrompt(text="y")], n=2, max_tokens=996)
    events = await events_of(upstream, wanted)

    assert [text_of(events, i) for i in range(4)] == ["a", "a", "b", "b"]
    assert finished_of(events).usage == Usage(14, 6)
    assert [type(e) for e in events].count(Started) == 1
    assert [one.body["max_tokens"] for one in server.completions] == [996, 996, 996, 993]


async def test_a_limit_beyond_the_context_that_the_server_names_is_lowered(
    server: OpenAIUpstream, upstream: Upstream
):
    server.models = None
    message = "max_tokens=5000 cannot be greater than max_model_len=1000. Please request fewer output tokens."
    server.answers(refused(400, message, param="max_tokens"), whole("a", "length"))
    await events_of(upstream, chat(max_tokens=5000))

    assert server.completions[1].body["max_tokens"] == 993


LLAMA = [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 1000}}]


async def test_several_choices_of_llama_server_are_counted_here(server: OpenAIUpstream, upstream: Upstream):
    """It counts the first."""
    server.models = LLAMA
    script = stream(text("a"), text("b", 1), text("b", 1), finish("stop"), finish("stop", 1), usage(9, 1))
    events = await answer(server, upstream, chat(n=2), script)

    assert finished_of(events).usage == Usage(9, 3, is_estimated=True)


async def test_lists_of_prompts_go_to_llama_server_one_by_one(server: OpenAIUpstream, upstream: Upstream):
    server.models = LLAMA
    choice = {"index": 0, "finish_reason": "length"}
    server.answers(
        document({"choices": [{**choice, "text": "a"}], "usage": counts(7, 1)}),
        document({"choices": [{**choice, "text": "b"}], "usage": counts(5, 2)}),
    )
    events = await events_of(upstream, request("card", [TextPrompt(text="x"), TextPrompt(text="y")]))

    assert [text_of(events, i) for i in range(2)] == ["a", "b"]
    assert finished_of(events).usage == Usage(12, 3)
