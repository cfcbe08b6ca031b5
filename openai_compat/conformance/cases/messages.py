"""What may be asked: chat messages and legacy prompts, and what of them reaches the model."""

from __future__ import annotations

from typing import Any

from openai_compat.conformance.api import (
    CHAT,
    COMPLETIONS,
    MAY_REFUSE,
    REFUSED,
    Api,
    contract_error,
    error_of,
    offered,
    ok,
    user,
)
from openai_compat.conformance.check import extension, given, openai_api

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
SENTENCE = "Every answer must mention the green lighthouse on the northern cape."


@openai_api
def completion_shape__a_completion_has_a_text_a_finish_reason_and_usage_that_adds_up(
    service: Api,
) -> None:
    body = service.completion(max_tokens=6)

    choice, usage = body["choices"][0], body["usage"]
    assert body["object"] == "text_completion"
    assert isinstance(body["created"], int)
    assert (choice["index"], isinstance(choice["text"], str)) == (0, True)
    assert choice["finish_reason"] in ("stop", "length")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == 6 or choice["finish_reason"] == "stop"


@extension
def completion_ids_and_backend__ids_say_their_kind_and_both_name_their_backend(service: Api) -> None:
    for response, prefix in ((service.chat(), "chatcmpl-"), (service.complete(), "cmpl-")):
        offered(response)
        body = ok(response)
        assert body["id"].startswith(prefix)
        assert body["backend"] == response.headers["x-llm-backend"] == service.entry()["backend"]


@openai_api
def list_of_prompts__each_prompt_has_its_choice_in_order(service: Api) -> None:
    prompts = ["The sea is", "One, two, three,", "The capital of France is"]
    together = service.completion(prompts, max_tokens=4)
    alone = [service.completion(prompt, max_tokens=4) for prompt in prompts]

    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in together["choices"]] == [one["choices"][0]["text"] for one in alone]
    for field in ("prompt_tokens", "completion_tokens"):
        assert together["usage"][field] == sum(one["usage"][field] for one in alone)


@openai_api
def token_ids_as_prompt__ids_are_counted_one_by_one_and_lists_are_prompts(service: Api) -> None:
    one = service.completion([300, 301, 302, 303, 304], max_tokens=2)
    several = service.completion([[300, 301], [302, 303, 304]], max_tokens=2)

    assert one["usage"]["prompt_tokens"] == 5
    assert [choice["index"] for choice in several["choices"]] == [0, 1]
    assert several["usage"]["prompt_tokens"] == 5


NO_PROMPTS: list[Any] = [None, [], 5, True, {}, {"text": "x"}, [1.5], [10**9], [-1], [[10**9]]]
MIXED_PROMPTS: list[Any] = [["text", 5], [5, "text"], [[5], "text"], [[]]]


@openai_api
@given("prompt", [*NO_PROMPTS, *MIXED_PROMPTS], ids=repr)
def bad_prompts__what_is_no_prompt_is_refused_and_the_server_lives(service: Api, prompt: Any) -> None:
    service.completion(max_tokens=1)  # where no model completes text, nothing is refused for its prompt

    error_of(service.complete(prompt))
    service.assert_alive()


@extension
def prompt_is_required__a_body_without_a_prompt_names_it(service: Api) -> None:
    response = service.post(COMPLETIONS, {"model": service.model, "max_tokens": 4})

    contract_error(response, 422, "invalid_request_error", "validation_error", "prompt")


@extension
def model_is_optional__a_completion_takes_the_default_model_and_a_chat_must_name_one(
    service: Api,
) -> None:
    for body in ({"messages": [user("Hi")]}, {"messages": [user("Hi")], "model": None}):
        contract_error(service.post(CHAT, body), 422, "invalid_request_error", "validation_error", "model")
    absent = offered(service.post(COMPLETIONS, {"prompt": "The sea is", "max_tokens": 2}))
    null = ok(service.post(COMPLETIONS, {"prompt": "The sea is", "max_tokens": 2, "model": None}))
    known = {entry["id"] for entry in service.models()}

    assert absent["model"] == null["model"]
    assert absent["model"] in known


@openai_api
def nullable_fields_may_be_null__null_equals_absent_where_openai_says_so(service: Api) -> None:
    nullable = (
        "frequency_penalty logit_bias logprobs top_logprobs n presence_penalty seed stop stream "
        "stream_options top_p store metadata service_tier max_completion_tokens reasoning_effort"
    )
    plain = service.text()

    assert service.text(**dict.fromkeys(nullable.split())) == plain
    assert service.chat(temperature=None, max_tokens=2).status_code == 200
    assert service.text(max_tokens=None, max_completion_tokens=8) == plain


