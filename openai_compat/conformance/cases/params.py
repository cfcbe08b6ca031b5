"""Every field of a request does what it says, is refused, or is named as ignored."""

from __future__ import annotations

from typing import Any

from openai_compat.conformance.api import (
    CHAT,
    COMPLETIONS,
    Api,
    contract_error,
    encode,
    error_of,
    offered,
    ok,
)
from openai_compat.conformance.check import extension, given, openai_api

STORY = "Write a long story about the sea."
REPETITIVE = "one two one two one two one two one two one two"


@openai_api
def completion_stop__it_cuts_before_the_stop_as_a_string_a_list_and_a_stream(service: Api) -> None:
    whole = service.completion(max_tokens=24)["choices"][0]["text"]
    stop = whole[8:13]
    expected = whole[: whole.index(stop)]

    for form in (stop, [stop], ["never in the text", stop]):
        choice = service.completion(max_tokens=24, stop=form)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (expected, "stop")
    streamed = service.stream(COMPLETIONS, service.completion_body(max_tokens=24, stop=stop))
    assert (streamed.text(), streamed.finish_reasons()) == (expected, ["stop"])


@openai_api
def echo__the_prompt_stands_before_the_text_or_echo_is_refused(service: Api) -> None:
    echoed = offered(service.complete("The sea is", echo=True))["choices"][0]["text"]
    plain = service.completion("The sea is")["choices"][0]["text"]

    assert echoed == "The sea is" + plain


@openai_api
def n_choices__three_choices_and_usage_counts_them_all(service: Api) -> None:
    body = service.answer(n=3, temperature=1, max_tokens=5)

    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert all(choice["message"]["content"] and choice["finish_reason"] for choice in body["choices"])
    if all(choice["finish_reason"] == "length" for choice in body["choices"]):
        assert body["usage"]["completion_tokens"] == 15
    assert body["usage"]["prompt_tokens"] == service.answer(max_tokens=1)["usage"]["prompt_tokens"]


@openai_api
def n_with_greedy__two_equal_choices_equal_to_the_single_one(service: Api) -> None:
    two = service.answer(n=2)["choices"]

    assert [choice["message"]["content"] for choice in two] == [service.text()] * 2


@extension
def n_is_at_most_16__sixteen_are_given_and_seventeen_refused(service: Api) -> None:
    assert len(service.answer(n=16, max_tokens=2, temperature=1)["choices"]) == 16
    contract_error(service.chat(n=17), 422, "invalid_request_error", "validation_error", "n")


@openai_api
def logprobs_shape__one_entry_per_token_with_its_alternatives(service: Api) -> None:
    body = service.answer(logprobs=True, top_logprobs=3, max_tokens=5)

    choice = body["choices"][0]
    entries = choice["logprobs"]["content"]
    if choice["finish_reason"] == "length":
        assert len(entries) == body["usage"]["completion_tokens"] == 5
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    for entry in entries:
        assert entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        top = entry["top_logprobs"]
        assert len(top) == 3
        assert top == sorted(top, key=lambda one: -one["logprob"])
        assert (top[0]["token"], top[0]["logprob"]) == (entry["token"], entry["logprob"])


@openai_api
def logprobs_off__there_are_none_unasked_and_no_alternatives_without_a_number(service: Api) -> None:
    for off in ({}, {"logprobs": False}, {"logprobs": None}):
        assert service.answer(**off)["choices"][0].get("logprobs") is None
    for entry in service.answer(logprobs=True)["choices"][0]["logprobs"]["content"]:
        assert entry["top_logprobs"] == []


@openai_api
@given("number", [21, -1])
def too_many_top_logprobs__they_are_refused(service: Api, number: int) -> None:
    error_of(service.chat(logprobs=True, top_logprobs=number))


@openai_api
@given(
    "bias",
    [{"99999999": 1}, {"-1": 1}, {"word": 1}, {"5": "x"}, {"5": 101}, {"5": -101}, {"5": None}, "5", [5], 5],
    ids=repr,
)
def logit_bias_is_checked__what_is_no_bias_is_refused_and_the_server_lives(service: Api, bias: Any) -> None:
    error_of(service.chat(logit_bias=bias))
    service.assert_alive()


