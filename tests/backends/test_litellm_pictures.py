"""Nothing that a request names is fetched by this process: pictures come in the request, and go on as they are."""

from __future__ import annotations

import contextlib
import importlib
import os
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backends.errors import InvalidParameter
from backends.litellm import sdk, transport, usage
from backends.litellm.deployment import Deployment
from backends.litellm.no_fetch import FetchRefused
from backends.types import ChatPrompt
from tests.backends.contract import events_of, finished_of, request, text_of
from tests.backends.litellm_backends import a_backend, environment, needs_litellm
from tests.backends.provider_upstreams import anthropic_format
from tests.backends.provider_upstreams.openai_format import completion
from tests.backends.provider_upstreams.server import Call, Upstream, Wire, upstream
from tests.openai_compat.pictures import EVERY_KIND, PNG, data_url, shown

HELLO = ChatPrompt(messages=[{"role": "user", "content": "hi"}])
PROVIDERS = ("anthropic", "azure", "gemini", "groq", "mistral", "ollama_chat", "openai", "openrouter", "xai")


def of(provider: str) -> Deployment:
    return Deployment(provider=provider, model="m", supported=frozenset(), mode="chat")


# With LiteLLM, and a server of pictures whose log says who came.


@pytest.fixture
async def pictures() -> AsyncIterator[Upstream]:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.whole(200, b"\x89PNG\r\n\x1a\n" + bytes(64), "image/png")

    async with upstream(answer) as server:
        yield server


async def answering(call: Call, wire: Wire) -> None:
    """In the format that the path is of."""
    if call.path.endswith("/messages"):
        await wire.json(200, anthropic_format.message(anthropic_format.text("ok")))
    elif "generateContent" in call.path:
        content = {"role": "model", "parts": [{"text": "ok"}]}
        counts = {"promptTokenCount": 270, "candidatesTokenCount": 1, "totalTokenCount": 271}
        answer = {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": counts,
        }
        await wire.json(200, answer)
    else:
        await wire.json(200, completion("ok"))


@pytest.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Upstream]:
    async with upstream(answering) as server:
        environment(monkeypatch, server.url)
        for name in ("GEMINI", "GROQ", "MISTRAL", "XAI"):
            monkeypatch.setenv(f"{name}_API_KEY", f"key-of-{name.lower()}-0123456789")
            monkeypatch.setenv(f"{name}_API_BASE", server.url if name == "GEMINI" else f"{server.url}/v1")
        monkeypatch.setenv("MISTRAL_AZURE_API_BASE", f"{server.url}/v1")
        monkeypatch.setenv("OLLAMA_API_BASE", server.url)
        monkeypatch.setenv("AZURE_API_KEY", "key-of-azure-0123456789")
        monkeypatch.setenv("AZURE_API_VERSION", "2024-10-21")
        monkeypatch.setenv("AZURE_API_BASE", server.url)
        yield server


class TestWithLiteLLM:
    pytestmark = needs_litellm

    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
    @pytest.mark.parametrize("name", PROVIDERS)
    async def test_a_link_is_refused_before_anybody_is_asked(
        self, provider: Upstream, pictures: Upstream, name: str, stream: bool
    ) -> None:
        """A gateway has put every picture into the request; whoever asks a runner himself has to as well."""
        prompt = ChatPrompt(messages=shown(pictures.url + "/a.png"))
        async with a_backend() as backend:
            with pytest.raises(InvalidParameter) as refused:
                await events_of(backend, request(f"{name}/some-model", prompt, stream=stream))

        assert refused.value.param == "messages[0].content[1].image_url"
        assert (provider.calls, pictures.connections) == ([], 0)

    @pytest.mark.parametrize("mime", EVERY_KIND)
    async def test_openai_gets_the_picture_byte_for_byte(self, provider: Upstream, mime: str) -> None:
        prompt = ChatPrompt(messages=shown(data_url(EVERY_KIND[mime], mime), detail="low"))
        async with a_backend() as backend:
            said = await events_of(backend, request("openai/gpt-4o", prompt, stream=False))

        (body,) = provider.bodies
        text, picture = body["messages"][0]["content"]
        assert text_of(said) == "ok"
        assert text == {"type": "text", "text": "What is this?"}
        assert picture["type"] == "image_url"
        assert picture["image_url"] == {"url": data_url(EVERY_KIND[mime], mime), "detail": "low"}

    @pytest.mark.parametrize("mime", EVERY_KIND)
    async def test_anthropic_gets_the_picture_byte_for_byte_in_its_own_block(
        self, provider: Upstream, mime: str
    ) -> None:
        prompt = ChatPrompt(messages=shown(data_url(EVERY_KIND[mime], mime)))
        async with a_backend() as backend:
            said = await events_of(backend, request("anthropic/claude-sonnet-4-5", prompt, stream=False))

        (body,) = provider.bodies
        (block,) = [block for block in body["messages"][0]["content"] if block["type"] == "image"]
        assert text_of(said) == "ok"
        assert block["source"]["type"] == "base64"
        assert block["source"]["media_type"] == mime
        assert b64decode(block["source"]["data"]) == EVERY_KIND[mime]

    @pytest.mark.parametrize("mime", EVERY_KIND)
    async def test_gemini_gets_the_picture_byte_for_byte_as_inline_data(
        self, provider: Upstream, mime: str
    ) -> None:
        prompt = ChatPrompt(messages=shown(data_url(EVERY_KIND[mime], mime)))
        async with a_backend() as backend:
            said = await events_of(backend, request("gemini/gemini-2.5-flash", prompt, stream=False))

        (body,) = provider.bodies
        (inline,) = [part["inline_data"] for part in body["contents"][0]["parts"] if "inline_data" in part]
        assert text_of(said) == "ok"
        assert inline["mime_type"] == mime
        assert b64decode(inline["data"]) == EVERY_KIND[mime]
        assert finished_of(said).usage.prompt_tokens == 270

    async def test_ollama_gets_the_picture_byte_for_byte(
        self, monkeypatch: pytest.MonkeyPatch, provider: Upstream
    ) -> None:
        async def answer(_: Call, wire: Wire) -> None:
            message = {"role": "assistant", "content": "ok"}
            await wire.json(200, {"model": "m", "message": message, "done": True, "done_reason": "stop"})

        provider.answer = answer
        async with a_backend() as backend:
            prompt = ChatPrompt(messages=shown(data_url(PNG)))
            said = await events_of(backend, request("ollama_chat/llava", prompt, stream=False))

        (body,) = provider.bodies
        assert text_of(said) == "ok"
        assert body["messages"][0]["images"] == [b64encode(PNG).decode()]

    async def test_tokens_of_pictures_are_counted_without_looking_at_them(
        self, provider: Upstream, pictures: Upstream
    ) -> None:
        async with a_backend() as backend:
            counted = [
                await backend.count_tokens("gpt-4o", ChatPrompt(messages=shown(url)))
                for url in (pictures.url + "/a.png", data_url(PNG))
            ]

        assert counted[0] == counted[1] > 10
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

    assert usage.count_prompt(Sdk, of("openai"), ChatPrompt(messages=shown(data_url(PNG)))) == 3
    assert asked[0]["use_default_image_token_count"] is True