@openai_api
def nullable_fields_may_be_null__of_a_text_completion_too(service: Api) -> None:
    assert service.completion(suffix=None, echo=None, best_of=None, logprobs=None)["choices"]


@extension
def every_optional_field_may_be_null__extensions_and_the_backend_included(service: Api) -> None:
    optional = (
        "backend user tools tool_choice parallel_tool_calls response_format functions function_call modalities "
        "prediction top_k min_p typical_p repetition_penalty stop_token_ids ignore_eos min_tokens grammar "
        "structured_outputs chat_template_kwargs continue_final_message add_generation_prompt privacy receipt"
    )
    plain = service.text(max_tokens=3)

    for field in optional.split():
        assert service.text(max_tokens=3, **{field: None}) == plain, field
    assert service.text(max_tokens=3, **dict.fromkeys(optional.split())) == plain


@openai_api
def null_inside_messages__what_sdks_dump_costs_nothing(service: Api) -> None:
    bare = {"role": "assistant", "content": "Waves."}
    dumped = bare | {"tool_calls": None, "function_call": None, "refusal": None, "audio": None}
    around = [user("Name one thing of the sea.")], [user("And another?")]

    assert service.prompt_tokens([*around[0], dumped, *around[1]]) == service.prompt_tokens(
        [*around[0], bare, *around[1]]
    )
    assert service.text(messages=[*around[0], dumped, *around[1]]) == service.text(
        messages=[*around[0], bare, *around[1]]
    )


def conversation_with_call(**assistant: Any) -> list[dict[str, Any]]:
    return [
        user("How is the weather in Lima?"),
        {"role": "assistant", "tool_calls": [CALL], **assistant},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
    ]


@openai_api
def tool_calls_without_content__null_and_absent_are_the_same_and_never_a_word(service: Api) -> None:
    absent = service.prompt_tokens(conversation_with_call())
    null = service.prompt_tokens(conversation_with_call(content=None))
    empty = service.prompt_tokens(conversation_with_call(content=""))

    assert absent == null == empty


@openai_api
def tool_calls_with_content__the_content_beside_a_call_reaches_the_prompt(service: Api) -> None:
    without = service.prompt_tokens(conversation_with_call(content=""))
    beside = service.prompt_tokens(conversation_with_call(content=SENTENCE))

    assert beside >= without + 8


@openai_api
def text_parts_are_one_message__parts_are_joined_by_nothing_or_by_a_newline(service: Api) -> None:
    parts = ["The lighthouse is green.", "It stands on the cape."]
    listed = service.prompt_tokens([user([{"type": "text", "text": part} for part in parts])])

    assert listed in {service.prompt_tokens([user(joint.join(parts))]) for joint in ("", "\n")}


@openai_api
@given("role", ["system", "developer"])
def developer_role_is_counted__its_text_reaches_the_prompt(service: Api, role: str) -> None:
    short = service.prompt_tokens([{"role": role, "content": "Ok."}, user("Hello.")])
    longer = service.prompt_tokens([{"role": role, "content": SENTENCE}, user("Hello.")])

    assert longer >= short + 8


@openai_api
def tool_role_is_counted__a_tool_result_reaches_the_prompt(service: Api) -> None:
    conversation = conversation_with_call()
    longer = [*conversation[:-1], conversation[-1] | {"content": SENTENCE}]

    assert service.prompt_tokens(longer) >= service.prompt_tokens(conversation) + 8


@extension
def function_role_is_counted__the_deprecated_role_reaches_the_prompt(service: Api) -> None:
    def tokens(content: str) -> int:
        result = {"role": "function", "name": "weather", "content": content}
        return service.prompt_tokens([user("How is the weather?"), result])

    assert tokens(SENTENCE) >= tokens("Sunny.") + 8


@openai_api
def trailing_assistant_message__it_is_answered_with_it_in_the_prompt_or_refused(service: Api) -> None:
    response = service.chat(
        messages=[user("Name one thing of the sea."), {"role": "assistant", "content": SENTENCE}]
    )

    if response.status_code != 200:
        error_of(response)
        return
    without = service.prompt_tokens([user("Name one thing of the sea.")])
    assert response.json()["usage"]["prompt_tokens"] >= without + 8


@openai_api
@given("messages", ["absent", None, [], "hello", {}, [5], ["hello"], [None], [[]], [True]], ids=repr)
def messages_field_is_checked__what_is_no_list_of_messages_is_refused(service: Api, messages: Any) -> None:
    body = service.chat_body(messages=messages)
    if messages == "absent":
        del body["messages"]

    error_of(service.post(CHAT, body))


