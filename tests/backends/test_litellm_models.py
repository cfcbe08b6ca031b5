"""Which provider a name means, whether there is a key for it, and what is offered without a card."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.errors import UpstreamAuthFailed
from backends.litellm import deployment as deployment_module
from backends.litellm import providers
from backends.litellm.deployment import Deployments, capabilities_of, newest_dated
from backends.runner import OfferingClient
from backends.runner.app import create_runner_app
from backends.runner.offers import cards_of
from backends.types import ChatPrompt, OfferedModel, Offers
from models.card import Price
from models.catalogue import Catalogue
from models.errors import UnknownModel
from tests.backends.contract import events_of, request
from tests.backends.litellm_backends import KEYS, a_backend, a_card, environment, needs_litellm
from tests.backends.provider_upstreams import anthropic_format
from tests.backends.provider_upstreams.openai_format import completion
from tests.backends.provider_upstreams.server import Call, Upstream, Wire, upstream
from tests.backends.serving import serving

CHAT = ChatPrompt(messages=[{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("provider", "environ"),
    [
        ("openai", {"OPENAI_API_KEY": "k"}),
        ("text-completion-openai", {"OPENAI_API_KEY": "k"}),
        ("anthropic", {"ANTHROPIC_AUTH_TOKEN": "k"}),
        ("openrouter", {"OPENROUTER_API_KEY": "k"}),
        ("together_ai", {"TOGETHERAI_API_KEY": "k"}),
        ("together_ai", {"TOGETHER_AI_API_KEY": "k"}),
        ("gemini", {"GOOGLE_API_KEY": "k"}),
        ("bedrock", {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}),
        ("azure", {"AZURE_API_KEY": "k", "AZURE_API_BASE": "https://x"}),
        ("hosted_vllm", {"HOSTED_VLLM_API_BASE": "http://x"}),
    ],
)
def test_a_provider_with_its_variables_has_a_key(provider: str, environ: dict[str, str]):
    assert providers.has_key(provider, environ)
    assert not providers.has_key(provider, {})
    assert not providers.has_key(provider, dict.fromkeys(environ, " "))


def test_half_of_a_pair_of_variables_is_no_key():
    assert not providers.has_key("bedrock", {"AWS_ACCESS_KEY_ID": "k"})


def test_secrets_are_found_by_the_names_of_their_variables_longest_first():
    environ = {
        "OPENAI_API_KEY": "sk-0123456789",
        "HF_TOKEN": "hf-0123456789abc",
        "HOME": "/home/somebody",
        "SHORT_KEY": "abc",
    }

    assert providers.secrets_in(environ) == ("hf-0123456789abc", "sk-0123456789")


def test_a_name_without_its_date_means_the_latest_else_the_newest():
    known = [
        "claude-3-opus-20240229",
        "claude-3-opus-20240301",
        "gpt-4o-2024-05-13",
        "claude-3-opus-vision-1",
    ]

    assert newest_dated("claude-3-opus", known) == "claude-3-opus-20240301"
    assert newest_dated("claude-3-opus", [*known, "claude-3-opus-latest"]) == "claude-3-opus-latest"
    assert newest_dated("gpt-4o", known) == "gpt-4o-2024-05-13"
    assert newest_dated("gpt-4", known) is None


def test_capabilities_are_those_of_the_map():
    full = {
        "mode": "chat",
        "supports_vision": True,
        "supports_function_calling": True,
        "supports_reasoning": True,
    }

    assert capabilities_of(full) == ("chat", "vision", "tools", "reasoning")
    assert capabilities_of({"mode": "embedding"}) == ("embeddings",)
    assert capabilities_of({"mode": "image_generation"}) == ()
    assert capabilities_of({}) == ()


def test_an_offered_model_becomes_a_card_and_one_without_a_usable_name_does_not():
    offers = Offers(
        models=(
            OfferedModel(
                id="openrouter/a/b",
                context_length=100,
                capabilities=("chat",),
                owned_by="x",
                price=(1.0, 2.0),
            ),
            OfferedModel(id="../../etc/passwd", capabilities=("chat",)),
            OfferedModel(id="odd", capabilities=("teleportation",)),
        )
    )

    (card,) = cards_of(offers, "litellm")

    assert (card.id, card.backend, card.context_length, card.owned_by) == (
        "openrouter/a/b",
        "litellm",
        100,
        "x",
    )
    assert card.price == Price(prompt=1.0, completion=2.0)


def test_a_catalogue_serves_what_is_offered_and_any_name_below_an_offered_prefix():
    catalogue = Catalogue([a_card("mine", "openai/gpt-4o")])
    with pytest.raises(UnknownModel):
        catalogue.resolve("gpt-4o")

    catalogue.offer("litellm", [a_card("gpt-4o", "gpt-4o")], prefixes=["openrouter"])

    assert [card.id for card in catalogue.cards("litellm")] == ["mine", "gpt-4o"]
    assert catalogue.resolve("openrouter/some/new-model").backend == "litellm"
    assert "vision" in catalogue.resolve("openrouter/some/new-model").capabilities
    for name in ("openrouter", "openrouter/../x", "openrouter/", "elsewhere/x"):
        with pytest.raises(UnknownModel):
            catalogue.resolve(name)


def test_another_offer_takes_the_place_of_the_first():
    catalogue = Catalogue([])
    catalogue.offer("litellm", [a_card("gpt-4o", "gpt-4o")], prefixes=["openrouter"])

    catalogue.offer("litellm", [], prefixes=["groq"])

    assert catalogue.cards() == ()
    with pytest.raises(UnknownModel):
        catalogue.resolve("openrouter/x")
    assert catalogue.resolve("groq/x").id == "groq/x"


class TestWithLiteLLM:
    pytestmark = needs_litellm

    @pytest.fixture
    async def provider(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Upstream]:
        async def hello(call: Call, wire: Wire) -> None:
            if call.path == "/v1/messages":
                await anthropic_format.Says(anthropic_format.text("Hi"))(call, wire)
            else:
                await wire.json(200, completion("Hi"))

        async with upstream(hello) as one:
            environment(monkeypatch, one.url)
            yield one

    @pytest.mark.parametrize(
        ("name", "path", "remote"),
        [
            ("gpt-4", "/v1/chat/completions", "gpt-4"),
            ("gpt-3.5-turbo", "/v1/chat/completions", "gpt-3.5-turbo"),
            ("gpt-99-ultra", "/v1/chat/completions", "gpt-99-ultra"),
            ("openai/anything-at-all", "/v1/chat/completions", "anything-at-all"),
            ("claude-sonnet-4-5", "/v1/messages", "claude-sonnet-4-5"),
            ("claude-3-opus", "/v1/messages", "claude-3-opus"),
            ("anthropic/claude-next", "/v1/messages", "claude-next"),
            ("openrouter/meta-llama/llama-3-70b", "/api/v1/chat/completions", "meta-llama/llama-3-70b"),
        ],
    )
    async def test_a_name_goes_to_the_provider_it_means(
        self, provider: Upstream, name: str, path: str, remote: str
    ):
        async with a_backend() as backend:
            await events_of(backend, request(name, CHAT))

        assert (provider.calls[0].path, provider.calls[0].body["model"]) == (path, remote)

    async def test_the_key_is_the_providers_own_and_comes_from_the_environment(self, provider: Upstream):
        async with a_backend() as backend:
            for name in ("gpt-4", "claude-sonnet-4-5", "openrouter/a/b"):
                await events_of(backend, request(name, CHAT))

        headers = [call.headers for call in provider.calls]
        assert headers[0]["authorization"] == f"Bearer {KEYS['OPENAI_API_KEY']}"
        assert headers[1]["x-api-key"] == KEYS["ANTHROPIC_API_KEY"]
        assert headers[2]["authorization"] == f"Bearer {KEYS['OPENROUTER_API_KEY']}"

    async def test_a_card_names_the_remote_model(self, provider: Upstream):
        async with a_backend(a_card("cheap", "openrouter/mistralai/small")) as backend:
            await events_of(backend, request("cheap", CHAT))

        assert provider.calls[0].body["model"] == "mistralai/small"

    async def test_a_provider_without_a_key_is_not_asked(
        self, provider: Upstream, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.delenv("OPENROUTER_API_KEY")
        monkeypatch.delenv("OPENROUTER_API_BASE")
        async with a_backend(a_card("cheap", "openrouter/a/b"), a_card("gpt", "openai/gpt-4o")) as backend:
            with pytest.raises(UpstreamAuthFailed, match="no key for the provider 'openrouter'"):
                await events_of(backend, request("cheap", CHAT))
            states = {model.id: model.state for model in (await backend.health()).models}

        assert provider.calls == []
        assert states == {"cheap": "failed", "gpt": "loaded"}

    async def test_without_any_key_the_backend_is_unhealthy_and_says_what_to_set(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        environment(monkeypatch, "http://127.0.0.1:9", keys={})
        async with a_backend() as backend:
            health = await backend.health()

        assert not health.healthy
        assert "OPENROUTER_API_KEY" in (health.message or "")

    async def test_health_calls_no_provider(self, provider: Upstream):
        async with a_backend(a_card("gpt", "openai/gpt-4o")) as backend:
            assert (await backend.health()).healthy
            await backend.offers()

        assert provider.connections == 0

    async def test_what_is_offered_has_context_capabilities_and_price(self, provider: Upstream):
        async with a_backend() as backend:
            offers = await backend.offers()

        found = {model.id: model for model in offers.models}
        assert found["gpt-4o"].context_length == 128_000
        assert set(found["gpt-4o"].capabilities) >= {"chat", "tools"}
        assert found["gpt-4o"].price == (2.5, 10.0)
        assert found["gpt-4o"].owned_by == "openai"
        assert set(offers.prefixes) >= {"openai", "anthropic", "openrouter"}
        assert not any(name.startswith("gemini/") for name in found)

    async def test_what_is_offered_goes_to_the_provider_that_offers_it(
        self, provider: Upstream, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("GEMINI_API_KEY", "g")
        monkeypatch.setenv("GROQ_API_KEY", "g")
        async with a_backend() as backend:
            offers = await backend.offers()
            owners = {model.id: backend._deployments.resolve(model.id).provider for model in offers.models}

        assert {model.id: model.owned_by for model in offers.models} == owners
        assert set(owners.values()) >= {"openai", "anthropic", "gemini", "groq"}

    async def test_the_gateway_learns_over_the_wire_what_the_runner_offers(self, provider: Upstream):
        catalogue = Catalogue([])
        async with a_backend() as backend, serving(create_runner_app(backend, token="t")) as url:
            client = OfferingClient("litellm", url, "t", catalogue=catalogue)
            await client.start()
            async with asyncio.timeout(10):
                while not catalogue.cards("litellm"):  # noqa: ASYNC110 - asked for in another task
                    await asyncio.sleep(0.01)
            await client.aclose()

        assert catalogue.resolve("gpt-4o").price == Price(prompt=2.5, completion=10.0)
        assert catalogue.resolve("openrouter/any/thing").backend == "litellm"

    async def test_the_import_asks_nobody_and_leaves_no_log(self, capfd: pytest.CaptureFixture[str]):
        import logging
        import subprocess
        import sys
        from pathlib import Path

        code = (
            "import os, socket, warnings; warnings.simplefilter('ignore')\n"
            "def refuse(*_, **__): raise AssertionError('a connection was attempted')\n"
            "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
            "from backends.litellm import sdk\n"
            "sdk.load(os.environ)\n"
            "print('quiet')"
        )
        root = Path(__file__).parents[2]
        run = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60
        )

        assert (run.stdout, run.stderr, run.returncode) == ("quiet\n", "", 0)
        assert not logging.getLogger("LiteLLM").isEnabledFor(logging.ERROR)


@pytest.mark.parametrize(
    "name",
    [
        "huggingface/https://example.com",
        "gemini/m:countTokens?key=x&",
        "gemini/m%2f..%2ffiles",
        "gemini/../files",
        "gemini/./m",
        "openai//m",
        "openai/m#",
        "openai/m m",
        "openai/mé",
        "openai/.m",
        "/openai/m",
        "",
    ],
)
def test_what_a_provider_might_take_for_an_address_is_no_name(name: str):
    """Nobody is asked about it, not even LiteLLM."""
    with pytest.raises(UnknownModel):
        Deployments(None, Catalogue([])).resolve(name)


@pytest.mark.parametrize(
    "name",
    [
        "gpt-4o",
        "ft:gpt-4o-mini-2024-07-18:org:name:id",
        "openrouter/meta-llama/llama-3-70b:free",
        "cloudflare/@cf/meta/llama-2-7b-chat-int8",
        "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "bedrock/arn:aws:bedrock:us-east-1:123456789012:inference-profile/a.b-c_d",
        "vertex_ai/gemini-2.5-pro@001",
    ],
)
def test_names_that_providers_use_are_names(name: str):
    assert deployment_module._NAME.fullmatch(name)


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        ("openai", "OPENAI_API_BASE"),
        ("openai", "OPENAI_BASE_URL"),
        ("text-completion-openai", "OPENAI_BASE_URL"),
        ("anthropic", "ANTHROPIC_BASE_URL"),
        ("openrouter", "OPENROUTER_API_BASE"),
        ("ollama_chat", "OLLAMA_API_BASE"),
    ],
)
def test_an_address_is_read_from_the_variables_that_litellm_reads(provider: str, name: str):
    assert providers.has_address(provider, {name: "http://x"})


def test_a_variable_that_nobody_reads_is_told_with_the_one_that_is_read():
    environ = {"OPENROUTER_BASE_URL": "http://x", "OPENAI_BASE_URL": "http://x", "GROQ_BASE_URL": " "}

    assert not providers.has_address("openrouter", environ)
    assert providers.unread(["openai", "openrouter", "groq"], environ) == {
        "OPENROUTER_BASE_URL": "OPENROUTER_API_BASE"
    }


class TestWithLiteLLMsSource:
    pytestmark = needs_litellm

    def test_litellm_reads_no_other_base_urls(self):
        found = importlib.util.find_spec("litellm")
        assert found is not None
        assert found.submodule_search_locations
        root = Path(found.submodule_search_locations[0])
        files = [
            root / "main.py",
            *(root / "llms").rglob("*.py"),
            *(root / "litellm_core_utils").rglob("*.py"),
        ]
        names = {
            name
            for file in files
            for name in re.findall(
                r'get(?:env|_secret|_secret_str)\(\s*"([A-Z_]+)_BASE_URL"', file.read_text()
            )
        }

        assert names <= providers._HAVE_BASE_URL | {"LOGFIRE", "ANTHROPIC_AWS"}
