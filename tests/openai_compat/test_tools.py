"""Tools, reasoning and constrained output: which backend gets them, and how its events look on the wire."""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args

import pytest

from backends.types import (
    ChatPrompt,
    ChoiceFinished,
    Event,
    Feature,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from models.card import ModelCard
from openai_compat.record import RequestRecord
from tests.openai_compat.scripted_backend import Hang, Pause, ScriptedBackend, hello
from tests.openai_compat.virtual_time import run_virtual
from tests.openai_compat.wire import HELLO, Connection, Reply, call, card, chat, make_app

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "look"}}
JSON = {"type": "json_object"}
TAKES_ALL = frozenset(get_args(Feature))

CALLS: list[Event] = [
    Started(0.0, 5),
    ReasoningDelta(0, "So", 1),
    ReasoningDelta(0, ' "', 2),
    ToolCallDelta(0, 0, "", "c1", "look"),
    ToolCallDelta(0, 0, '{"a":'),
    ToolCallDelta(0, 0, "1}"),
    ToolCallDelta(0, 1, "{}", "c2", "leave"),
    ChoiceFinished(0, "tool_calls"),
    Finished(Usage(5, 7, reasoning_tokens=3)),
]


def backend(script: Any = hello, **parts: Any) -> ScriptedBackend:
    return ScriptedBackend(script=script, features=TAKES_ALL, **parts)


async def complete(app: Any, **fields: Any) -> Reply:
    return await call(app, "POST", "/v1/completions", {"prompt": "Once", "model": "tiny", **fields})


# -- which backend gets them ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": JSON}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
async def test_a_backend_without_the_feature_is_not_asked(fields: dict[str, Any], param: str) -> None:
    asked = ScriptedBackend()

    reply = await chat(make_app(asked), **fields)

    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "unsupported_parameter", param)
    assert asked.requests == []


@pytest.mark.parametrize(
    ("source", "capabilities", "effort"),
    [
        ({"path": "/models/tiny"}, ["chat"], None),
        ({"path": "/models/tiny"}, ["chat", "reasoning"], "low"),
        ({"name": "tiny"}, ["chat"], "low"),
    ],
    ids=["local", "local that reasons", "remote"],
)
async def test_an_effort_is_not_passed_on_to_a_local_model_that_does_not_reason(
    source: dict[str, Any], capabilities: list[str], effort: str | None
) -> None:
    asked = ScriptedBackend(kind="vllm", features=TAKES_ALL)
    cards = [card(sources={"vllm": source}, capabilities=capabilities)]
    app = make_app(cards=cards, backends={"vllm": asked}, default_backend="vllm")

    reply = await chat(app, reasoning_effort="low")

    assert [request.reasoning_effort for request in asked.requests] == [effort]
    assert reply.headers.get("x-llm-ignored") == (None if effort else "reasoning_effort")


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        ({"tool_choice": "auto"}, ("auto", None)),
        ({"tool_choice": "none"}, ("none", None)),
        ({"tool_choice": NAMED, "parallel_tool_calls": False}, (NAMED, False)),
        ({"tool_choice": None, "parallel_tool_calls": True}, (None, True)),
    ],
)
async def test_tools_reach_a_backend_that_takes_them(fields: dict[str, Any], got: tuple[Any, ...]) -> None:
    asked = backend()

    reply = await chat(make_app(asked), tools=[TOOL], **fields)

    (request,) = asked.requests
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tools == [TOOL]
    assert (request.tool_choice, request.parallel_tool_calls) == got
    assert "x-llm-ignored" not in reply.headers


async def test_the_deprecated_forms_reach_it_as_tools() -> None:
    asked = backend()

    await chat(make_app(asked), functions=[{"name": "look"}], function_call={"name": "look"})

    (request,) = asked.requests
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tools == [NAMED]
    assert request.tool_choice == NAMED


async def test_tools_that_must_not_be_called_are_no_reason_to_refuse() -> None:
    asked = ScriptedBackend()

    reply = await chat(make_app(asked), tools=[TOOL], tool_choice="none")

    (request,) = asked.requests
    assert reply.status == 200
    assert request.prompts[0] == ChatPrompt(messages=[{"role": "user", "content": "Hi"}])
    assert request.tool_choice is None


def local(*capabilities: str) -> ModelCard:
    """A card whose weights are here."""
    return card(sources={"vllm": {"path": "weights"}}, capabilities=["chat", *capabilities])


