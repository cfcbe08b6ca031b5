"""Event streams, byte for byte: their headers, their frames, and that they say what the plain answer says."""

from __future__ import annotations

from typing import Any

from openai_compat.conformance.api import CHAT, COMPLETIONS, Api, encode, error_of, offered, user
from openai_compat.conformance.check import extension, given, openai_api
from openai_compat.conformance.event_stream import StreamedAnswer

STORY = "Write a long story about the sea."
EMOJI = "Repeat this line of emojis again and again: 🐙🌊🐳🏖️👩‍🚀🎉"
CJK = "海很深。请重复这句话：海很深，船很多。"
PATTERNS = ("🐙🌊🐳🐙🌊🐳🐙🌊🐳🐙🌊🐳", "海が深い。海が深い。海が深い。海が深い。", "na na na na na na na na")


def both_ways(api: Api, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], StreamedAnswer]:
    """The same request without and with stream."""
    plain = offered(api.post(path, body))
    return plain, api.stream(path, body | {"stream_options": {"include_usage": True}})


@openai_api
def completion_stream__it_says_what_the_plain_completion_says(service: Api) -> None:
    body = service.completion_body(max_tokens=12)
    plain, streamed = both_ways(service, COMPLETIONS, body)

    assert {chunk["object"] for chunk in streamed.chunks} == {"text_completion"}
    assert streamed.text() == plain["choices"][0]["text"]
    assert streamed.finish_reasons() == [plain["choices"][0]["finish_reason"]]
    assert streamed.usage
    assert streamed.usage["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert service.stream(COMPLETIONS, body).usage is None


@openai_api
def n_stream__each_choice_has_its_role_its_text_and_one_finish_reason(service: Api) -> None:
    streamed = service.stream_chat(
        n=2, temperature=1, seed=7, max_tokens=8, stream_options={"include_usage": True}
    )

    for index in (0, 1):
        entries = streamed.of(index)
        assert entries[0]["delta"]["role"] == "assistant"
        assert streamed.text(index)
        assert len(streamed.finish_reasons(index)) == 1
        assert entries[-1]["finish_reason"]
    assert {choice["index"] for choice in streamed.choices} == {0, 1}
    assert len([chunk for chunk in streamed.chunks if chunk.get("usage")]) == 1


@openai_api
def stream_is_an_event_stream__it_has_the_content_type_and_no_length(service: Api) -> None:
    streamed = service.stream_chat()

    assert streamed.status == 200
    assert streamed.headers["content-type"].split(";")[0] == "text/event-stream"
    assert "content-length" not in streamed.headers


@extension
def stream_headers__proxies_are_told_not_to_buffer_and_the_request_is_named(service: Api) -> None:
    streamed = service.stream_chat()

    assert streamed.headers["cache-control"] == "no-cache"
    assert streamed.headers["x-accel-buffering"] == "no"
    assert streamed.headers["x-request-id"]
    assert streamed.headers["x-llm-backend"] == service.entry()["backend"]


@openai_api
def stream_framing__each_frame_is_one_data_line_and_done_comes_last_and_once(service: Api) -> None:
    streamed = service.stream_chat()  # its reader refuses every other frame

    assert streamed.done
    assert streamed.raw.endswith((b"[DONE]\n\n", b"[DONE]\r\n\r\n"))
    assert streamed.raw.count(b"[DONE]") == 1


@openai_api
def stream_identity__all_chunks_are_of_one_answer(service: Api) -> None:
    chunks = service.stream_chat(stream_options={"include_usage": True}).chunks

    assert len({chunk["id"] for chunk in chunks}) == 1
    assert len({chunk["created"] for chunk in chunks}) == 1
    assert len({chunk["model"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


@openai_api
def role_first_finish_last__only_the_ends_of_a_choice_carry_them(service: Api) -> None:
    entries = service.stream_chat().of(0)

    assert entries[0]["delta"]["role"] == "assistant"
    assert all("role" not in entry["delta"] or entry is entries[0] for entry in entries)
    assert entries[-1]["finish_reason"] in ("stop", "length")
    assert all(entry.get("finish_reason") is None for entry in entries[:-1])


def assert_no_empty_deltas(streamed: StreamedAnswer) -> None:
    for entry in streamed.of(0)[1:-1]:
        said = entry["delta"].get("content") if "delta" in entry else entry["text"]
        assert said or any(entry.get("delta", {}).values()), entry


@openai_api
def no_empty_deltas__not_even_where_bytes_or_a_possible_stop_are_held_back(service: Api) -> None:
    text = service.text(STORY, max_tokens=24)
    never = [text[at : at + 3] + "never-in-the-text" for at in (2, 9, 17)]

    assert_no_empty_deltas(service.stream_chat(STORY, max_tokens=24))
    assert_no_empty_deltas(service.stream_chat(STORY, max_tokens=24, stop=never))
    assert_no_empty_deltas(service.stream_chat(EMOJI, max_tokens=24))
    for pattern in PATTERNS:
        body = service.completion_body(pattern, max_tokens=24)
        for entry in service.stream(COMPLETIONS, body).of(0)[:-1]:
            assert entry["text"], entry


@openai_api
@given("content", [STORY, EMOJI, CJK], ids=["ascii", "emoji", "cjk"])
def stream_text_is_the_text__of_a_chat(service: Api, content: str) -> None:
    body = service.chat_body(content, max_tokens=24)
    plain, streamed = both_ways(service, CHAT, body)

    assert streamed.text() == plain["choices"][0]["message"]["content"]


@openai_api
@given("pattern", PATTERNS, ids=["emoji", "cjk", "ascii"])
def stream_text_is_the_text__of_a_completion(service: Api, pattern: str) -> None:
    for max_tokens in (7, 8, 9, 24):
        plain, streamed = both_ways(
            service, COMPLETIONS, service.completion_body(pattern, max_tokens=max_tokens)
        )
        assert streamed.text() == plain["choices"][0]["text"]
        assert plain["choices"][0]["text"]


@openai_api
def usage_when_asked__one_last_chunk_has_the_plain_answers_usage(service: Api) -> None:
    plain, streamed = both_ways(service, CHAT, service.chat_body())

    last = streamed.chunks[-1]
    assert last["choices"] == []
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][field] == plain["usage"][field]
    assert all(chunk.get("usage") is None and chunk["choices"] for chunk in streamed.chunks[:-1])


@openai_api
@given("options", ["absent", {"include_usage": False}, None, {}], ids=repr)
def no_usage_unasked__no_chunk_has_usage_or_empty_choices(service: Api, options: Any) -> None:
    fields = {} if options == "absent" else {"stream_options": options}
    streamed = service.stream_chat(max_tokens=4, **fields)

    assert all(chunk.get("usage") is None and chunk["choices"] for chunk in streamed.chunks)


@openai_api
def stream_options_need_stream__without_stream_they_are_refused(service: Api) -> None:
    error_of(service.chat(stream_options={"include_usage": True}))
    error_of(service.chat(stream=False, stream_options={"include_usage": True}))


@openai_api
@given(
    "wrong", [{"temperature": 9}, {"n": 0}, {"messages": []}, {"messages": None}, {"max_tokens": 0}], ids=repr
)
def early_errors_keep_their_status__they_are_json_and_no_event_stream(
    service: Api, wrong: dict[str, Any]
) -> None:
    body = service.chat_body(messages=[user("Hi.")], stream=True) | wrong
    response = service.http.post(CHAT, content=encode(body), headers={"Content-Type": "application/json"})

    error_of(response)


@openai_api
def one_token_stream__it_has_a_role_one_tokens_text_and_length(service: Api) -> None:
    streamed = service.stream_chat(max_tokens=1, stream_options={"include_usage": True})

    assert streamed.of(0)[0]["delta"]["role"] == "assistant"
    assert streamed.text()
    assert streamed.finish_reasons() == ["length"]
    assert streamed.usage
    assert streamed.usage["completion_tokens"] == 1
