"""What becomes of everything a provider refuses."""

from __future__ import annotations

from typing import Any

import pytest

from backends.errors import (
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    RequestError,
    ServiceError,
    UnsupportedParameter,
    UpstreamAuthFailed,
    UpstreamError,
    UpstreamQuotaExceeded,
    UpstreamRateLimited,
)
from backends.litellm.backend import LiteLLMBackend
from models.errors import UnknownModel
from tests.backends.litellm_backends import KEYS, needs_litellm
from tests.backends.litellm_calls import (
    MODELS,
    answers_with,
    both,
    each,
    refusal,
)
from tests.backends.provider_upstreams import anthropic_format, openai_format, openrouter_format
from tests.backends.provider_upstreams.server import Upstream

pytestmark = needs_litellm


def in_format(provider: str, kind: str, message: str, code: str | None = None) -> dict[str, Any]:
    """An error body as the provider writes it."""
    if provider == "anthropic":
        return anthropic_format.error(kind, message)
    if provider == "openrouter":
        return openrouter_format.error(400, message)
    return openai_format.error(message, kind=kind, code=code)


@both
@each
@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (401, "authentication_error", UpstreamAuthFailed),
        (403, "permission_error", UpstreamAuthFailed),
        (429, "rate_limit_error", UpstreamRateLimited),
        (500, "api_error", UpstreamError),
        (502, "api_error", UpstreamError),
        (503, "api_error", BackendUnavailable),
        (504, "api_error", BackendTimeout),
        (408, "api_error", BackendTimeout),
        (529, "overloaded_error", BackendUnavailable),
        (400, "invalid_request_error", RequestError),
    ],
)
async def test_the_status_decides(
    *,
    provider: Upstream,
    backend: LiteLLMBackend,
    name: str,
    status: int,
    kind: str,
    expected: type[ServiceError],
    stream: bool,
):
    provider.answer = answers_with(status, in_format(name, kind, "No, not like this"))

    assert type(await refusal(backend, MODELS[name], stream=stream)) is expected


@both
@each
async def test_a_model_that_the_provider_does_not_have_is_unknown_by_the_callers_name(
    provider: Upstream, backend: LiteLLMBackend, name: str, stream: bool
):
    provider.answer = answers_with(404, in_format(name, "not_found_error", "The model x does not exist"))

    error = await refusal(backend, MODELS[name], stream=stream)

    assert isinstance(error, UnknownModel)
    assert error.name == MODELS[name]


@both
@each
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_the_providers_own_pause_is_passed_on(
    provider: Upstream, backend: LiteLLMBackend, name: str, status: int, stream: bool
):
    provider.answer = answers_with(status, in_format(name, "x", "Later"), retry_after="7")

    error = await refusal(backend, MODELS[name], stream=stream)

    assert isinstance(error, ServiceError)
    assert error.retry_after_s == 7.0


