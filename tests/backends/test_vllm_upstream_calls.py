"""Reasoning and tool calls of a server, in the ways in which servers send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.errors import UpstreamError
from backends.types import ToolCallDelta
from backends.vllm.upstream import Upstream
from tests.backends.contract import endings_of, text_of
from tests.backends.openai_upstream import (
    OpenAIUpstream,
    Script,
    chunk,
    counts,
    document,
    finish,
    role,
    stream,
    text,
    usage,
)
from tests.backends.upstream_answers import answer, calls_of, chat, reasoning_of, streamed


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_under_either_name_is_kept_apart(
    server: OpenAIUpstream, upstream: Upstream, name: str
):
    of_stream = await answer(
        server,
        upstream,
        streamed(),
        stream(
            role(), chunk({name: "hm"}), chunk({name: "m", "content": None}), text("a"), finish(), usage(1, 3)
        ),
    )
    message = {"role": "assistant", name: "hmm", "content": "a"}
    of_document = await answer(
        server,
        upstream,
        chat(),
        document({"choices": [{"message": message, "finish_reason": "stop"}], "usage": counts(1, 3)}),
    )

    for events in (of_stream, of_document):
        assert (reasoning_of(events), text_of(events)) == ("hmm", "a")


def call(
    arguments: Any = None, name: str | None = None, id: str | None = None, index: int | None = 0
) -> dict[str, Any]:
    function = {k: v for k, v in {"name": name, "arguments": arguments}.items() if v is not None}
    whole = {"index": index, "id": id, "type": "function", "function": function}
    return {k: v for k, v in whole.items() if v is not None}


def calling(*deltas: list[dict[str, Any]]) -> Script:
    return stream(
        role(), *(chunk({"tool_calls": calls}) for calls in deltas), finish("tool_calls"), usage(1, 9)
    )


async def test_a_tool_call_is_announced_once_and_goes_on_with_arguments(
    server: OpenAIUpstream, upstream: Upstream
):
    script = calling([call("", "f", "c1")], [call('{"a"')], [call(": 1}")])
    events = await answer(server, upstream, streamed(), script)

    assert calls_of(events) == [
        ToolCallDelta(0, 0, "", "c1", "f"),
        ToolCallDelta(0, 0, '{"a"'),
        ToolCallDelta(0, 0, ": 1}"),
    ]
    assert endings_of(events)[0].finish_reason == "tool_calls"


async def test_several_calls_of_one_chunk_are_numbered(server: OpenAIUpstream, upstream: Upstream):
    script = calling([call("{}", "f", "c1", 0), call("{}", "g", "c2", 1)])
    events = await answer(server, upstream, streamed(), script)

    assert [(c.call_index, c.id, c.name, c.arguments) for c in calls_of(events)] == [
        (0, "c1", "f", "{}"),
        (1, "c2", "g", "{}"),
    ]


async def test_a_call_without_an_id_gets_one(server: OpenAIUpstream, upstream: Upstream):
    events = await answer(server, upstream, streamed(), calling([call("{}", "f"), call("{}", "g", index=1)]))
    ids = [c.id for c in calls_of(events)]

    assert all(id_ and id_.startswith("call_") for id_ in ids)
    assert len(set(ids)) == 2


async def test_calls_without_an_index_are_told_apart_by_their_ids(server: OpenAIUpstream, upstream: Upstream):
    script = calling(
        [call('{"a":', "f", "c1", None)], [call("1}", index=None)], [call("{}", "g", "c2", None)]
    )
    events = await answer(server, upstream, streamed(), script)

    assert [(c.call_index, c.arguments) for c in calls_of(events)] == [(0, '{"a":'), (0, "1}"), (1, "{}")]


async def test_calls_that_all_have_the_index_0_are_told_apart_by_their_ids(
    server: OpenAIUpstream, upstream: Upstream
):
    script = calling([call("{}", "f", "c1", 0)], [call("{}", "f", "c2", 0)])
    events = await answer(server, upstream, streamed(), script)

    assert [c.call_index for c in calls_of(events)] == [0, 1]


async def test_ids_and_names_that_are_repeated_are_dropped(server: OpenAIUpstream, upstream: Upstream):
    script = calling([call("{", "f", "c1")], [call("}", "f", "c1")])
    events = await answer(server, upstream, streamed(), script)

    assert [(c.id, c.name) for c in calls_of(events)] == [("c1", "f"), (None, None)]


async def test_arguments_before_the_name_wait_for_it(server: OpenAIUpstream, upstream: Upstream):
    script = calling([call("{", None, "c1")], [call("}", "f")])
    events = await answer(server, upstream, streamed(), script)

    assert calls_of(events) == [ToolCallDelta(0, 0, "{}", "c1", "f", 2)]


async def test_arguments_that_are_an_object_become_json(server: OpenAIUpstream, upstream: Upstream):
    message = {"content": None, "tool_calls": [call({"city": "Köln"}, "f", "c1", None)]}
    script = document(
        {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": counts(1, 1)}
    )
    events = await answer(server, upstream, chat(), script)

    assert json.loads(calls_of(events)[0].arguments) == {"city": "Köln"}


async def test_a_call_that_never_gets_a_name_is_an_error(server: OpenAIUpstream, upstream: Upstream):
    with pytest.raises(UpstreamError, match="without a name"):
        await answer(server, upstream, streamed(), calling([call("{}", None, "c1")]))


@pytest.mark.parametrize(
    ("content", "reason", "expected"),
    [("", "stop", "tool_calls"), ("Let me look.", "stop", "stop"), ("", "length", "length")],
)
async def test_a_choice_of_nothing_but_calls_ends_with_them_although_the_server_says_stop(
    server: OpenAIUpstream, upstream: Upstream, content: str, reason: str, expected: str
):
    calls = [call("{}", "f", "c1")]
    message = {"content": content, "tool_calls": calls}
    of_stream = stream(text(content), chunk({"tool_calls": calls}), finish(reason), usage(1, 9))
    of_document = document(
        {"choices": [{"message": message, "finish_reason": reason}], "usage": counts(1, 9)}
    )

    for wanted, script in ((streamed(), of_stream), (chat(), of_document)):
        events = await answer(server, upstream, wanted, script)
        assert endings_of(events)[0].finish_reason == expected


async def test_the_end_of_a_text_is_no_tool_call(server: OpenAIUpstream, upstream: Upstream):
    events = await answer(server, upstream, streamed(), stream(text("a"), finish("stop"), usage(1, 1)))

    assert endings_of(events)[0].finish_reason == "stop"
