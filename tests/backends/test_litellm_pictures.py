"""Nothing that a request names is fetched by this process: pictures go on as links, or come in the request."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backends.errors import InvalidParameter, RequestError, UnsupportedParameter, UpstreamError
from backends.litellm import sdk, transport, usage
from backends.litellm.deployment import Deployment
from backends.litellm.no_fetch import FetchRefused
from backends.litellm.pictures import FETCH_THEMSELVES, MAX_LINK_CHARS, own_messages
from backends.types import ChatPrompt
from tests.backends.contract import events_of, request, text_of
from tests.backends.litellm_backends import a_backend, environment, needs_litellm
from tests.backends.provider_upstreams import anthropic_format
from tests.backends.provider_upstreams.openai_format import completion
from tests.backends.provider_upstreams.server import Call, Upstream, Wire, upstream

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
HELLO = ChatPrompt(messages=[{"role": "user", "content": "hi"}])
SOME_OTHERS = (
    "bedrock",
    "cohere_chat",
    "gemini",
    "gigachat",
    "ollama",
    "ollama_chat",
    "snowflake",
    "vertex_ai",
)


def of(provider: str) -> Deployment:
    return Deployment(provider=provider, model="m", supported=frozenset(), mode="chat")


def shown(url: Any, **more: Any) -> list[dict[str, Any]]:
    picture = {"type": "image_url", "image_url": {"url": url, **more}}
    return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}]


def sent(url: Any, provider: str = "openai") -> Any:
    return own_messages(shown(url), of(provider))[0]["content"][1]["image_url"]["url"]


@pytest.mark.parametrize("provider", sorted(FETCH_THEMSELVES))
def test_a_link_goes_to_a_provider_that_fetches_itself(provider: str) -> None:
    assert sent("https://example.com/a.png?b=c#d", provider) == "https://example.com/a.png?b=c#d"


@pytest.mark.parametrize("url", ["https://example.com/a.png", "http://127.0.0.1/a.png"])
@pytest.mark.parametrize("provider", SOME_OTHERS)
def test_a_link_for_a_provider_that_fetches_nothing_is_refused(provider: str, url: str) -> None:
    with pytest.raises(UnsupportedParameter, match=provider) as refused:
        sent(url, provider)

    assert refused.value.param == "messages[0].content[1].image_url"
    assert "127.0.0.1" not in refused.value.message


def test_a_link_that_the_provider_would_not_take_is_not_fetched_for_it() -> None:
    with pytest.raises(UnsupportedParameter, match="https"):
        sent("http://example.com/a.png", "anthropic")


@pytest.mark.parametrize("provider", [*sorted(FETCH_THEMSELVES), *SOME_OTHERS])
def test_a_picture_in_the_request_goes_to_everybody(provider: str) -> None:
    assert sent(PIXEL, provider) == PIXEL


@pytest.mark.parametrize(
    "url",
    [
        "",
        None,
        7,
        "file:///etc/passwd",
        "/etc/passwd",
        "a.png",
        "gs://bucket/a.png",
        "s3://bucket/a.png",
        "ftp://example.com/a.png",
        " https://example.com/a.png",
        "https://example.com/a b.png",
        "https://example.com\\@127.0.0.1/",
        "https://",
        "https://example.com/\n",
        "https://example.com/" + "a" * MAX_LINK_CHARS,
        "data:image/png,abc",
        "data:image/png;base64,",
        "data:image/png;base64",
        "data:text/html;base64,PGI+",
        "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>",
        "data:image/png;base64,http://127.0.0.1/a.png",
        "iVBORw0KGgo=",
    ],
)
@pytest.mark.parametrize("provider", ["openai", "gemini"])
def test_what_is_neither_a_link_nor_a_picture_is_refused(provider: str, url: Any) -> None:
    with pytest.raises(InvalidParameter) as refused:
        sent(url, provider)

    assert refused.value.param == "messages[0].content[1].image_url"


def test_of_a_part_only_what_is_known_goes_on() -> None:
    messages = shown(PIXEL, detail="low", format="application/pdf")
    messages[0]["content"][0] |= {"source": {"type": "url", "url": "http://127.0.0.1/"}}
    messages[0]["content"][1] |= {
        "file": {"file_id": "http://127.0.0.1/"},
        "cache_control": {"type": "ephemeral"},
    }

    (message,) = own_messages(messages, of("gemini"))

    assert message["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
    ]


@pytest.mark.parametrize("kind", ["file", "input_audio", "video_url", "audio_url", "image", "document"])
def test_other_media_do_not_go_on(kind: str) -> None:
    part = {"type": kind, kind: {"file_id": "http://127.0.0.1/", "url": "http://127.0.0.1/"}}

    with pytest.raises(UnsupportedParameter) as refused:
        own_messages([{"role": "user", "content": [part]}], of("openai"))

    assert refused.value.param == "messages[0].content[0]"


# With LiteLLM, and a server of pictures whose log says who came.


@pytest.fixture
async def pictures() -> AsyncIterator[Upstream]:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.whole(200, b"\x89PNG\r\n\x1a\n" + bytes(64), "image/png")

    async with upstream(answer) as server:
        yield server


async def answering(call: Call, wire: Wire) -> None:
    if call.path.endswith("/messages"):
        await wire.json(200, anthropic_format.message(anthropic_format.text("ok")))
    else:
        await wire.json(200, completion("ok"))


@pytest.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Upstream]:
    async with upstream(answering) as server:
        environment(monkeypatch, server.url)
        monkeypatch.setenv("AZURE_API_VERSION", "2024-10-21")
        monkeypatch.setenv("AZURE_API_BASE", server.url)
        for name in FETCH_THEMSELVES - {"azure", "anthropic", "openai", "openrouter"}:
            stem = name.upper().removesuffix("_AI") if name == "fireworks_ai" else name.upper()
            monkeypatch.setenv(f"{stem}_API_KEY", f"key-of-{name}-0123456789")
            monkeypatch.setenv(f"{stem}_API_BASE", f"{server.url}/v1")
        monkeypatch.setenv("AZURE_API_KEY", "key-of-azure-0123456789")
        monkeypatch.setenv("MISTRAL_AZURE_API_BASE", f"{server.url}/v1")
        yield server


class TestWithLiteLLM:
    pytestmark = needs_litellm

    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
    @pytest.mark.parametrize("name", sorted(FETCH_THEMSELVES))
    async def test_a_link_arrives_as_it_came_and_is_fetched_by_nobody_here(
        self, provider: Upstream, pictures: Upstream, name: str, stream: bool
    ) -> None:
        """Also where an answer has no usage and the prompt's tokens are counted here."""
        link = pictures.url.replace("http:", "https:" if name == "anthropic" else "http:") + "/a.pdf"
        prompt = ChatPrompt(messages=shown(link))
        async with a_backend() as backend:
            # What the provider answers to a call for a stream here is none; what it was sent is what counts.
            with contextlib.suppress(UpstreamError) if stream else contextlib.nullcontext():
                await events_of(backend, request(f"{name}/some-model", prompt, stream=stream))

        assert provider.calls, "the provider was not asked"
        assert link in str(provider.bodies[0])
        assert pictures.connections == 0

    @pytest.mark.parametrize("name", ["gemini", "vertex_ai", "ollama_chat", "anthropic"])
    async def test_a_link_that_would_be_fetched_is_refused_before_anybody_is_asked(
        self, provider: Upstream, pictures: Upstream, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv("GEMINI_API_KEY", "key-of-gemini-0123456789")
        monkeypatch.setenv("GEMINI_API_BASE", provider.url)
        monkeypatch.setenv("OLLAMA_API_BASE", provider.url)
        monkeypatch.setenv("VERTEXAI_PROJECT", "p")
        monkeypatch.setenv("VERTEXAI_LOCATION", "l")
        async with a_backend() as backend:
            with pytest.raises(RequestError) as refused:
                await events_of(
                    backend, request(f"{name}/m", ChatPrompt(messages=shown(pictures.url + "/a.png")))
                )

        assert refused.value.param == "messages[0].content[1].image_url"
        assert (provider.calls, pictures.connections) == ([], 0)

    async def test_tokens_of_pictures_are_counted_without_looking_at_them(
        self, provider: Upstream, pictures: Upstream
    ) -> None:
        async with a_backend() as backend:
            counted = await backend.count_tokens(
                "gpt-4o", ChatPrompt(messages=shown(pictures.url + "/a.png"))
            )

        assert counted > 10
        assert pictures.connections == 0

    @pytest.mark.parametrize(
        "fetch",
        [
            "litellm_core_utils.prompt_templates.image_handling.convert_url_to_base64",
            "litellm_core_utils.prompt_templates.image_handling.async_convert_url_to_base64",
            "litellm_core_utils.prompt_templates.image_handling.serves_pdf",
            "litellm_core_utils.prompt_templates.image_handling.async_serves_pdf",
            "litellm_core_utils.prompt_templates.factory.BedrockImageProcessor.get_image_details",
            "litellm_core_utils.prompt_templates.factory.BedrockImageProcessor.get_image_details_async",
            "litellm_core_utils.token_counter.get_image_dimensions",
            "llms.gigachat.file_handler._download_image_sync",
            "llms.gigachat.file_handler._download_image_async",
        ],
    )
    async def test_litellm_itself_fetches_nothing(
        self, provider: Upstream, pictures: Upstream, monkeypatch: pytest.MonkeyPatch, fetch: str
    ) -> None:
        """Whatever the caller may reach by LiteLLM's own rules. Each of these fetches when nobody keeps it from it."""
        async with a_backend():
            litellm = sdk.load(os.environ)
            monkeypatch.setattr(litellm, "user_url_allowed_hosts", [f"127.0.0.1:{pictures.port}"])
            transport.current.set(transport.Connection("gigachat"))
            path, _, rest = fetch.partition(".BedrockImageProcessor")
            module, _, name = path.rpartition(".") if not rest else (path, "", f"BedrockImageProcessor{rest}")
            found = importlib.import_module(f"litellm.{module}")
            for attribute in name.split("."):
                found = getattr(found, attribute)
            with contextlib.suppress(litellm.ImageFetchError, FetchRefused, ValueError):
                result = found(pictures.url + "/a.png")
                result = await result if hasattr(result, "__await__") else result
                assert result is False  # "serves a PDF"

        assert pictures.connections == 0

    @pytest.mark.parametrize("name", ["ollama", "ollama_chat", "lemonade"])
    async def test_a_server_of_ones_own_is_asked_for_nothing_but_the_answer(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """LiteLLM would ask it about the model, and hold up everybody until it knows."""

        async def answer(call: Call, wire: Wire) -> None:
            message = {"role": "assistant", "content": "ok"}
            chat = {"model": "m", "message": message, "response": "ok", "done": True, "done_reason": "stop"}
            await wire.json(200, completion("ok") if "completions" in call.path else chat)

        async with upstream(answer) as server:
            environment(monkeypatch, server.url)
            monkeypatch.setenv(f"{name.removesuffix('_chat').upper()}_API_BASE", server.url)
            async with a_backend() as backend:
                said = await events_of(backend, request(f"{name}/m", HELLO, stream=False))

        assert text_of(said) == "ok"
        assert len(server.calls) == 1

    async def test_a_provider_that_is_asked_again_may_be(
        self, provider: Upstream, pictures: Upstream
    ) -> None:
        """Replicate's answers are fetched from it."""
        async with a_backend():
            client = sdk.load(os.environ).module_level_aclient
            transport.current.set(transport.Connection("replicate"))
            await client.get(pictures.url + "/predictions/1")
            transport.current.set(transport.Connection("openai"))
            with pytest.raises(FetchRefused):
                await client.get(pictures.url + "/predictions/1")

        assert len(pictures.calls) == 1


def test_a_picture_counts_the_same_for_every_link() -> None:
    """No network is needed for it: the counter is told not to look."""
    asked: list[dict[str, Any]] = []

    class Sdk:
        @staticmethod
        def token_counter(**arguments: Any) -> int:
            asked.append(arguments)
            return 3

    assert usage.count_prompt(Sdk, of("openai"), ChatPrompt(messages=shown(PIXEL))) == 3
    assert asked[0]["use_default_image_token_count"] is True
