"""What is sent for a request, by the kind of server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.errors import InvalidGrammar, InvalidParameter, UnsupportedParameter
from backends.types import ChatPrompt, GenerationRequest, TextPrompt, TokenPrompt
from backends.vllm.dialect import GENERIC, LLAMA_SERVER, OURS, SGLANG, VLLM, Dialect, dialect_of
from backends.vllm.wire import Plan, Quirk, plan_of
from tests.backends.contract import CHAT, request

FIVE = ("a", "b", "c", "d", "e")


def plan(
    wanted: GenerationRequest,
    dialect: Dialect = VLLM,
    context_length: int | None = 1000,
    quirks: tuple[Quirk, ...] = (),
) -> Plan:
    return plan_of(wanted, "served", dialect, context_length=context_length, quirks=quirks)


def body(wanted: GenerationRequest, dialect: Dialect = VLLM, **options: Any) -> dict[str, Any]:
    return plan(wanted, dialect, **options).body


def chat(**fields: Any) -> GenerationRequest:
    return request("m", CHAT, **{"temperature": 0.5, "max_tokens": None, **fields})


def test_a_conversation_goes_to_the_chat_route_as_it_is():
    sent = plan(chat())

    assert sent.path == "/v1/chat/completions"
    assert sent.body["model"] == "served"
    assert sent.body["messages"] == CHAT.messages


def test_openais_sampling_fields_are_always_sent_whatever_their_value():
    sent = body(chat(), GENERIC)

    assert {k: sent[k] for k in ("temperature", "top_p", "presence_penalty", "frequency_penalty")} == {
        "temperature": 0.5,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


@pytest.mark.parametrize(
    ("dialect", "off"),
    [
        (VLLM, {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}),
        (SGLANG, {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}),
        (LLAMA_SERVER, {"top_k": 0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}),
        (OURS, {"top_k": 0, "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0}),
    ],
)
def test_a_known_servers_own_defaults_are_switched_off(dialect: Dialect, off: dict[str, Any]):
    assert off.items() <= body(chat(), dialect).items()


def test_an_unknown_server_gets_no_extension_that_is_off():
    extensions = {
        "top_k",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "min_tokens",
        "ignore_eos",
        "stop_token_ids",
    }

    assert not extensions & body(chat(), GENERIC).keys()


def test_extensions_that_are_set_are_sent():
    wanted = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 3, "ignore_eos": True}
    sent = body(chat(**wanted, stop_token_ids=(7, 8)), GENERIC)

    assert {**wanted, "stop_token_ids": [7, 8]}.items() <= sent.items()


def test_llama_server_has_its_own_name_for_the_repetition_penalty():
    sent = body(chat(repetition_penalty=1.3), LLAMA_SERVER)

    assert sent["repeat_penalty"] == 1.3
    assert "repetition_penalty" not in sent


@pytest.mark.parametrize(
    ("dialect", "fields", "param"),
    [
        (VLLM, {"typical_p": 0.5}, "typical_p"),
        (GENERIC, {"typical_p": 0.5}, "typical_p"),
        (GENERIC, {"grammar": 'root ::= "a"'}, "grammar"),
        (LLAMA_SERVER, {"min_tokens": 3}, "min_tokens"),
        (LLAMA_SERVER, {"stop_token_ids": (1,)}, "stop_token_ids"),
    ],
)
def test_what_a_server_would_drop_in_silence_is_refused(dialect: Dialect, fields: dict[str, Any], param: str):
    with pytest.raises(UnsupportedParameter) as refused:
        plan(chat(**fields), dialect)

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("dialect", "sent"),
    [
        (VLLM, {"structured_outputs": {"grammar": 'root ::= "a"'}}),
        (SGLANG, {"ebnf": 'root ::= "a"'}),
        (LLAMA_SERVER, {"grammar": 'root ::= "a"'}),
    ],
)
def test_a_grammar_goes_where_the_server_looks_for_it(dialect: Dialect, sent: dict[str, Any]):
    assert sent.items() <= body(chat(grammar='root ::= "a"'), dialect).items()


def test_the_keys_of_a_logit_bias_are_strings():
    sent = plan(chat(logit_bias={17: -5.0}, seed=2**62))

    assert msgspec.json.decode(sent.encode())["logit_bias"] == {"17": -5.0}
    assert sent.body["seed"] == 2**62


def test_several_sampled_choices_are_asked_for_at_once():
    sent = plan(chat(n=3))

    assert (sent.body["n"], sent.copies) == (3, 1)


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"top_p": 0.0}])
def test_greedy_choices_are_asked_for_once(fields: dict[str, Any]):
    sent = plan(chat(n=3, **fields))

    assert ("n" in sent.body, sent.copies) == (False, 3)
    assert (sent.body["temperature"], sent.body["top_p"]) == (0.0, 1.0)


def test_a_whole_answer_is_asked_for_whole_and_a_stream_with_its_usage():
    assert "stream" not in body(chat())
    streamed = body(chat(stream=True))

    assert streamed["stream"] is True
    assert streamed["stream_options"] == {"include_usage": True}


def test_four_stops_are_sent_and_watched_here_too():
    sent = plan(chat(stop=FIVE[:4]))

    assert sent.body["stop"] == ["a", "b", "c", "d"]
    assert (sent.stops, sent.stops_unknown, sent.stream) == (FIVE[:4], False, False)


def test_more_stops_than_a_server_takes_are_cut_here_while_it_streams():
    sent = plan(chat(stop=FIVE, min_tokens=2))

    assert "stop" not in sent.body
    assert (sent.stops, sent.stops_unknown, sent.stream) == (FIVE, True, True)
    assert sent.body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert sent.body["return_token_ids"] is True


def test_only_vllm_is_asked_for_running_counts():
    sent = body(chat(stop=FIVE, min_tokens=2), GENERIC)

    assert sent["stream_options"] == {"include_usage": True}
    assert "return_token_ids" not in sent


def test_stops_with_a_minimum_of_tokens_are_left_to_the_server_that_knows_them():
    assert plan(chat(stop=("a",), min_tokens=4)).stops == ()


def test_logprobs_have_another_form_in_chat():
    assert {"logprobs": True, "top_logprobs": 3}.items() <= body(chat(logprobs=3)).items()
    assert body(request("m", logprobs=3))["logprobs"] == 3
    assert body(request("m", logprobs=0))["logprobs"] == 0


def test_the_fields_of_chat_are_passed_on_whole():
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": False}}
    ]
    prompt = ChatPrompt(messages=CHAT.messages, tools=tools, template_kwargs={"a": 1})
    given: dict[str, Any] = {
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
    }
    wanted = msgspec.structs.replace(chat(), prompts=(prompt,), **given)

    assert {**given, "tools": tools, "chat_template_kwargs": {"a": 1}}.items() <= body(wanted).items()


@pytest.mark.parametrize(
    "given", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "a+"}}], ids=str
)
def test_the_form_of_an_answer_is_passed_on_whole(given: dict[str, Any]):
    assert given.items() <= body(msgspec.structs.replace(chat(), **given)).items()


def test_a_choice_of_tools_without_tools_is_not_sent():
    wanted = msgspec.structs.replace(chat(), tool_choice="none", parallel_tool_calls=True)

    assert not {"tools", "tool_choice", "parallel_tool_calls"} & body(wanted).keys()


def test_continuing_a_message_excludes_a_new_turn():
    prompt = ChatPrompt(messages=CHAT.messages, continue_final_message=True)
    sent = body(request("m", prompt))

    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)


def test_a_prompt_without_a_turn_of_its_own_says_so_and_others_say_nothing():
    prompt = ChatPrompt(messages=CHAT.messages, add_generation_prompt=False)

    assert body(request("m", prompt))["add_generation_prompt"] is False
    assert "add_generation_prompt" not in body(chat())


@pytest.mark.parametrize(
    ("asked", "context_length", "is_chat", "sent"),
    [
        (50, 1000, True, 50),
        (5000, 1000, True, 1000),
        (5000, None, True, 5000),
        (None, 1000, True, None),
        (None, 1000, False, 1000),
        (None, None, False, None),
        (5000, 1000, False, 1000),
    ],
)
def test_the_limit_of_an_answer_is_never_more_than_the_context(
    asked: int | None, context_length: int | None, is_chat: bool, sent: int | None
):
    """Without one vLLM would end a text after 16 tokens."""
    wanted = chat(max_tokens=asked) if is_chat else request("m", max_tokens=asked)

    assert body(wanted, context_length=context_length).get("max_tokens") == sent


def test_prompts_are_sent_in_the_form_they_came_in():
    ids = TokenPrompt(token_ids=[1, 2])

    assert body(request("m", TextPrompt(text="a")))["prompt"] == "a"
    assert body(request("m", [TextPrompt(text="a"), TextPrompt(text="b")]))["prompt"] == ["a", "b"]
    assert body(request("m", ids))["prompt"] == [1, 2]
    assert body(request("m", [ids, ids]))["prompt"] == [[1, 2], [1, 2]]
    assert plan(request("m", [ids, ids])).path == "/v1/completions"


def test_prompts_of_both_forms_are_refused():
    with pytest.raises(InvalidParameter):
        plan(request("m", [TextPrompt(text="a"), TokenPrompt(token_ids=[1])]))


def test_a_negative_token_id_never_leaves():
    with pytest.raises(InvalidParameter) as refused:
        plan(request("m", TokenPrompt(token_ids=[1, -1])))

    assert refused.value.param == "prompt"


def test_text_is_echoed_here():
    sent = plan(request("m", TextPrompt(text="abc"), echo=True))

    assert "echo" not in sent.body
    assert sent.echo == ("abc",)


@pytest.mark.parametrize(
    ("prompt", "fields"), [(TokenPrompt(token_ids=[1]), {}), (TextPrompt(text="abc"), {"logprobs": 1})]
)
def test_what_only_the_server_has_is_echoed_there(prompt: Any, fields: dict[str, Any]):
    sent = plan(request("m", prompt, echo=True, **fields))

    assert sent.body["echo"] is True
    assert sent.echo == ()


def test_no_stop_is_looked_for_in_an_echoed_prompt():
    assert plan(request("m", TextPrompt(text="abc"), echo=True, logprobs=1, stop=FIVE)).echoed_chars == (3,)
    assert plan(request("m", TokenPrompt(token_ids=[1]), echo=True, stop=("a",))).stops == ()
    with pytest.raises(UnsupportedParameter) as refused:
        plan(request("m", TokenPrompt(token_ids=[1]), echo=True, stop=FIVE))

    assert refused.value.param == "stop"


def test_more_candidates_than_choices_are_refused():
    wanted = msgspec.structs.replace(request("m", n=2), best_of=3)

    with pytest.raises(UnsupportedParameter) as refused:
        plan(wanted)
    assert refused.value.param == "best_of"


def test_the_injected_template_variable_is_left_out_for_a_server_that_refused_it():
    injected = request("m", ChatPrompt(messages=CHAT.messages, template_kwargs={"enable_thinking": False}))
    callers = request("m", ChatPrompt(messages=CHAT.messages, template_kwargs={"enable_thinking": True}))

    assert "chat_template_kwargs" in body(injected)
    assert "chat_template_kwargs" not in body(injected, quirks=("no_template_kwargs",))
    assert "chat_template_kwargs" in body(callers, quirks=("no_template_kwargs",))


def test_other_fields_a_server_refused_are_left_out_or_renamed():
    sent = body(chat(max_tokens=5, stream=True), quirks=("no_usage_option", "max_completion_tokens"))

    assert "stream_options" not in sent
    assert ("max_tokens" in sent, sent["max_completion_tokens"]) == (False, 5)
    assert "continuous_usage_stats" not in str(body(chat(stop=FIVE), quirks=("no_chunk_counts",)))


def test_a_value_that_json_cannot_hold_is_the_callers_fault():
    prompt = ChatPrompt(messages=[{"role": "user", "content": "\ud800"}])

    with pytest.raises(InvalidParameter):
        plan(request("m", prompt)).encode()


@pytest.mark.parametrize(
    ("entry", "dialect"),
    [
        ({"owned_by": "vllm"}, VLLM),
        ({"owned_by": "sglang"}, SGLANG),
        ({"owned_by": "llamacpp"}, LLAMA_SERVER),
        ({"owned_by": "library"}, GENERIC),
        ({"owned_by": None}, GENERIC),
        ({}, GENERIC),
        ({"owned_by": "x", "backend": "llamacpp", "capabilities": ["chat"]}, OURS),
    ],
)
def test_a_server_is_known_by_its_list_of_models(entry: dict[str, Any], dialect: Dialect):
    assert dialect_of(entry) is dialect


@pytest.mark.parametrize(
    ("dialect", "constraint", "sent"),
    [
        (VLLM, {"regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
        (OURS, {"choice": ["a"]}, {"structured_outputs": {"choice": ["a"]}}),
        (SGLANG, {"regex": "a+"}, {"regex": "a+"}),
        (SGLANG, {"choice": ["a", 'b"']}, {"ebnf": 'root ::= "a" | "b\\""'}),
        (LLAMA_SERVER, {"grammar": "root ::= x"}, {"grammar": "root ::= x"}),
        (GENERIC, {"json_object": True}, {"response_format": {"type": "json_object"}}),
    ],
)
def test_a_constraint_goes_where_the_server_looks_for_it(
    dialect: Dialect, constraint: dict[str, Any], sent: dict[str, Any]
):
    wanted = msgspec.structs.replace(chat(), structured_outputs=constraint)

    assert sent.items() <= body(wanted, dialect).items()


@pytest.mark.parametrize("schema", [{"type": "object"}, '{"type": "object"}'])
def test_a_schema_is_a_response_format_everywhere(schema: Any):
    wanted = msgspec.structs.replace(request("m"), structured_outputs={"json": schema})
    sent = body(wanted, GENERIC)

    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert "structured_outputs" not in sent


@pytest.mark.parametrize(
    ("dialect", "constraint"),
    [
        (GENERIC, {"regex": "a+"}),
        (GENERIC, {"choice": ["a"]}),
        (LLAMA_SERVER, {"regex": "a+"}),
        (GENERIC, {"json": {}, "disable_any_whitespace": True}),
        (GENERIC, {"structural_tag": "x"}),
    ],
)
def test_a_constraint_that_would_be_dropped_in_silence_is_refused(
    dialect: Dialect, constraint: dict[str, Any]
):
    with pytest.raises(UnsupportedParameter) as refused:
        plan(msgspec.structs.replace(chat(), structured_outputs=constraint), dialect)

    assert refused.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "option",
    [
        {"disable_fallback": True},
        {"disable_any_whitespace": True},
        {"disable_additional_properties": True},
        {"whitespace_pattern": " "},
    ],
    ids=str,
)
def test_an_option_that_vllm_would_not_look_at_is_refused_by_name(option: dict[str, Any]):
    wanted = msgspec.structs.replace(chat(), structured_outputs={"json": {}, **option})
    with pytest.raises(UnsupportedParameter) as refused:
        plan(wanted, VLLM)

    assert refused.value.param == f"structured_outputs.{next(iter(option))}"
    assert body(wanted, OURS)["structured_outputs"] == {"json": {}, **option}


def test_an_option_that_is_off_is_not_sent():
    wanted = msgspec.structs.replace(
        chat(), structured_outputs={"json": {}, "disable_any_whitespace": False, "whitespace_pattern": None}
    )

    assert body(wanted, VLLM)["structured_outputs"] == {"json": {}}


def test_a_schema_that_is_no_json_is_refused():
    with pytest.raises(InvalidGrammar):
        plan(msgspec.structs.replace(chat(), structured_outputs={"json": "{"}), GENERIC)


def test_llama_server_is_asked_for_one_alternative_at_least():
    sent = plan(chat(logprobs=0), LLAMA_SERVER)

    assert (sent.body["top_logprobs"], sent.num_top) == (1, 0)


def test_llama_server_is_not_told_of_stops_in_a_stream():
    """It would lose the beginning of a stop that does not come."""
    streamed = plan(chat(stop=("a",), stream=True), LLAMA_SERVER)

    assert ("stop" in streamed.body, streamed.stops_unknown, streamed.stops) == (False, True, ("a",))
    assert plan(chat(stop=("a",)), LLAMA_SERVER).body["stop"] == ["a"]
    assert not plan(chat(stream=True), LLAMA_SERVER).stops_unknown
