"""What becomes of everything a provider can do wrong, whole and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
from backends.litellm.patience import Patience
from backends.types import ChatPrompt, Event, TextDelta
from models.errors import ModelError, UnknownModel
from tests.backends.contract import events_of, finished_of, request, text_of
from tests.backends.litellm_backends import KEYS, a_backend, environment, needs_litellm
from tests.backends.provider_upstreams import anthropic_format, openai_format, openrouter_format
from tests.backends.provider_upstreams.openai_format import chunk, completion, stream
from tests.backends.provider_upstreams.server import Answer, Call, Upstream, Wire, silence, upstream

pytestmark = needs_litellm

CHAT = ChatPrompt(messages=[{"role": "user", "content": "A secret question of mine"}])
MODELS = {
    "openai": "gpt-4o",
    "anthropic": "claude-sonnet-4-5",
    "openrouter": "openrouter/meta-llama/llama-3-70b-instruct",
}
HTML = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


@pytest.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Upstream]:
    async with upstream(silence) as one:
        environment(monkeypatch, one.url)
        yield one


@pytest.fixture
async def backend(provider: Upstream) -> AsyncIterator[LiteLLMBackend]:
    async with a_backend() as one:
        yield one


def answers_with(status: int, document: Any, **headers: str) -> Answer:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.json(status, document, **headers)

    return answer


async def refusal(
    backend: LiteLLMBackend, model: str = MODELS["openai"], *, stream: bool = False, **fields: Any
) -> ServiceError | ModelError:
    with pytest.raises((ServiceError, ModelError)) as raised:
        await events_of(backend, request(model, CHAT, stream=stream, **fields))
    error = raised.value
    assert isinstance(error, ServiceError | ModelError)
    for secret in (*KEYS.values(), "127.0.0.1", "http", "secret question", "litellm", "Traceback"):
        assert secret not in error.message
    return error


def in_format(provider: str, kind: str, message: str, code: str | None = None) -> dict[str, Any]:
    """An error body as the provider writes it."""
    if provider == "anthropic":
        return anthropic_format.error(kind, message)
    if provider == "openrouter":
        return openrouter_format.error(400, message)
    return openai_format.error(message, kind=kind, code=code)


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
each = pytest.mark.parametrize("name", list(MODELS))


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


@both
@each
async def test_a_page_instead_of_an_answer_is_the_upstreams_error(
    provider: Upstream, backend: LiteLLMBackend, name: str, stream: bool
):
    async def page(_: Call, wire: Wire) -> None:
        await wire.whole(200, HTML, "text/html; charset=utf-8")

    provider.answer = page

    assert type(await refusal(backend, MODELS[name], stream=stream)) is UpstreamError


@both
@each
async def test_a_page_with_an_error_status_is_the_upstreams_error(
    provider: Upstream, backend: LiteLLMBackend, name: str, stream: bool
):
    async def page(_: Call, wire: Wire) -> None:
        await wire.whole(502, HTML, "text/html")

    provider.answer = page

    assert type(await refusal(backend, MODELS[name], stream=stream)) is UpstreamError


@each
async def test_half_a_json_is_the_upstreams_error(provider: Upstream, backend: LiteLLMBackend, name: str):
    async def half(_: Call, wire: Wire) -> None:
        await wire.whole(200, b'{"id": "chatcmpl-1", "choices": [{"index": 0, "mess')

    provider.answer = half

    assert type(await refusal(backend, MODELS[name])) is UpstreamError


@each
async def test_an_answer_that_breaks_off_is_the_upstreams_error(
    provider: Upstream, backend: LiteLLMBackend, name: str
):
    async def broken(_: Call, wire: Wire) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n"
        await wire.raw(head + b'{"id": "ch')
        wire.hang_up()

    provider.answer = broken

    assert type(await refusal(backend, MODELS[name])) is UpstreamError


async def test_an_empty_list_of_choices_is_the_upstreams_error(provider: Upstream, backend: LiteLLMBackend):
    document = completion("never read")
    document["choices"] = []
    provider.answer = answers_with(200, document)

    assert "no choice" in (await refusal(backend)).message


async def test_an_error_under_a_200_is_the_upstreams_error(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = answers_with(200, openrouter_format.error(502, "Provider returned error"))

    assert type(await refusal(backend, MODELS["openrouter"])) is UpstreamError


@both
async def test_a_provider_that_cannot_be_reached_is_unavailable(
    backend: LiteLLMBackend, monkeypatch: pytest.MonkeyPatch, stream: bool
):
    monkeypatch.setenv("OPENAI_API_BASE", "http://127.0.0.1:9/v1")

    error = await refusal(backend, stream=stream)

    assert isinstance(error, BackendUnavailable)


@both
async def test_a_connection_that_is_reset_is_an_unavailable_provider(
    provider: Upstream, backend: LiteLLMBackend, stream: bool
):
    async def reset(_: Call, wire: Wire) -> None:
        wire.reset()

    provider.answer = reset

    assert isinstance(await refusal(backend, stream=stream), BackendUnavailable)


# Streams that begin well.


async def broken_stream(backend: LiteLLMBackend, model: str) -> tuple[list[Event], ServiceError]:
    """What was passed on, and the error that ended it."""
    seen: list[Event] = []

    async def read() -> None:
        async for batch in backend.generate(request(model, CHAT, stream=True)):
            seen.extend(batch)

    with pytest.raises(ServiceError) as raised:
        await read()
    assert not any(type(event).__name__ in ("ChoiceFinished", "Finished") for event in seen)
    return seen, raised.value


def openai_stream(*chunks: Any, end: bool = True) -> Answer:
    async def answer(_: Call, wire: Wire) -> None:
        if end:
            await stream(wire, chunks)
            return
        await wire.begin_stream()
        for one in chunks:
            await wire.event(one)
        wire.hang_up()

    return answer


async def test_an_error_inside_a_stream_ends_it_after_what_came(provider: Upstream, backend: LiteLLMBackend):
    error = {"error": {"message": "The server had an error", "type": "server_error", "code": None}}
    provider.answer = openai_stream(chunk({"role": "assistant", "content": "Hel"}), error)

    seen, raised = await broken_stream(backend, MODELS["openai"])

    assert text_of(seen) == "Hel"
    assert type(raised) is UpstreamError


async def test_an_error_as_the_first_event_of_a_stream_keeps_its_kind(
    provider: Upstream, backend: LiteLLMBackend
):
    error = {"error": {"message": "Slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
    provider.answer = openai_stream(error)

    assert isinstance(await refusal(backend, stream=True), UpstreamRateLimited)


async def test_openrouters_error_chunk_ends_the_stream_with_its_code(
    provider: Upstream, backend: LiteLLMBackend
):
    async def answer(_: Call, wire: Wire) -> None:
        await openrouter_format.stream(
            wire,
            [
                openrouter_format.chunk({"role": "assistant", "content": "Hel"}),
                openrouter_format.error_chunk(503, "Provider disconnected"),
            ],
        )

    provider.answer = answer

    seen, raised = await broken_stream(backend, MODELS["openrouter"])

    assert text_of(seen) == "Hel"
    assert isinstance(raised, UpstreamError | BackendUnavailable)


async def test_anthropics_error_event_ends_the_stream_with_its_kind(
    provider: Upstream, backend: LiteLLMBackend
):
    async def answer(_: Call, wire: Wire) -> None:
        begun = anthropic_format.events(anthropic_format.text("Hello"))[:4]
        failure = anthropic_format.error("overloaded_error", "Overloaded")
        await anthropic_format.stream(wire, [*begun, failure])

    provider.answer = answer

    seen, raised = await broken_stream(backend, MODELS["anthropic"])

    assert text_of(seen) == "Hello"
    assert isinstance(raised, BackendUnavailable)


async def test_a_connection_that_breaks_inside_a_stream_is_no_end(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = openai_stream(chunk({"role": "assistant", "content": "Hel"}), end=False)

    seen, raised = await broken_stream(backend, MODELS["openai"])

    assert text_of(seen) == "Hel"
    assert type(raised) is UpstreamError


async def test_anthropics_stream_that_stops_early_is_no_end(provider: Upstream, backend: LiteLLMBackend):
    async def answer(_: Call, wire: Wire) -> None:
        await anthropic_format.stream(wire, anthropic_format.events(anthropic_format.text("Hello"))[:4])

    provider.answer = answer

    seen, raised = await broken_stream(backend, MODELS["anthropic"])

    assert text_of(seen) == "Hello"
    assert type(raised) is UpstreamError


async def test_a_stream_without_a_finish_reason_is_no_end(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = openai_stream(chunk({"role": "assistant", "content": "Hel"}))

    assert type((await broken_stream(backend, MODELS["openai"]))[1]) is UpstreamError


async def test_half_a_json_inside_a_stream_ends_it(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = openai_stream(
        chunk({"role": "assistant", "content": "Hel"}), '{"id": "chatcmpl-1", "choi', "[DONE]"
    )

    assert type((await broken_stream(backend, MODELS["openai"]))[1]) is UpstreamError


async def test_a_model_that_repeats_itself_is_heard_out(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = openai_stream(
        *[chunk({"content": "again "}) for _ in range(250)], chunk({}, finish_reason="stop")
    )

    events = await events_of(backend, request(MODELS["openai"], CHAT, stream=True))

    assert text_of(events) == "again " * 250


async def test_a_stream_of_chunks_without_choices_is_the_upstreams_error(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = openai_stream(chunk(None), chunk(None))

    assert type((await broken_stream(backend, MODELS["openai"]))[1]) is UpstreamError


async def test_silence_after_half_a_stream_runs_into_the_idle_deadline(
    provider: Upstream, monkeypatch: pytest.MonkeyPatch
):
    async def answer(_: Call, wire: Wire) -> None:
        await wire.begin_stream()
        await wire.event(chunk({"role": "assistant", "content": "Hel"}))
        await asyncio.Event().wait()

    provider.answer = answer
    async with a_backend(patience=Patience(idle_timeout_s=0.2, max_retries=0)) as backend:
        seen, raised = await broken_stream(backend, MODELS["openai"])

    assert text_of(seen) == "Hel"
    assert isinstance(raised, BackendTimeout)
    assert "sent nothing for 0.2 s" in raised.message
    await provider.calls[0].wait_until_ended()
    assert provider.calls[0].client_left


@both
async def test_silence_runs_into_the_deadline_of_the_request(provider: Upstream, stream: bool):
    async with a_backend(patience=Patience(request_timeout_s=0.3, max_retries=0)) as backend:
        error = await refusal(backend, stream=stream)

    assert isinstance(error, BackendTimeout)
    assert "0.3 s" in error.message
    await provider.calls[0].wait_until_ended()
    assert provider.calls[0].client_left


async def test_a_character_cut_in_two_by_the_network_arrives_whole(
    provider: Upstream, backend: LiteLLMBackend
):
    said = "川は海へ 🌊 é"

    async def answer(_: Call, wire: Wire) -> None:
        await wire.begin_stream()
        for one in (*said,):
            data = f"data: {openai_format.json_text(chunk({'content': one}))}\n\n".encode()
            for i in range(len(data)):
                await wire.piece(data[i : i + 1])
        await wire.event(chunk({}, finish_reason="stop"))
        await wire.event("[DONE]")
        await wire.end_stream()

    provider.answer = answer

    events = await events_of(backend, request(MODELS["openai"], CHAT, stream=True))

    assert text_of(events) == said


async def test_usage_that_never_comes_is_counted_and_marked(provider: Upstream, backend: LiteLLMBackend):
    provider.answer = openai_stream(
        chunk({"role": "assistant", "content": "one two three four"}), chunk({}, finish_reason="stop")
    )

    usage = finished_of(await events_of(backend, request(MODELS["openai"], CHAT, stream=True))).usage

    assert usage.is_estimated
    assert usage.completion_tokens == 4
    assert usage.prompt_tokens > 5
    assert usage.cost_usd is not None


async def test_usage_that_a_whole_answer_lacks_is_counted_and_marked(
    provider: Upstream, backend: LiteLLMBackend
):
    document = completion("one two three four")
    del document["usage"]
    provider.answer = answers_with(200, document)

    usage = finished_of(await events_of(backend, request(MODELS["openai"], CHAT))).usage

    assert (usage.completion_tokens, usage.is_estimated) == (4, True)


async def test_usage_after_the_finish_chunk_is_the_providers(provider: Upstream, backend: LiteLLMBackend):
    counts = openai_format.usage(1200, 34, cached=1024, reasoning=20)
    provider.answer = openai_stream(
        chunk({"role": "assistant", "content": "Hi"}),
        chunk({}, finish_reason="stop"),
        chunk(None, counts=counts),
    )

    usage = finished_of(await events_of(backend, request(MODELS["openai"], CHAT, stream=True))).usage

    assert not usage.is_estimated
    assert (usage.prompt_tokens, usage.completion_tokens) == (1200, 34)
    assert (usage.cached_tokens, usage.reasoning_tokens) == (1024, 20)


async def test_no_failure_after_the_finish_reason_spoils_the_answer(
    provider: Upstream, backend: LiteLLMBackend
):
    provider.answer = openai_stream(
        chunk({"role": "assistant", "content": "Hi"}), chunk({}, finish_reason="stop"), end=False
    )

    events = await events_of(backend, request(MODELS["openai"], CHAT, stream=True))

    assert text_of(events) == "Hi"
    assert finished_of(events).usage.is_estimated


async def test_a_connection_is_used_again_after_an_answer_and_after_a_refusal(
    provider: Upstream, backend: LiteLLMBackend
):
    hello = openai_stream(chunk({"role": "assistant", "content": "Hi"}), chunk({}, finish_reason="stop"))
    refused = answers_with(400, openai_format.error("No", kind="invalid_request_error"))
    provider.answers = [answers_with(200, completion("Hi")), hello, refused, hello]

    for number in range(4):
        if number == 2:
            await refusal(backend)
        else:
            events = await events_of(backend, request(MODELS["openai"], CHAT, stream=number % 2 == 1))
            assert any(isinstance(event, TextDelta) for event in events)

    assert provider.connections == 1
