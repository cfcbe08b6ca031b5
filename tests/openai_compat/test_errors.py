"""From an exception to status, headers and body."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from backends import errors as be
from models import errors as me
from openai_compat import errors
from openai_compat.errors import (
    ROWS,
    ValidationFailed,
    error_body,
    error_headers,
    error_response,
    error_status,
)


def body(exc: BaseException) -> dict[str, Any]:
    """The body as a strict JSON parser reads it."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    parsed: dict[str, Any] = json.loads(error_body(exc).decode("utf-8", "strict"), parse_constant=refuse)
    return parsed


def tree(root: type[Exception]) -> set[type[Exception]]:
    """A class and everything under it."""
    return {root}.union(*(tree(child) for child in root.__subclasses__()))


@pytest.mark.parametrize("root", [be.ServiceError, me.ModelError])
def test_every_error_class_has_a_row_of_its_own(root: type[Exception]) -> None:
    unmapped = {cls for cls in tree(root) if not cls.__module__.startswith("tests")} - ROWS.keys()

    assert unmapped == set()


def test_a_subclass_without_a_row_takes_its_parents() -> None:
    class Special(be.Overloaded):
        pass

    assert error_status(Special("full")) == 503
    del Special


@pytest.mark.parametrize(
    ("exc", "status", "kind", "code", "param"),
    [
        (
            be.BackendNotAvailable.named("vllm"),
            400,
            "invalid_request_error",
            "backend_not_available",
            "backend",
        ),
        (be.InvalidGrammar("no root"), 400, "invalid_request_error", "invalid_schema", "grammar"),
        (
            be.UnsupportedParameter("no", param="n"),
            400,
            "invalid_request_error",
            "unsupported_parameter",
            "n",
        ),
        (be.Conflict("loading"), 409, "invalid_request_error", "conflict", None),
        (be.NotSupported("cannot"), 501, "not_supported_error", "not_implemented", None),
        (be.BackendFailed("died"), 500, "server_error", "backend_error", None),
        (be.Overloaded("Concurrency limit exceeded"), 503, "overloaded_error", "concurrency_limit", None),
        (be.BackendUnavailable("gone"), 503, "overloaded_error", "backend_unavailable", None),
        (be.InsufficientMemory("full"), 503, "overloaded_error", "backend_unavailable", None),
        (be.BackendTimeout("late"), 504, "timeout_error", "timeout", None),
        (be.UpstreamError("html"), 502, "upstream_error", "upstream_error", None),
        (be.UpstreamAuthFailed("key"), 502, "upstream_error", "upstream_auth", None),
        (be.UpstreamQuotaExceeded("spent"), 429, "insufficient_quota", "insufficient_quota", None),
        (me.UnknownModel("x"), 404, "invalid_request_error", "model_not_found", "model"),
        (errors.NotFound(), 404, "invalid_request_error", "not_found", None),
        (errors.MethodNotAllowed(["GET"]), 405, "invalid_request_error", "method_not_allowed", None),
        (errors.RequestTooLarge(limit_bytes=9), 413, "invalid_request_error", "request_too_large", None),
        (errors.RequestTooSlow(), 408, "timeout_error", "timeout", None),
        (errors.UnsupportedMediaType("no"), 415, "invalid_request_error", "unsupported_media_type", None),
        (errors.RateLimited(retry_after_s=1), 429, "rate_limit_error", "rate_limit_exceeded", None),
        (
            errors.QuotaExceeded(limit_usd=5, resets_in_s=9),
            429,
            "insufficient_quota",
            "insufficient_quota",
            None,
        ),
        (errors.TooManyAtOnce(2, retry_after_s=1), 429, "rate_limit_error", "concurrency_limit", None),
        (errors.AuthenticationRequired("no"), 401, "authentication_error", "invalid_api_key", None),
    ],
)
def test_status_type_code_and_param_are_the_contracts(
    exc: Exception, status: int, kind: str, code: str, param: str | None
) -> None:
    error = body(exc)["error"]

    assert error_status(exc) == status
    assert (error["type"], error["code"], error["param"]) == (kind, code, param)


def test_detail_and_message_are_the_same_sentence() -> None:
    answer = body(be.BackendNotAvailable.named("vllm"))

    assert answer["detail"] == answer["error"]["message"] == "Backend 'vllm' is not available"