@pytest.mark.parametrize(
    ("model", "status"),
    [(local(), 400), (local("tools"), 200), (card(sources={"vllm": {"name": "x"}}), 200)],
    ids=["local", "local with tools", "remote"],
)
async def test_a_local_model_takes_tools_only_if_its_card_says_so(model: ModelCard, status: int) -> None:
    app = make_app(cards=[model], backends={"vllm": backend(kind="vllm")}, default_backend="vllm")

    assert (await chat(app, tools=[TOOL])).status == status


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize(
    "fields", [{"response_format": JSON}, {"structured_outputs": {"choice": ["a", "b"]}}]
)
async def test_a_constraint_reaches_a_backend_that_takes_it(ask: Any, fields: dict[str, Any]) -> None:
    asked = backend()

    await ask(make_app(asked), **fields)

    (request,) = asked.requests
    assert getattr(request, next(iter(fields))) == next(iter(fields.values()))


async def test_plain_text_is_no_constraint() -> None:
    asked = ScriptedBackend()

    await chat(make_app(asked), response_format={"type": "text"})

    assert asked.requests[0].response_format is None


@pytest.mark.parametrize(
    ("features", "capabilities", "status", "effort", "ignored"),
    [
        (TAKES_ALL, ["chat"], 200, "low", None),
        (frozenset(), ["chat"], 200, None, "reasoning_effort"),
        (frozenset(), ["chat", "reasoning"], 400, None, None),
    ],
)
async def test_an_effort_is_passed_on_or_ignored_by_name_or_refused(
    features: frozenset[Feature],
    capabilities: list[str],
    status: int,
    effort: str | None,
    ignored: str | None,
) -> None:
    asked = ScriptedBackend(features=features)
    app = make_app(asked, cards=[card(capabilities=capabilities)])

    reply = await chat(app, reasoning_effort="low")

    assert reply.status == status
    assert [request.reasoning_effort for request in asked.requests] == [effort] * (status == 200)
    assert reply.headers.get("x-llm-ignored") == ignored


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        ({"suffix": "end"}, {"suffix": "end", "best_of": None}),
        ({"best_of": 3, "n": 2}, {"suffix": None, "best_of": 3}),
        ({"echo": True, "logprobs": 0}, {"echo": True}),
    ],
)
async def test_what_text_completions_ask_for_reaches_a_backend_that_has_it(
    fields: dict[str, Any], got: dict[str, Any]
) -> None:
    asked, plain = backend(), ScriptedBackend()

    accepted = await complete(make_app(asked), **fields)
    refused = await complete(make_app(plain), **fields)

    assert accepted.status == 200
    assert {name: getattr(asked.requests[0], name) for name in got} == got
    assert (refused.status, refused.error["param"]) == (400, next(iter(fields)))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"pattern": "a" * 5000}},
                }
            },
            "response_format.json_schema.schema.pattern",
        ),
        ({"structured_outputs": {"regex": "(a{1000}){1000}"}}, "structured_outputs.regex"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"$ref": "http://x"}, "strict": True},
                    }
                ]
            },
            "tools[0].function.parameters.$ref",
        ),
        (
            {"functions": [{"name": "f", "parameters": {"type": "strong"}, "strict": True}]},
            "functions[0].parameters.type",
        ),
    ],
)
async def test_a_schema_beyond_its_limits_takes_no_slot(fields: dict[str, Any], param: str) -> None:
    asked = backend()

    reply = await chat(make_app(asked), **fields)

    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_schema", param)
    assert asked.requests == []


# -- how events look on the wire --------------------------------------------------------------------------------


async def test_calls_and_reasoning_stream_as_deltas() -> None:
    reply = await chat(make_app(backend(CALLS)), stream=True)

    choices = [chunk["choices"][0] for chunk in reply.chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant"},
        {"reasoning_content": "So", "reasoning": "So"},
        {"reasoning_content": ' "', "reasoning": ' "'},
        {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "c2", "type": "function", "function": {"name": "leave", "arguments": "{}"}}
            ]
        },
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None] * 7 + ["tool_calls"]