@openai_api
@given(
    "message",
    [
        {"content": "Hi"},
        {"role": "wizard", "content": "Hi"},
        {"role": None, "content": "Hi"},
        {"role": 5, "content": "Hi"},
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": 5},
        {"role": "user", "content": True},
        {"role": "user", "content": {}},
        {"role": "user", "content": [5]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        {"role": "system", "content": ["Hi", None]},
        {"role": "assistant", "content": 5},
        {"role": "assistant", "tool_calls": "call"},
    ],
    ids=repr,
)
def message_fields_are_checked__a_wrong_role_or_content_is_refused(
    service: Api, message: dict[str, Any]
) -> None:
    error_of(service.chat(messages=[message, user("Hello.")]))


@extension
@given("content", ["", [], [{"type": "text", "text": ""}]], ids=repr)
@given("index", [0, 2])
def empty_user_message__it_is_refused_in_the_documented_words(service: Api, content: Any, index: int) -> None:
    before = [user("Hello."), {"role": "assistant", "content": "Hello!"}][:index]
    response = service.chat(messages=[*before, user(content)])

    error = contract_error(response, 422, "invalid_request_error", "validation_error")
    entry = response.json()["detail"][0]
    assert entry == {
        "type": "value_error",
        "loc": ["body", "messages", index, "content"],
        "msg": f"Message at index {index} with role 'user' cannot have empty content",
        "input": content,
    }
    assert error["param"] == f"messages.{index}.content"


@openai_api
def empty_assistant_message__it_is_accepted(service: Api) -> None:
    turns = [user("Hello."), {"role": "assistant", "content": ""}, user("Are you there?")]

    assert service.answer(messages=turns)["choices"]


@openai_api
@given("stream", [False, True])
def image_on_a_text_model__an_image_part_is_refused(service: Api, stream: bool) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]

    error_of(service.chat(parts, stream=stream))


@openai_api
@given("stream", [False, True])
def lone_surrogate__it_is_refused_or_replaced_and_the_server_lives(service: Api, stream: bool) -> None:
    for text in ("a lone \ud800 half", "\udc00", "\ud83d"):
        response = service.chat(text, stream=stream)
        assert response.status_code in (200, *REFUSED), response.text[:300]
        response.content.decode("utf-8")
    assert service.complete("a lone \ud800 half").status_code in (200, *MAY_REFUSE)
    service.assert_alive()


@openai_api
def astral_and_control_characters__a_pair_is_one_character_and_controls_do_no_harm(
    service: Api,
) -> None:
    escaped = service.chat_body("smile \U0001f600", max_tokens=1)
    utf8 = (
        f'{{"model": "{service.model}", "max_tokens": 1, "temperature": 0, '
        '"messages": [{"role": "user", "content": "smile \U0001f600"}]}'
    ).encode()

    assert (
        ok(service.post(CHAT, escaped))["usage"]["prompt_tokens"]
        == ok(service.post(CHAT, utf8))["usage"]["prompt_tokens"]
    )
    for control in ("\x00", "\x01\x02", "\x1b[31m", "\x7f", "\u2028", "\ufeff", "\r\n\t"):
        assert service.chat(f"a{control}b").status_code in (200, *REFUSED), repr(control)
    service.assert_alive()


@extension
def at_most_1000_messages__a_thousand_pass_validation_and_one_more_does_not(service: Api) -> None:
    turn = user("The sea is deep and the ships on it are many, and every one of them has a name of its own.")
    thousand = service.chat(messages=[turn] * 1000)
    one_more = service.chat(messages=[turn] * 1001)

    assert thousand.status_code in (200, 400), thousand.text[:300]
    if thousand.status_code == 400:
        assert thousand.json()["error"]["code"] == "context_length_exceeded"
    contract_error(one_more, 422, "invalid_request_error", "validation_error", "messages")


@openai_api
def basic_chat__a_chat_completion_has_every_part_and_usage_that_adds_up(service: Api) -> None:
    body = service.answer(max_tokens=6)

    choice, usage = body["choices"][0], body["usage"]
    assert body["id"]
    assert body["object"] == "chat.completion"
    assert isinstance(body["model"], str)
    assert isinstance(body["created"], int)
    assert (choice["index"], choice["message"]["role"]) == (0, "assistant")
    assert choice["message"]["content"]
    assert choice["finish_reason"] in ("stop", "length")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@extension
def basic_chat__the_answer_names_the_model_that_was_asked_for(service: Api) -> None:
    # OpenAI's own answers name the dated model behind an alias.
    streamed = service.stream_chat(max_tokens=1)

    assert service.answer(max_tokens=1)["model"] == service.model
    assert {chunk["model"] for chunk in streamed.chunks} == {service.model}