def test_401_has_the_two_part_detail_and_the_challenge() -> None:
    exc = errors.AuthenticationRequired("Missing Authorization header")

    assert body(exc)["detail"] == {
        "error": "Authentication required",
        "message": "Missing Authorization header",
    }
    assert error_headers(exc) == {"www-authenticate": "Bearer"}


def test_a_spent_budget_says_when_to_come_again_and_that_trying_sooner_is_vain() -> None:
    exc = errors.QuotaExceeded(limit_usd=2.5, resets_in_s=3599.2)

    assert error_headers(exc) == {
        "retry-after": "3600",
        "retry-after-ms": "3599200",
        "x-should-retry": "false",
    }
    assert body(exc)["detail"] == (
        "The budget of 2.5 US dollars for today is spent; it begins anew at 00:00 UTC, in 3600 s"
    )


def test_a_spent_account_of_ours_tells_sdks_not_to_try_again() -> None:
    assert error_headers(be.UpstreamQuotaExceeded("spent")) == {"x-should-retry": "false"}


def test_422_lists_entries_and_names_the_dotted_path() -> None:
    text = "Message at index 0 with role 'user' cannot have empty content"
    answer = body(ValidationFailed.of(["body", "messages", 0, "content"], text, ""))

    assert answer["detail"] == [
        {"type": "value_error", "loc": ["body", "messages", 0, "content"], "msg": text, "input": ""}
    ]
    assert answer["error"]["param"] == "messages.0.content"
    assert answer["error"]["code"] == "validation_error"


def test_422_holds_at_most_ten_entries_and_says_how_many_there_are() -> None:
    entry = {"type": "t", "loc": ["body", "a"], "msg": "bad", "input": 1}
    answer = body(ValidationFailed([entry] * 500))

    assert len(answer["detail"]) == 10
    assert answer["error"]["message"] == "a: bad (and 499 more)"


def test_422_without_entries_is_still_a_body() -> None:
    answer = body(ValidationFailed([]))

    assert answer["detail"] == []
    assert answer["error"]["message"] == "Invalid request"


def test_an_input_is_cut_at_256_characters() -> None:
    (entry,) = body(ValidationFailed.of(["body", "x"], "bad", "y" * 10_000))["detail"]

    assert entry["input"] == "y" * 256


def test_a_long_structure_comes_back_as_the_beginning_of_its_json() -> None:
    (entry,) = body(ValidationFailed.of(["body", "x"], "bad", [{"k": "v" * 50}] * 50))["detail"]

    assert entry["input"].startswith('[{"k":"vvv')
    assert len(entry["input"]) == 256


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, "\ud800", pytest.param(10**5000, id="big"), {1: {2: math.nan}}, b"\xff"],
)
def test_whatever_was_sent_the_body_is_strict_json(value: object) -> None:
    assert len(body(ValidationFailed.of(["body", "\ud800" * 500], "bad \ud800", value))["detail"]) == 1


def test_deep_nesting_is_quoted_without_recursion() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]

    assert len(body(ValidationFailed.of(["body"], "bad", deep))["detail"]) == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
        max_leaves=200,
    )
)
def test_no_input_makes_an_entry_longer_than_its_bound(value: object) -> None:
    entry = body(ValidationFailed.of(["body", "x"], "bad", value))["detail"][0]
    text = (
        entry["input"] if isinstance(entry["input"], str) else json.dumps(entry["input"], ensure_ascii=False)
    )

    # json.dumps puts a blank after each comma and colon, which the wire's encoder does not.
    assert len(text) <= 2 * 256


def test_an_unusable_model_has_the_form_of_a_validation_error() -> None:
    answer = body(me.UnusableModel("The file is truncated"))

    assert answer["detail"][0]["msg"] == "The file is truncated"
    assert answer["detail"][0]["loc"] == ["body", "model"]
    assert answer["error"]["param"] == "model"


def test_context_length_tells_both_numbers() -> None:
    error = body(be.ContextLengthExceeded(prompt_tokens=5000, context_length=4096))["error"]

    assert (error["prompt_tokens"], error["context_length"]) == (5000, 4096)
    assert error["param"] == "messages"