async def test_a_whole_answer_has_its_calls_and_no_content() -> None:
    reply = await chat(make_app(backend([CALLS])))

    (choice,) = reply.json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": 'So "',
        "reasoning": 'So "',
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "leave", "arguments": "{}"}},
        ],
    }
    assert reply.json["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


async def test_text_beside_a_call_is_kept() -> None:
    reply = await chat(make_app(backend([Started(0.0, 5), TextDelta(0, "Well"), *CALLS[3:]])))

    message = reply.json["choices"][0]["message"]
    assert (message["content"], len(message["tool_calls"])) == ("Well", 2)


async def test_reasoning_that_was_cut_leaves_an_empty_content() -> None:
    script = [Started(0.0, 5), ReasoningDelta(0, "So"), ChoiceFinished(0, "length"), Finished(Usage(5, 1))]

    reply = await chat(make_app(backend(script)))

    assert reply.json["choices"][0]["message"]["content"] == ""


async def test_choices_keep_their_calls_apart() -> None:
    script = [
        Started(0.0, 5),
        *(ToolCallDelta(index, 0, "", f"c{index}", "look") for index in (0, 1)),
        *(ToolCallDelta(index, 0, f"[{index}]") for index in (1, 0)),
        *(ChoiceFinished(index, "tool_calls") for index in (0, 1)),
        Finished(Usage(5, 4)),
    ]

    reply = await chat(make_app(backend(script)), n=2)

    calls = [choice["message"]["tool_calls"][0] for choice in reply.json["choices"]]
    assert [(made["id"], made["function"]["arguments"]) for made in calls] == [("c0", "[0]"), ("c1", "[1]")]


async def test_what_was_ready_together_is_one_message() -> None:
    reply = await chat(make_app(backend([CALLS[:-1], CALLS[-1:]])), stream=True)

    bodies = [message for _, message in reply.messages if message["type"] == "http.response.body"]
    assert len(bodies) == 2


@pytest.mark.parametrize("event", [ReasoningDelta(0, "So"), ToolCallDelta(0, 0, "", "c1", "look")])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_completion_has_no_place_for_anything_but_text(event: Event, stream: bool) -> None:
    script = [Started(0.0, 5), event, ChoiceFinished(0, "stop"), Finished(Usage(5, 1))]

    reply = await complete(make_app(backend(script)), stream=stream)

    assert (reply.status, reply.error["code"]) == (500, "backend_error")


def test_reasoning_and_calls_keep_a_stream_alive() -> None:
    script = [
        Started(0.0, 5),
        Pause(8.0),
        ReasoningDelta(0, "So"),
        Pause(8.0),
        ToolCallDelta(0, 0, "{}", "c1", "look"),
        Pause(8.0),
        TextDelta(0, "!"),
        ChoiceFinished(0, "tool_calls"),
        Finished(Usage(5, 3)),
    ]
    app = make_app(backend(script), first_token_timeout_s=10.0, idle_timeout_s=10.0)

    reply = run_virtual(chat(app, stream=True))

    assert reply.chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_reasoning_and_calls_count_as_the_first_token_and_the_gaps() -> None:
    app = make_app(backend(CALLS))

    await chat(app, stream=True)

    text = app.state.gateway.metrics.render().decode()
    labels = '{backend="fake",model="tiny"}'
    assert f"llm:time_to_first_token_seconds_count{labels} 1.0" in text
    assert f"llm:inter_token_latency_seconds_count{labels} 5.0" in text


def test_a_client_that_leaves_has_had_the_tokens_of_calls_and_reasoning() -> None:
    async def leave() -> RequestRecord:
        asked = backend([*CALLS[:4], Hang()])
        body = json.dumps({**HELLO, "stream": True}).encode()
        connection = Connection(make_app(asked), "POST", "/v1/chat/completions", body=body)
        answering = asyncio.create_task(connection.run())
        await asked.reached.wait()
        connection.leave()
        await answering
        return connection.record

    assert run_virtual(leave()).completion_tokens == 4


def test_the_headers_go_out_with_the_first_reasoning() -> None:
    script = [Started(0.0, 5), Pause(1.0), ReasoningDelta(0, "So"), Pause(1.0), *CALLS[3:]]

    reply = run_virtual(chat(make_app(backend(script)), stream=True))

    assert reply.messages[-1][0] - reply.begun_at() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("usage", "beside"),
    [
        (Usage(5, 2), {}),
        (Usage(5, 2, reasoning_tokens=1), {"completion_tokens_details": {"reasoning_tokens": 1}}),
        (Usage(5, 2, is_estimated=True), {"is_estimated": True}),
        (Usage(5, 2, cost_usd=0.0), {"cost_usd": 0.0}),
    ],
)
async def test_usage_tells_what_is_known_beside_the_counts(usage: Usage, beside: dict[str, Any]) -> None:
    app = make_app(backend([Started(0.0, 5), ChoiceFinished(0, "stop"), Finished(usage)]))

    plain = (await chat(app)).json["usage"]
    streamed = (await chat(app, stream=True, stream_options={"include_usage": True})).chunks[-1]["usage"]

    counts = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
    assert plain == streamed
    assert {key: value for key, value in plain.items() if key not in counts} == beside