@pytest.mark.parametrize(
    ("header", "value", "seconds"),
    [
        ("retry_after_ms", "1500", 1.5),
        ("retry_after", "0.25", 0.25),
        ("retry_after", "-3", 0.0),
        ("retry_after", "Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("retry_after", "99999999", 3600.0),
        ("retry_after", "soon", None),
        ("retry_after", "nan", None),
    ],
)
async def test_a_pause_is_read_however_it_is_written(
    provider: Upstream, backend: LiteLLMBackend, header: str, value: str, seconds: float | None
):
    body = openai_format.error("Rate limit reached", kind="requests", code="rate_limit_exceeded")
    provider.answer = answers_with(429, body, **{header: value})

    error = await refusal(backend)

    assert isinstance(error, UpstreamRateLimited)
    assert error.retry_after_s == seconds


@both
async def test_a_spent_account_is_no_moment_to_wait_for(
    provider: Upstream, backend: LiteLLMBackend, stream: bool
):
    body = openai_format.error(
        "You exceeded your quota", kind="insufficient_quota", code="insufficient_quota"
    )
    provider.answer = answers_with(429, body)

    error = await refusal(backend, stream=stream)

    assert isinstance(error, UpstreamQuotaExceeded)
    assert error.retry_after_s is None
    assert "quota" in error.message


async def test_openrouters_empty_purse_is_a_spent_account(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = answers_with(402, openrouter_format.error(402, "Insufficient credits"))

    assert isinstance(await refusal(backend, MODELS["openrouter"]), UpstreamQuotaExceeded)


@both
@pytest.mark.parametrize(
    ("name", "body", "numbers"),
    [
        (
            "openai",
            openai_format.error(
                "This model's maximum context length is 8192 tokens. However, your messages resulted in 10023 "
                "tokens. Please reduce the length of the messages.",
                kind="invalid_request_error",
                code="context_length_exceeded",
                param="messages",
            ),
            (10023, 8192),
        ),
        (
            "openai",
            openai_format.error(
                "This model's maximum context length is 4097 tokens, however you requested 5120 tokens (5000 in the "
                "messages, 120 in the completion).",
                kind="invalid_request_error",
                code="context_length_exceeded",
            ),
            (5000, 4097),
        ),
        (
            "anthropic",
            anthropic_format.error(
                "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"
            ),
            (210000, 200000),
        ),
        (
            "openrouter",
            openrouter_format.error(
                400,
                "This endpoint's maximum context length is 8192 tokens. However, you requested about 9100 tokens (9000 "
                "of text input, 100 in the output).",
            ),
            (9000, 8192),
        ),
        (
            "openai",  # a llama-server at OPENAI_API_BASE
            openai_format.error(
                "request (20031 tokens) exceeds the available context size (2048 tokens), try increasing it",
                kind="exceed_context_size_error",
            ),
            (20031, 2048),
        ),
    ],
)
async def test_a_prompt_that_is_too_long_comes_with_its_numbers(
    *,
    provider: Upstream,
    backend: LiteLLMBackend,
    name: str,
    body: dict[str, Any],
    numbers: tuple[int, int],
    stream: bool,
):
    provider.answer = answers_with(400, body)

    error = await refusal(backend, MODELS[name], stream=stream)

    assert isinstance(error, ContextLengthExceeded)
    assert (error.prompt_tokens, error.context_length) == numbers


async def test_a_prompt_that_is_too_long_by_no_number_is_one_beyond_what_the_model_has(
    provider: Upstream, backend: LiteLLMBackend
):
    body = openai_format.error("Too long", kind="invalid_request_error", code="context_length_exceeded")
    provider.answer = answers_with(400, body)

    error = await refusal(backend)

    assert isinstance(error, ContextLengthExceeded)
    assert error.prompt_tokens == error.context_length + 1 == 128_001


@both
@pytest.mark.parametrize(
    ("name", "body", "param"),
    [
        (
            "openai",
            openai_format.error(
                "Unsupported value: 'temperature' does not support 0.5 with this model.",
                kind="invalid_request_error",
                code="unsupported_value",
                param="temperature",
            ),
            "temperature",
        ),
        (
            "openai",
            openai_format.error(
                "Invalid schema", kind="invalid_request_error", param="response_format.json_schema"
            ),
            "response_format",
        ),
        (
            "anthropic",
            anthropic_format.error("invalid_request_error", "temperature: range: 0..1"),
            "temperature",
        ),
    ],
)
async def test_a_parameter_that_the_provider_refuses_is_named(
    *,
    provider: Upstream,
    backend: LiteLLMBackend,
    name: str,
    body: dict[str, Any],
    param: str,
    stream: bool,
):
    provider.answer = answers_with(400, body)

    error = await refusal(
        backend, MODELS[name], stream=stream, temperature=0.5, explicit=frozenset({"temperature"})
    )

    assert isinstance(error, UnsupportedParameter)
    assert error.param == param


@both
async def test_refused_content_is_the_callers_error(
    provider: Upstream, backend: LiteLLMBackend, stream: bool
):
    body = openai_format.error(
        "Your request was rejected by the safety system.",
        kind="invalid_request_error",
        code="content_policy_violation",
    )
    provider.answer = answers_with(400, body)

    error = await refusal(backend, stream=stream)

    assert type(error) is RequestError
    assert "refused the content" in error.message


async def test_openrouters_moderation_is_the_callers_error_though_it_is_a_403(
    provider: Upstream, backend: LiteLLMBackend
):
    body = openrouter_format.error(403, "Input was flagged: violence", reasons=["violence"])
    provider.answer = answers_with(403, body)

    assert type(await refusal(backend, MODELS["openrouter"])) is RequestError


async def test_a_key_that_the_provider_quotes_is_not_passed_on(provider: Upstream, backend: LiteLLMBackend):
    key = KEYS["OPENAI_API_KEY"]
    message = f"Bad header 'Bearer {key}' for https://api.openai.com/v1?key={key} and sk-other-key-123456"
    provider.answer = answers_with(400, openai_format.error(message, kind="invalid_request_error"))

    error = await refusal(backend)

    assert "sk-" not in error.message
    assert "api.openai.com" not in error.message