@openai_api
def logit_bias_works__plus_100_forces_a_token_and_minus_100_takes_it_away(service: Api) -> None:
    first, second = 1000, 2000
    induction = [first, second] * 8 + [first]
    forced = offered(service.complete(induction, max_tokens=1, logit_bias={str(second): 100}))
    token = forced["choices"][0]["text"]

    assert service.completion(induction, max_tokens=1)["choices"][0]["text"] == token
    assert service.text(max_tokens=1, logit_bias={str(second): 100}) == token
    banned = service.completion(induction, max_tokens=1, logit_bias={str(second): -100})
    assert banned["choices"][0]["text"] != token


@openai_api
def newer_openai_fields__what_sdks_send_does_no_harm(service: Api) -> None:
    fields = {
        "user": "someone",
        "metadata": {"job": "nightly"},
        "store": False,
        "service_tier": "auto",
        "prompt_cache_key": "key",
        "safety_identifier": "hash",
    }

    assert service.text(**fields) == service.text()


@extension
def unknown_fields_are_named__in_a_header_or_as_an_error_when_strict(service: Api) -> None:
    body = service.chat_body(made_up_field=5, top_k=0)
    lenient = service.post(CHAT, body)
    strict = service.post(CHAT, body, params={"strict": "1"})
    harmless = service.post(CHAT, service.chat_body(user="someone"), params={"strict": "1"})

    ok(lenient)
    named = lenient.headers["x-llm-ignored"]
    assert "made_up_field" in named
    assert not any(known in named for known in ("top_k", "temperature", "messages"))
    contract_error(strict, 422, "invalid_request_error", "validation_error", "made_up_field")
    ok(harmless)


@openai_api
def max_tokens_is_exact__five_are_five_and_end_with_length(service: Api) -> None:
    body = service.answer(STORY, max_tokens=5)

    assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (5, "length")


@openai_api
def max_completion_tokens_is_honoured__alone_and_in_a_stream(service: Api) -> None:
    body = service.chat_body(STORY, max_completion_tokens=5)
    del body["max_tokens"]
    plain = ok(service.post(CHAT, body))
    streamed = service.stream(CHAT, body | {"stream_options": {"include_usage": True}})

    assert (plain["usage"]["completion_tokens"], plain["choices"][0]["finish_reason"]) == (5, "length")
    assert streamed.usage
    assert (streamed.usage["completion_tokens"], streamed.finish_reasons()) == (5, ["length"])


@extension
def a_million_tokens_may_be_asked__and_not_one_more(service: Api) -> None:
    assert service.chat(max_tokens=1_000_000, stop=["e", "a", " "]).status_code == 200
    contract_error(
        service.chat(max_tokens=1_000_001), 422, "invalid_request_error", "validation_error", "max_tokens"
    )


def stops_in(text: str) -> tuple[str, str]:
    """Two stops over a word boundary, the earlier one first, neither of them anywhere before its place."""
    spaces = [at for at, character in enumerate(text) if character == " " and 2 < at < len(text) - 3]
    found = [text[at - 2 : at + 3] for at in spaces]
    unique = [stop for stop in dict.fromkeys(found) if text.count(stop) == 1]
    return unique[0], unique[2]


@openai_api
def stop_string__it_cuts_before_its_first_occurrence_over_a_word_boundary(service: Api) -> None:
    whole = service.text(STORY, max_tokens=32)
    stop, _ = stops_in(whole)
    expected = whole[: whole.index(stop)]
    choice = service.answer(STORY, max_tokens=32, stop=stop)["choices"][0]
    streamed = service.stream_chat(STORY, max_tokens=32, stop=stop)

    assert (choice["message"]["content"], choice["finish_reason"]) == (expected, "stop")
    assert (streamed.text(), streamed.finish_reasons()) == (expected, ["stop"])


@openai_api
def stop_list_earliest_in_text__the_place_in_the_list_does_not_matter(service: Api) -> None:
    whole = service.text(STORY, max_tokens=32)
    early, late = stops_in(whole)

    for stops in ([late, early], [early, late]):
        assert service.text(STORY, max_tokens=32, stop=stops) == whole[: whole.index(early)]


@openai_api
def unfinished_stop_is_text__a_mere_beginning_of_a_stop_is_not_lost(service: Api) -> None:
    whole = service.text(STORY, max_tokens=16)
    stop = whole[-4:] + "and this never comes"

    assert service.text(STORY, max_tokens=16, stop=stop) == whole
    assert service.stream_chat(STORY, max_tokens=16, stop=stop).text() == whole


