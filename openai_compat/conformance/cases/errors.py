"""What a refusal looks like: one body for every error, early enough, and nothing of the inside in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx

from openai_compat.conformance.api import (
    CHAT,
    COMPLETIONS,
    REFUSED,
    Api,
    contract_error,
    encode,
    error_object,
    error_of,
    user,
)
from openai_compat.conformance.check import NotApplicable, extension, given, openai_api

INTERNALS = re.compile(
    r'Traceback|File "|\.py\b|site-packages|0x[0-9a-f]{6,}|<class |/home/|/usr/|/root/', re.I
)

Refusal = Callable[[Api], httpx.Response]

REFUSALS: dict[str, tuple[Refusal, int, str, str, str | None]] = {
    "too long": (
        lambda api: api.chat("The sea is deep. " * 4000),
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "messages",
    ),
    "unknown model": (
        lambda api: api.chat(model="nobody/has-this-model"),
        404,
        "invalid_request_error",
        "model_not_found",
        None,
    ),
    "unknown path": (
        lambda api: api.http.get("/v1/nothing/here"),
        404,
        "invalid_request_error",
        "not_found",
        None,
    ),
    "wrong method": (
        lambda api: api.http.get(CHAT),
        405,
        "invalid_request_error",
        "method_not_allowed",
        None,
    ),
    "too large": (
        lambda api: api.post(CHAT, b"[" + b" " * (17 * 1024 * 1024) + b"]"),
        413,
        "invalid_request_error",
        "request_too_large",
        None,
    ),
    "not JSON by its type": (
        lambda api: api.post(CHAT, b"<x/>", headers={"Content-Type": "text/xml"}),
        415,
        "invalid_request_error",
        "unsupported_media_type",
        None,
    ),
    "not JSON": (lambda api: api.post(CHAT, b"{"), 422, "invalid_request_error", "validation_error", None),
    "out of range": (
        lambda api: api.chat(temperature=3),
        422,
        "invalid_request_error",
        "validation_error",
        "temperature",
    ),
}

OUR_REFUSALS = REFUSALS | {
    "unknown backend": (
        lambda api: api.chat(backend="nonsense"),
        400,
        "invalid_request_error",
        "backend_not_available",
        "backend",
    ),
}


@openai_api
@given("messages", ["absent", "hello", 5, {}, [5]], ids=repr)
def err_object_on_validation__the_error_object_has_a_message_and_a_type(service: Api, messages: Any) -> None:
    body = service.chat_body(messages=messages)
    if messages == "absent":
        del body["messages"]

    error_object(service.post(CHAT, body))


@openai_api
@given("name", list(REFUSALS), ids=str)
def err_code_is_string_or_null__and_so_is_param(service: Api, name: str) -> None:
    response = REFUSALS[name][0](service)

    if response.status_code == 200:
        raise NotApplicable(f"{name}: it is not refused")
    error_object(response, range(400, 500))


@openai_api
def err_empty_messages__an_empty_list_is_refused(service: Api) -> None:
    error_of(service.chat(messages=[]))


@openai_api
@given("name", list(REFUSALS), ids=str)
def err_no_internals__no_body_holds_a_traceback_a_path_or_an_address(service: Api, name: str) -> None:
    assert not INTERNALS.search(REFUSALS[name][0](service).text)


@extension
@given("name", list(OUR_REFUSALS), ids=str)
def err_detail_and_error__both_sides_say_what_the_table_says(service: Api, name: str) -> None:
    refusal, status, kind, code, param = OUR_REFUSALS[name]

    contract_error(refusal(service), status, kind, code, param)


@extension
def err_422_seed_form__the_entries_have_their_four_fields_and_never_echo_much(service: Api) -> None:
    empty = service.chat(messages=[user("")])
    many = service.chat(messages=[{"role": "wizard", "content": "x" * 5000}] * 40)

    assert empty.json()["detail"] == [
        {
            "type": "value_error",
            "loc": ["body", "messages", 0, "content"],
            "msg": "Message at index 0 with role 'user' cannot have empty content",
            "input": "",
        }
    ]
    error = contract_error(empty, 422, "invalid_request_error", "validation_error", "messages.0.content")
    assert "Message at index 0 with role 'user' cannot have empty content" in error["message"]
    assert len(many.json()["detail"]) <= 10
    assert all(len(str(entry["input"])) <= 300 for entry in many.json()["detail"])


@openai_api
@given("wrong", [{"temperature": 9}, {"messages": "hello"}, {"max_tokens": -1}, {"stop": 5}], ids=repr)
def err_status_before_stream__an_invalid_streaming_request_gets_its_status(
    service: Api, wrong: dict[str, Any]
) -> None:
    error_of(service.post(CHAT, service.chat_body(stream=True) | wrong))


@extension
def err_model_and_prompt_required__the_missing_field_is_named(service: Api) -> None:
    for path, body, missing in (
        (CHAT, {"messages": [user("Hi.")]}, "model"),
        (CHAT, {"model": service.model}, "messages"),
        (COMPLETIONS, {"model": service.model}, "prompt"),
    ):
        response = service.post(path, body)
        contract_error(response, 422, "invalid_request_error", "validation_error", missing)
        entry = response.json()["detail"][0]
        assert entry["loc"] == ["body", missing]
        assert entry["type"] == "missing"


@extension
def err_deep_nesting__a_body_that_no_parser_likes_is_422_and_the_server_lives(service: Api) -> None:
    deep = b"[" * 5000 + b"]" * 5000
    in_message = encode(service.chat_body("DEEP")).replace(b'"DEEP"', deep)

    for body in (deep, b"[" * 5000, in_message):
        error_of(service.post(CHAT, body), REFUSED)
    service.assert_alive()