@pytest.mark.parametrize(
    ("wait_s", "whole", "ms"),
    [(0.0, "1", "1"), (0.05, "1", "50"), (1.0, "1", "1000"), (1.2, "2", "1200"), (-3.0, "1", "1")],
)
def test_retry_after_is_a_whole_second_at_least(wait_s: float, whole: str, ms: str) -> None:
    headers = error_headers(errors.RateLimited(retry_after_s=wait_s))

    assert headers == {"retry-after": whole, "retry-after-ms": ms}


@pytest.mark.parametrize("cls", [cls for cls, row in ROWS.items() if row.status == 503])
def test_every_503_says_when_to_come_back(cls: type[Exception]) -> None:
    headers = error_headers(cls("later"))

    assert int(headers["retry-after"]) >= 1
    assert int(headers["retry-after-ms"]) >= 1


def test_other_errors_carry_no_retry_after() -> None:
    assert error_headers(be.BackendTimeout("late", retry_after_s=3.0)) == {}


def test_405_names_the_methods() -> None:
    assert error_headers(errors.MethodNotAllowed(["POST", "GET"])) == {"allow": "GET, POST"}


@pytest.mark.parametrize(
    "exc", [ValueError("/srv/secret.py key=sk-1"), KeyError("sk-1"), MemoryError(), TimeoutError()]
)
def test_an_unknown_exception_says_nothing_of_itself(exc: Exception) -> None:
    answer = body(exc)

    assert error_status(exc) == 500
    assert answer["detail"] == errors.INTERNAL_MESSAGE
    assert (answer["error"]["type"], answer["error"]["code"]) == ("server_error", "backend_error")


def test_a_group_of_one_is_what_it_holds() -> None:
    assert error_status(ExceptionGroup("tasks", [be.Overloaded("full")])) == 503


def test_only_foreign_exceptions_are_internal() -> None:
    assert errors.is_internal(ValueError("x"))
    assert not errors.is_internal(be.BackendFailed("x"))
    assert not errors.is_internal(HTTPException(404))


def test_the_frameworks_errors_have_our_body() -> None:
    wrong_method = HTTPException(405, headers={"Allow": "GET"})

    assert body(HTTPException(404))["error"]["code"] == "not_found"
    assert error_headers(wrong_method) == {"allow": "GET"}
    assert error_status(HTTPException(418)) == 400
    assert body(HTTPException(500, detail="at /srv/app.py"))["detail"] == errors.INTERNAL_MESSAGE


def test_an_error_of_ours_under_the_frameworks_is_ours() -> None:
    wrapped = HTTPException(400, "There was an error parsing the body")
    wrapped.__cause__ = errors.RequestTooLarge(limit_bytes=5)

    assert error_status(wrapped) == 413


def test_a_schema_error_of_the_framework_is_a_422() -> None:
    exc = RequestValidationError(
        [{"type": "missing", "loc": ("query", "backend"), "msg": "Required", "input": None}]
    )

    assert error_status(exc) == 422
    assert body(exc)["error"]["param"] == "backend"


def test_pydantics_errors_lose_their_prefix_and_gain_the_body() -> None:
    class Model(BaseModel):
        n: int

    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"n": "x"})
    answer = body(errors.from_pydantic(caught.value.errors()))

    assert answer["detail"][0]["loc"] == ["body", "n"]
    assert answer["error"]["param"] == "n"


def test_the_answer_carries_body_status_and_headers() -> None:
    response = error_response(errors.RateLimited(retry_after_s=2.0))

    assert response.status_code == 429
    assert response.headers["content-type"] == "application/json"
    assert response.headers["retry-after"] == "2"
    assert json.loads(bytes(response.body))["detail"] == "Rate limit exceeded"


def test_a_frame_holds_the_error_alone_and_ends_with_a_blank_line() -> None:
    frame = errors.sse_error_frame(be.BackendFailed("died\nhere"))

    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2
    assert list(json.loads(frame[6:])) == ["error"]


@pytest.mark.parametrize("error", [errors.RequestTooLarge(limit_bytes=5), errors.RequestTooSlow()])
def test_a_body_that_was_not_read_to_its_end_closes_the_connection(error: Exception) -> None:
    assert error_headers(error)["connection"] == "close"


def test_the_codes_are_words() -> None:
    assert all(code.replace("_", "").isalpha() for code in errors.CODES)