@openai_api
def no_stop__null_and_an_empty_list_are_no_stops(service: Api) -> None:
    assert service.text(stop=None) == service.text(stop=[]) == service.text()


@openai_api
@given("stop", ["", [""], ["", "never in the text"]], ids=repr)
def empty_stop_never_ends_at_once__it_is_refused_or_ignored(service: Api, stop: Any) -> None:
    response = service.chat(stop=stop)

    if response.status_code != 200:
        error_of(response)
        return
    assert response.json()["choices"][0]["message"]["content"] == service.text()


@extension
def stop_bounds__sixteen_are_taken_and_seventeen_or_an_empty_one_refused(service: Api) -> None:
    assert service.chat(stop=[f"never {number}" for number in range(16)]).status_code == 200
    for stop in ([f"never {number}" for number in range(17)], ""):
        contract_error(service.chat(stop=stop), 422, "invalid_request_error", "validation_error", "stop")


@openai_api
@given("stop", [5, True, {}, {"a": "b"}, [5], [None], [["a"]], 1.5], ids=repr)
def stop_type__what_is_no_string_or_list_of_strings_is_refused(service: Api, stop: Any) -> None:
    error_of(service.chat(stop=stop))


@openai_api
@given("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400"])
@given("field", ["temperature", "top_p", "frequency_penalty", "max_tokens"])
def non_finite_numbers__they_are_refused_and_never_echoed_as_bad_json(
    service: Api, field: str, number: bytes
) -> None:
    body = encode(service.chat_body(**{field: "NUMBER"})).replace(b'"NUMBER"', number)

    error_of(service.post(CHAT, body))


@openai_api
@given("field", ["temperature", "top_p", "max_tokens", "n", "seed", "presence_penalty"])
def numbers_as_strings__they_are_refused(service: Api, field: str) -> None:
    error_of(service.chat(**{field: "1"}))
    error_of(service.chat(**{field: True}))


OUT_OF_RANGE = [
    ("temperature", 2.1),
    ("temperature", -0.1),
    ("top_p", 1.1),
    ("top_p", -0.1),
    ("frequency_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("presence_penalty", 2.1),
    ("presence_penalty", -2.1),
    ("n", 0),
    ("max_tokens", 0),
    ("max_tokens", -1),
]


@openai_api
@given(("field", "value"), OUT_OF_RANGE)
def out_of_range__it_is_refused(service: Api, field: str, value: float) -> None:
    error_of(service.chat(**{field: value}))
    if field != "n":
        error_of(service.complete(**{field: value}))


@extension
@given(("field", "value"), OUT_OF_RANGE)
def out_of_range_names_the_field__in_param_and_in_loc(service: Api, field: str, value: float) -> None:
    response = service.chat(**{field: value})

    contract_error(response, 422, "invalid_request_error", "validation_error", field)
    assert response.json()["detail"][0]["loc"] == ["body", field]


@openai_api
def zero_temperature_is_greedy__whatever_the_seed(service: Api) -> None:
    assert len({service.text(temperature=0, seed=seed, max_tokens=16) for seed in (1, 2, 3)}) == 1


@openai_api
def seed_is_deterministic__one_seed_is_one_text_and_four_are_not(service: Api) -> None:
    def sampled(seed: int) -> str:
        return service.text(temperature=1, seed=seed, max_tokens=16)

    assert sampled(11) == sampled(11)
    assert len({sampled(seed) for seed in (11, 12, 13, 14)}) > 1


@extension
def seed_is_deterministic__whether_or_not_the_prompts_prefix_was_cached(service: Api) -> None:
    prompts = [f"海很深。请重复这句话：海很深，船很{word}。" for word in ("多", "少", "大")]
    for fields in ({"temperature": 0}, {"temperature": 1, "seed": 5}):
        rounds = [[service.text(prompt, max_tokens=24, **fields) for prompt in prompts] for _ in range(3)]
        backwards = [service.text(prompt, max_tokens=24, **fields) for prompt in reversed(prompts)]
        assert all(texts == rounds[0] for texts in [*rounds, backwards[::-1]])


@openai_api
@given("field", ["frequency_penalty", "presence_penalty"])
def penalties_do_something__they_change_a_repetitive_answer_or_are_refused(service: Api, field: str) -> None:
    penalised = offered(service.complete(REPETITIVE, max_tokens=32, **{field: 2}))["choices"][0]["text"]
    plain = service.completion(REPETITIVE, max_tokens=32)["choices"][0]["text"]

    assert penalised != plain
