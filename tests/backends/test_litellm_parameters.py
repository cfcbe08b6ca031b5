"""What is sent to a provider, what is done here in its place, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from backends.errors import InvalidParameter, NotSupported, UnsupportedParameter
from backends.litellm.deployment import Deployment
from backends.litellm.parameters import Plan, plan
from backends.types import ChatPrompt, GenerationRequest, Prompt, SamplingParams, TextPrompt, TokenPrompt

CHAT = ChatPrompt(messages=[{"role": "user", "content": "hi"}])
TEXT = TextPrompt(text="Once upon a time")
OPENAI = frozenset(
    {
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "stop",
        "stream_options",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
    }
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def a_deployment(provider: str = "openai", supported: frozenset[str] = OPENAI, **fields: Any) -> Deployment:
    return Deployment(provider=provider, model="m", supported=supported, mode="chat", **fields)


def planned(
    deployment: Deployment | None = None, prompt: Prompt | tuple[Prompt, ...] = CHAT, **fields: Any
) -> Plan:
    """The plan of a request whose sampling fields were all set by the caller, unless `explicit` says otherwise."""
    names = {name for name in fields if name in SamplingParams.__struct_fields__}
    sampling = {name: fields.pop(name) for name in names}
    sampling.setdefault("explicit", frozenset(sampling))
    prompts = prompt if isinstance(prompt, tuple) else (prompt,)
    request = GenerationRequest(
        request_id="r", model="card", prompts=prompts, sampling=SamplingParams(**sampling), **fields
    )
    return plan(request, deployment or a_deployment())


def sent(deployment: Deployment | None = None, prompt: Prompt = CHAT, **fields: Any) -> dict[str, Any]:
    """The arguments of the only call, without the prompt."""
    (part,) = planned(deployment, prompt, **fields).parts
    return {name: value for name, value in part.arguments.items() if name not in ("messages", "prompt")}


def refused(deployment: Deployment | None = None, prompt: Prompt = CHAT, **fields: Any) -> str | None:
    """The parameter that an UnsupportedParameter names."""
    with pytest.raises(UnsupportedParameter) as raised:
        planned(deployment, prompt, **fields)
    return raised.value.param


def without(*names: str) -> Deployment:
    return a_deployment(supported=OPENAI - set(names))


def test_a_request_that_says_nothing_sends_the_default_temperature_alone():
    assert sent() == {"temperature": 0.7}


def test_a_default_is_left_out_where_the_model_does_not_take_it():
    assert sent(without("temperature")) == {}


def test_a_default_that_the_provider_refused_once_is_left_out_from_then_on():
    deployment = a_deployment()
    deployment.unsendable.add("temperature")

    assert sent(deployment) == {}


def test_a_cards_default_that_the_model_does_not_take_is_left_out():
    assert sent(without("top_p"), top_p=0.5, explicit=frozenset()) == {"temperature": 0.7}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0),
        ("top_p", 1.0),
        ("top_p", 0.5),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("seed", -(2**63)),
    ],
)
def test_what_the_caller_set_is_sent_or_refused_by_name(name: str, value: object):
    assert sent(**{name: value})[name] == value
    assert refused(without(name), **{name: value}) == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 5),
        ("min_p", 0.1),
        ("typical_p", 0.9),
        ("repetition_penalty", 1.1),
        ("min_tokens", 3),
        ("stop_token_ids", (7,)),
        ("ignore_eos", True),
        ("grammar", 'root ::= "a"'),
    ],
)
def test_an_extension_is_refused_where_the_provider_has_none(name: str, value: object):
    assert refused(**{name: value}) == name


@pytest.mark.parametrize(
    ("name", "value"), [("top_k", 0), ("min_p", 0.0), ("ignore_eos", False), ("repetition_penalty", 1.0)]
)
def test_an_extension_with_its_neutral_value_asks_for_nothing(name: str, value: object):
    assert sent(**{name: value}) == {"temperature": 0.7}


def test_openrouter_takes_three_extensions_in_the_body():
    arguments = sent(a_deployment("openrouter"), top_k=5, min_p=0.1, repetition_penalty=1.1)

    assert arguments["extra_body"] == {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}
    assert refused(a_deployment("openrouter"), typical_p=0.9) == "typical_p"


def test_anthropic_takes_top_k_as_its_own_parameter():
    assert sent(a_deployment("anthropic"), top_k=5)["top_k"] == 5


def test_a_vllm_of_ones_own_takes_what_vllm_takes():
    arguments = sent(a_deployment("hosted_vllm"), ignore_eos=True, min_tokens=2, stop_token_ids=(1, 2))

    assert arguments["extra_body"] == {"ignore_eos": True, "min_tokens": 2, "stop_token_ids": [1, 2]}


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "vertex_ai"])
def test_a_default_temperature_gives_way_to_top_p_where_only_one_of_them_may_be_set(provider: str):
    assert sent(a_deployment(provider), top_p=0.5) == {"top_p": 0.5}
    assert sent(a_deployment(provider), top_p=0.5, temperature=0.2) == {"top_p": 0.5, "temperature": 0.2}


def test_a_default_temperature_gives_way_to_thinking():
    deployment = a_deployment("anthropic", OPENAI | {"reasoning_effort"})

    assert sent(deployment, reasoning_effort="low") == {"reasoning_effort": "low"}
    assert sent(deployment, reasoning_effort="none") == {"reasoning_effort": "none", "temperature": 0.7}


def test_a_limit_beyond_what_the_model_can_write_is_what_it_can_write():
    assert sent(a_deployment(max_output_tokens=4096), max_tokens=1_000_000)["max_tokens"] == 4096
    assert sent(a_deployment(max_output_tokens=4096), max_tokens=10)["max_tokens"] == 10


def test_the_limit_goes_under_the_name_that_the_model_takes():
    assert sent(without("max_tokens"), max_tokens=10)["max_completion_tokens"] == 10


def test_logit_bias_is_sent_with_text_keys_or_refused():
    assert sent(logit_bias={5: -100.0})["logit_bias"] == {"5": -100.0}
    assert refused(without("logit_bias"), logit_bias={5: 1.0}) == "logit_bias"


def test_logprobs_are_asked_for_in_two_parameters_or_refused():
    assert sent(logprobs=3) == {"temperature": 0.7, "logprobs": True, "top_logprobs": 3}
    assert sent(logprobs=0) == {"temperature": 0.7, "logprobs": True}
    assert refused(without("logprobs"), logprobs=0) == "logprobs"


def test_as_many_stops_as_the_provider_takes_are_sent():
    made = planned(stop=("a", "b", "c", "d"))

    assert made.parts[0].arguments["stop"] == ["a", "b", "c", "d"]
    assert made.stops == ()


@pytest.mark.parametrize(
    ("deployment", "stops"),
    [
        (a_deployment(), ("a", "b", "c", "d", "e")),
        (without("stop"), ("a",)),
        (a_deployment("anthropic"), ("a", "\n\n")),
    ],
    ids=["too many", "none taken", "blank for Anthropic"],
)
def test_stops_that_the_provider_does_not_take_are_all_cut_here_from_a_stream(
    deployment: Deployment, stops: tuple[str, ...]
):
    made = planned(deployment, stop=stops)

    assert "stop" not in made.parts[0].arguments
    assert made.stops == stops
    assert made.parts[0].arguments["stream"] is True


def test_a_stream_asks_for_its_usage_where_the_provider_has_such_an_option():
    assert sent(stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in sent(without("stream_options"), stream=True)


def test_several_choices_are_one_call_where_the_provider_answers_with_several():
    (part,) = planned(n=3).parts

    assert part.choices == (0, 1, 2)
    assert part.arguments["n"] == 3


@pytest.mark.parametrize(
    ("deployment", "stream"),
    [(a_deployment("anthropic"), False), (a_deployment(), True), (without("n"), False)],
    ids=["Anthropic", "a stream", "n not taken"],
)
def test_several_choices_are_calls_side_by_side_elsewhere(deployment: Deployment, stream: bool):
    parts = planned(deployment, n=3, stream=stream).parts

    assert [part.choices for part in parts] == [(0,), (1,), (2,)]
    assert all("n" not in part.arguments for part in parts)


def test_a_list_of_prompts_numbers_its_choices_prompt_by_prompt():
    deployment = a_deployment("text-completion-openai")
    parts = planned(deployment, (TEXT, TokenPrompt(token_ids=[1, 2])), n=2).parts

    assert [(part.prompt, part.choices) for part in parts] == [(0, (0, 1)), (1, (2, 3))]
    assert [part.arguments["prompt"] for part in parts] == ["Once upon a time", [1, 2]]


def test_a_text_prompt_to_a_model_that_only_chats_is_not_implemented():
    with pytest.raises(NotSupported, match="chat only"):
        planned(a_deployment(), TEXT)


def test_a_model_of_embeddings_does_not_chat():
    deployment = Deployment(provider="openai", model="m", supported=OPENAI, mode="embedding")

    assert refused(deployment) == "model"


@pytest.mark.parametrize("token", [-1, 1 << 20])
def test_a_token_id_of_no_vocabulary_is_refused_here(token: int):
    with pytest.raises(InvalidParameter):
        planned(a_deployment("text-completion-openai"), TokenPrompt(token_ids=[5, token]))


def test_echo_is_done_here_for_text_and_refused_for_token_ids():
    deployment = a_deployment("text-completion-openai")

    assert planned(deployment, TEXT, echo=True).parts[0].echo == "Once upon a time"
    assert refused(deployment, TokenPrompt(token_ids=[5]), echo=True) == "echo"


def test_logprobs_of_a_text_completion_are_refused():
    assert refused(a_deployment("text-completion-openai"), TEXT, logprobs=2) == "logprobs"


def test_tools_and_their_choice_are_sent_or_refused_by_name():
    prompt = ChatPrompt(messages=CHAT.messages, tools=TOOLS)
    fields = {"tool_choice": "required", "parallel_tool_calls": False}

    assert sent(None, prompt, **fields) == {"temperature": 0.7, "tools": TOOLS, **fields}
    assert refused(without("tools"), prompt) == "tools"
    assert refused(without("tool_choice"), prompt, **fields) == "tool_choice"
    assert refused(without("parallel_tool_calls"), prompt, **fields) == "parallel_tool_calls"


def test_a_choice_of_tools_without_tools_is_not_sent():
    assert sent(tool_choice="none") == {"temperature": 0.7}


def test_a_response_format_is_sent_or_refused():
    wanted = {"type": "json_object"}

    assert sent(response_format=wanted)["response_format"] == wanted
    assert refused(without("response_format"), response_format=wanted) == "response_format"


def test_vllms_json_form_becomes_openais_and_its_other_forms_are_refused():
    schema = {"type": "object"}
    made = sent(structured_outputs={"json": schema})["response_format"]

    assert made["json_schema"]["schema"] == schema
    assert sent(structured_outputs={"json_object": True})["response_format"] == {"type": "json_object"}
    assert refused(structured_outputs={"regex": "a+"}) == "structured_outputs"
    assert refused(without("response_format"), structured_outputs={"json": schema}) == "structured_outputs"


def test_a_vllm_of_ones_own_gets_structured_outputs_as_they_are():
    arguments = sent(a_deployment("hosted_vllm"), structured_outputs={"regex": "a+"}, top_k=3)

    assert arguments["extra_body"] == {"top_k": 3, "structured_outputs": {"regex": "a+"}}


@pytest.mark.parametrize("prompt", [TEXT, TokenPrompt(token_ids=[1, 2])])
@pytest.mark.parametrize(
    "asked", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_a_text_completion_has_no_form_of_answer(prompt: Prompt, asked: dict[str, Any]):
    completes = Deployment(provider="text-completion-openai", model="m", supported=OPENAI, mode="completion")

    assert refused(completes, prompt, **asked) == next(iter(asked))


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
@pytest.mark.parametrize(
    "option",
    [{"disable_fallback": True}, {"disable_any_whitespace": True}, {"whitespace_pattern": " "}],
    ids=str,
)
def test_an_option_that_nobody_would_look_at_is_refused_by_name(provider: str, option: dict[str, Any]):
    asked = {"json": {"type": "object"}, **option}

    assert refused(a_deployment(provider), structured_outputs=asked) == (
        f"structured_outputs.{next(iter(option))}"
    )


def test_an_effort_of_reasoning_is_sent_or_refused():
    assert sent(a_deployment(supported=OPENAI | {"reasoning_effort"}), reasoning_effort="low") == {
        "temperature": 0.7,
        "reasoning_effort": "low",
    }
    assert refused(reasoning_effort="low") == "reasoning_effort"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_what_is_about_a_template_is_refused(fields: dict[str, Any], param: str):
    assert refused(None, ChatPrompt(messages=CHAT.messages, **fields)) == param


def test_a_model_that_continues_a_message_may_be_asked_to():
    prompt = ChatPrompt(messages=CHAT.messages, continue_final_message=True, add_generation_prompt=False)

    assert sent(a_deployment(prefills=True), prompt) == {"temperature": 0.7}


def test_the_messages_of_a_request_are_not_shared_with_its_calls():
    (part,) = planned().parts
    part.own_arguments()["messages"][0]["content"] = "changed"

    assert part.own_arguments()["messages"][0]["content"] == "hi"
    assert CHAT.messages[0]["content"] == "hi"
