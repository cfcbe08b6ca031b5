"""What a server's refusal becomes: status first, then its structured code, then its words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import (
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidGrammar,
    InvalidParameter,
    NotSupported,
    ServiceError,
    TemplateRefused,
    UnsupportedParameter,
    UpstreamAuthFailed,
    UpstreamError,
    UpstreamQuotaExceeded,
    UpstreamRateLimited,
)
from backends.types import ChatPrompt
from backends.vllm.refusals import error_of, read_refusal
from backends.vllm.transport import Unreached
from backends.vllm.upstream import Upstream
from models.errors import ModelError, UnknownModel
from tests.backends.contract import CHAT, request
from tests.backends.openai_upstream import (
    OpenAIUpstream,
    Script,
    document,
    refused,
    role,
    sse,
    stream,
    text,
    usage,
)
from tests.openai_compat.pictures import PNG, data_url, shown

KEY = "sk-the-key"


@pytest.fixture
async def server() -> AsyncIterator[OpenAIUpstream]:
    async with OpenAIUpstream() as server:
        yield server


@pytest.fixture
async def upstream(server: OpenAIUpstream) -> AsyncIterator[Upstream]:
    upstream = Upstream(server.url, api_key=KEY)
    yield upstream
    await upstream.aclose()


async def refusal_of(
    server: OpenAIUpstream, upstream: Upstream, script: Script, **fields: Any
) -> ServiceError | ModelError:
    server.answers(script)
    prompt = fields.pop("prompt", CHAT)
    with pytest.raises((ServiceError, ModelError)) as caught:
        async for _ in upstream.generate(
            request("card", prompt, **{"max_tokens": None, **fields}), served_name="m"
        ):
            pass
    assert isinstance(caught.value, ServiceError | ModelError)
    return caught.value


@pytest.mark.parametrize("stream_", [False, True])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidParameter),
        (401, UpstreamAuthFailed),
        (402, UpstreamError),
        (403, UpstreamAuthFailed),
        (404, NotSupported),
        (405, NotSupported),
        (408, BackendTimeout),
        (409, UpstreamError),
        (413, InvalidParameter),
        (422, InvalidParameter),
        (429, UpstreamRateLimited),
        (500, UpstreamError),
        (501, NotSupported),
        (502, UpstreamError),
        (503, BackendUnavailable),
        (504, BackendTimeout),
        (529, BackendUnavailable),
        (302, UpstreamError),
    ],
)
async def test_a_status_decides_what_words_cannot_change(
    server: OpenAIUpstream, upstream: Upstream, status: int, kind: type[ServiceError], stream_: bool
):
    error = await refusal_of(server, upstream, refused(status, "busy"), stream=stream_)

    assert type(error) is kind


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (Script([b"<html>502 Bad Gateway</html>"], status=502, framing="length"), UpstreamError),
        (Script([b""], status=500, framing="length"), UpstreamError),
        (Script([b'{"error": {"mess'], status=400, framing="length"), InvalidParameter),
        (document({"error": "model 'm' not found, try pulling it first"}, 404), UnknownModel),
        (document({"error": {"message": "gone", "code": "model_not_found"}}, 400), UnknownModel),
        (document({"detail": "Not Found"}, 404), NotSupported),
        (
            document({"object": "error", "message": "The model `m` does not exist.", "code": 404}, 404),
            UnknownModel,
        ),
        (refused(404, "The model `m` does not exist.", type="NotFoundError", param="model"), UnknownModel),
    ],
)
async def test_an_error_is_read_in_every_form_it_has(
    server: OpenAIUpstream, upstream: Upstream, script: Script, kind: type[ServiceError]
):
    assert type(await refusal_of(server, upstream, script)) is kind


async def test_an_unknown_model_is_named_as_our_caller_named_it(server: OpenAIUpstream, upstream: Upstream):
    error = await refusal_of(server, upstream, refused(404, "The model `m` does not exist."))

    assert "'card'" in error.message


@pytest.mark.parametrize(
    ("message", "more", "expected"),
    [
        ("stop must be at most 4", {"param": "stop"}, (InvalidParameter, "stop")),
        ("n must be 1 when using greedy sampling", {}, (InvalidParameter, None)),
        ("suffix is not currently supported", {}, (UnsupportedParameter, None)),
        ("bad", {"param": "seed", "code": "unsupported_value"}, (UnsupportedParameter, "seed")),
        ("Extra inputs are not permitted", {"param": "body.x"}, (UnsupportedParameter, "x")),
        ("out of range", {"param": "logit_bias"}, (InvalidParameter, "logit_bias")),
        (
            "suffix is only supported for models with FIM",
            {"param": "suffix"},
            (UnsupportedParameter, "suffix"),
        ),
        ("token_id(s) [999] not supported. Vocabulary size: 7", {}, (InvalidParameter, None)),
        ("failed to compile", {"param": "response_format"}, (InvalidGrammar, "response_format")),
        (
            "not supported: oneOf",
            {"param": "structured_outputs.json"},
            (InvalidGrammar, "structured_outputs.json"),
        ),
        ("Failed to convert the grammar from GBNF", {}, (InvalidGrammar, "grammar")),
        (
            'tool_choice="required" requires --tool-call-parser to be set',
            {},
            (UnsupportedParameter, "tool_choice"),
        ),
        ("The regex is too long", {}, (InvalidGrammar, "response_format")),
        ("Conversation roles must alternate user/assistant/...", {}, (TemplateRefused, "messages")),
        ("Jinja Exception: no", {}, (TemplateRefused, "messages")),
        ("no", {"code": "template_refused"}, (TemplateRefused, "messages")),
        ("no", {"param": "a b\nc"}, (InvalidParameter, None)),
    ],
)
async def test_a_bad_request_becomes_the_error_that_fits(
    server: OpenAIUpstream, upstream: Upstream, message: str, more: dict[str, Any], expected: tuple[type, str]
):
    error = await refusal_of(server, upstream, refused(400, message, **more))

    assert (type(error), getattr(error, "param", None)) == expected
    assert error.message == message


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Failed to load image: image file is truncated (3 bytes not processed)", InvalidParameter),
        ("cannot identify image file <_io.BytesIO object>", InvalidParameter),
        ("At most 1 image(s) may be provided in one prompt.", InvalidParameter),
        ("tiny is not a multimodal model", UnsupportedParameter),
        ("image input is not supported - hint: you may need to provide the mmproj", UnsupportedParameter),
    ],
)
async def test_what_is_said_of_pictures_names_the_one_there_is(
    server: OpenAIUpstream, upstream: Upstream, message: str, expected: type
):
    one, two = (ChatPrompt(messages=shown(*[data_url(PNG)] * number)) for number in (1, 2))
    error = await refusal_of(server, upstream, refused(400, message), prompt=one)
    unsure = await refusal_of(server, upstream, refused(400, message), prompt=two)

    assert type(error) is type(unsure) is expected
    assert (error.param, unsure.param) == ("messages[0].content[1].image_url", "messages")
    assert message in error.message


OF_1000 = "This model's maximum context length is 1000 tokens. However, "
TOO_LONG = [
    OF_1000 + "your prompt contains 1200 input tokens, which exceeds "
    "this limit even without any output tokens. Please reduce the length of the input prompt.",
    OF_1000 + "you requested 16 output tokens and your prompt "
    "contains 1200 input tokens, for a total of 1216 tokens.",
    OF_1000 + "your request has 1200 input tokens. Please reduce the length of the input messages.",
    OF_1000 + "you requested 1216 tokens (1200 in the messages, 16 in "
    "the completion). Please reduce the length of the messages or completion.",
    OF_1000 + "your messages resulted in 1200 tokens. Please reduce the length of the messages.",
    "You passed 1200 input tokens and requested 16 output tokens. However, the model's context length is only 1000 "
    "tokens, resulting in a maximum input length of 984 tokens.",
    "The decoder prompt (length 1200) is longer than the maximum model length of 1000. Make sure that it is no longer.",
    "Input length (1200) exceeds model's maximum context length (1000).",
    "request (1200 tokens) exceeds the available context size (1000 tokens), try increasing it",
    "The input (1200 tokens) is longer than the model's context length (1000 tokens).",
    "Requested token count exceeds the model's maximum context length of 1000 tokens. You requested a total of 1216 "
    "tokens: 1200 tokens from the input messages and 16 tokens for the completion.",
    "`inputs` tokens + `max_new_tokens` must be <= 1000. Given: 1200 `inputs` tokens and 16 `max_new_tokens`",
    "prompt is too long: 1200 tokens > 1000 maximum",
]


@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize("message", TOO_LONG)
async def test_a_prompt_that_is_too_long_is_said_with_its_numbers(
    server: OpenAIUpstream, upstream: Upstream, message: str, status: int
):
    error = await refusal_of(server, upstream, refused(status, message))

    assert isinstance(error, ContextLengthExceeded)
    assert (error.prompt_tokens, error.context_length, error.param) == (1200, 1000, "messages")


async def test_llama_servers_numbers_are_fields(server: OpenAIUpstream, upstream: Upstream):
    inner = {
        "message": "too big",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 1200,
        "n_ctx": 1000,
    }
    error = await refusal_of(server, upstream, document({"error": {"code": 400, **inner}}, 400))

    assert isinstance(error, ContextLengthExceeded)
    assert (error.prompt_tokens, error.context_length) == (1200, 1000)


@pytest.mark.parametrize(
    "message",
    [
        OF_1000 + "your prompt contains at least 1001 input tokens",
        OF_1000 + "your prompt contains 9000 characters (more than …",
        "max_tokens must be at least 1, got 0.",
    ],
)
async def test_numbers_that_the_server_did_not_finish_are_counted(
    server: OpenAIUpstream, upstream: Upstream, message: str
):
    server.token_count = 1234
    error = await refusal_of(server, upstream, refused(400, message))

    assert isinstance(error, ContextLengthExceeded)
    assert (error.prompt_tokens, error.context_length) == (1234, 1000)


async def test_numbers_that_nobody_knows_leave_the_servers_sentence(
    server: OpenAIUpstream, upstream: Upstream
):
    server.token_count = None
    server.models = None
    message = "the request exceeds the available context size. try increasing the context size"
    error = await refusal_of(server, upstream, refused(400, message))

    assert isinstance(error, ContextLengthExceeded)
    assert error.message == message


async def test_a_text_that_is_too_long_is_the_prompts_fault(server: OpenAIUpstream, upstream: Upstream):
    prompt = request("card").prompts[0]
    error = await refusal_of(server, upstream, refused(400, TOO_LONG[0]), prompt=prompt)

    assert isinstance(error, ContextLengthExceeded)
    assert error.param == "prompt"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("soon", None), ("-3", None), ("nan", None), ("1e99", None)],
)
async def test_a_rate_limit_keeps_its_own_retry_after(
    server: OpenAIUpstream, upstream: Upstream, header: str, seconds: float | None
):
    error = await refusal_of(server, upstream, document({}, 429, retry_after=header))

    assert isinstance(error, UpstreamRateLimited)
    assert error.retry_after_s == seconds


async def test_a_spent_account_is_no_moment_to_wait_for(server: OpenAIUpstream, upstream: Upstream):
    body = {"error": {"message": "Out of credit", "type": "insufficient_quota", "code": "insufficient_quota"}}

    error = await refusal_of(server, upstream, document(body, 429))

    assert isinstance(error, UpstreamQuotaExceeded)
    assert error.retry_after_s is None


@pytest.mark.parametrize("status", [503, 529])
async def test_an_overloaded_server_keeps_its_own_retry_after(
    server: OpenAIUpstream, upstream: Upstream, status: int
):
    error = await refusal_of(server, upstream, document({}, status, retry_after="9", retry_after_ms="1500"))

    assert isinstance(error, BackendUnavailable)
    assert error.retry_after_s == 1.5


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_our_key_is_in_no_message(server: OpenAIUpstream, upstream: Upstream, status: int):
    error = await refusal_of(server, upstream, refused(status, f"Incorrect API key provided: {KEY}."))

    assert KEY not in error.message


async def test_a_message_is_cut_and_cleaned(server: OpenAIUpstream, upstream: Upstream):
    error = await refusal_of(server, upstream, refused(400, "a\n\tb\x00\x1b[31m" + "x" * 9000))

    assert error.message.startswith("a b [31mxxx")
    assert len(error.message) == 500


async def test_a_refusal_that_never_ends_is_not_read_to_its_end(server: OpenAIUpstream, upstream: Upstream):
    server.answers(Script([b"x" * 10_000] * 50, status=400))

    with pytest.raises(InvalidParameter):
        async for _ in upstream.generate(request("card", CHAT), served_name="m"):
            pass


# Inside a stream


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({"error": {"message": "no", "type": "InternalServerError", "code": 500}}, UpstreamError),
        ({"error": {"message": "no", "type": "BadRequestError", "code": 400}}, InvalidParameter),
        ({"error": {"message": "no", "code": "400"}}, InvalidParameter),
        ({"error": {"message": "busy", "code": 429}}, UpstreamRateLimited),
        ({"error": {"message": TOO_LONG[0], "code": 400}}, ContextLengthExceeded),
        ({"error": {"message": TOO_LONG[0], "code": "context_length_exceeded"}}, ContextLengthExceeded),
        ({"error": {"message": "no", "type": "invalid_request_error"}}, InvalidParameter),
        ({"error": "it broke"}, UpstreamError),
        ({"error": {"message": "no", "code": 200}}, UpstreamError),
        ({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}, InvalidParameter),
        ({"object": "error", "message": "no"}, UpstreamError),
    ],
)
@pytest.mark.parametrize("stream_", [False, True])
async def test_an_error_inside_a_success_is_that_error(
    server: OpenAIUpstream, upstream: Upstream, payload: Any, kind: type, stream_: bool
):
    script = stream(sse(payload)) if stream_ else document(payload)

    assert type(await refusal_of(server, upstream, script, stream=stream_)) is kind


async def test_an_error_after_text_ends_the_stream_with_it(server: OpenAIUpstream, upstream: Upstream):
    server.answers(
        stream(role(), text("a"), sse({"error": {"message": "it broke", "code": 500}}), usage(1, 1))
    )
    generator = upstream.generate(request("card", CHAT, stream=True), served_name="m")

    with pytest.raises(UpstreamError, match="it broke"):
        async for _ in generator:
            pass


async def test_an_error_line_of_older_llama_servers_is_an_error(server: OpenAIUpstream, upstream: Upstream):
    script = Script([b'error: {"code": 500, "message": "slot failed", "type": "server_error"}\n\n'])

    assert isinstance(await refusal_of(server, upstream, script, stream=True), UpstreamError)


# What another server may do better


@pytest.mark.parametrize(
    "script", [refused(502), refused(503), refused(529), Script([], framing="raw"), Script([])]
)
async def test_where_nothing_was_produced_another_server_may_be_asked(
    server: OpenAIUpstream, upstream: Upstream, script: Script
):
    if script.framing == "chunked":
        script = Script([sse({"error": {"message": "busy", "code": 503}})])
    server.answers(script, script)  # a connection that was kept is tried a second time

    with pytest.raises(Unreached):
        async for _ in upstream.attempt(request("card", CHAT, stream=True), served_name="m"):
            pass


@pytest.mark.parametrize("script", [refused(400), refused(401), refused(429), refused(500)])
async def test_otherwise_the_answer_stands(server: OpenAIUpstream, upstream: Upstream, script: Script):
    server.answers(script)

    with pytest.raises(ServiceError):
        async for _ in upstream.attempt(request("card", CHAT, stream=True), served_name="m"):
            pass


@settings(deadline=None, max_examples=100)
@given(st.integers(100, 599), st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_whatever_a_server_sends_is_an_error_of_ours_with_a_clean_message(status: int, body: bytes):
    error = error_of(read_refusal(status, body, {}, secret=None), model="m", has_chat=True)

    assert isinstance(error, ServiceError | ModelError)
    assert error.message
    assert len(error.message) < 700
    assert error.message.isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "param", "detail", "loc", "msg", "object"]),
            inner,
        )
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([400, 404, 422, 500]), JSON)
def test_no_form_of_json_breaks_the_reading(status: int, said: Any):
    import msgspec

    refusal = read_refusal(status, msgspec.json.encode(said), {}, secret="k")

    assert isinstance(error_of(refusal, model="m", has_chat=False), ServiceError | ModelError)


# Grammars that parse and cannot be used

ITSELF = {"structured_outputs": {"grammar": 'start: "a"'}}
INSIDE = sse({"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}})


@pytest.mark.parametrize("script", [refused(500, "Internal server error"), stream(role(), INSIDE)])
async def test_a_grammar_over_which_a_server_that_is_well_fails_is_the_callers(
    server: OpenAIUpstream, upstream: Upstream, script: Script
):
    error = await refusal_of(server, upstream, script, stream=True, **ITSELF)

    assert isinstance(error, InvalidGrammar)
    assert error.param == "structured_outputs.grammar"


@pytest.mark.parametrize(
    ("script", "health", "fields"),
    [
        (refused(500), 200, {}),
        (refused(500), 503, ITSELF),
        (stream(text("a"), INSIDE), 200, ITSELF),
        (refused(504), 200, ITSELF),
    ],
)
async def test_any_other_failure_is_the_servers(
    server: OpenAIUpstream, upstream: Upstream, script: Script, health: int, fields: dict[str, Any]
):
    server.health_status = health

    assert isinstance(
        await refusal_of(server, upstream, script, stream=True, **fields), (UpstreamError, BackendTimeout)
    )
