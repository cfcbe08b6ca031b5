"""LiteLLM's backend meets the contract, with a provider on loopback that speaks OpenAI's format."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from backends.base import Backend
from backends.errors import NotSupported, UnsupportedParameter
from backends.types import ChatPrompt, EventBatch, GenerationRequest, LoadProgress, Prompt, TextPrompt
from tests.backends.contract import BackendContract, endings_of, events_of, load, request, text_of
from tests.backends.litellm_backends import a_backend, a_card, environment, needs_litellm
from tests.backends.provider_upstreams.openai_format import Model
from tests.backends.provider_upstreams.server import upstream
from tests.backends.serving import served

pytestmark = needs_litellm

CONTEXT = 600


def count(prompt: Any) -> int:
    import litellm

    if isinstance(prompt, list):
        return int(litellm.token_counter(model="gpt-4o", messages=prompt))
    return int(litellm.token_counter(model="gpt-4o", text=prompt))


def a_provider() -> Model:
    """One that never ends an answer by itself, as the suite asks of `ignore_eos`."""
    return Model(length=None, itl_s=0.001, context_length=CONTEXT, count=count)


class Adapted(Backend):
    """The suite's requests as a cloud takes them: without `ignore_eos`, which none has, and for a model that only chats
    a raw prompt as a user's message."""

    def __init__(self, inner: Backend, *, chats_only: bool) -> None:
        self.kind = inner.kind
        self._inner = inner
        self._chats_only = chats_only

    @override
    async def start(self) -> None:
        await self._inner.start()

    @override
    def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        sampling = msgspec.structs.replace(request.sampling, ignore_eos=False)
        prompts = tuple(map(self._prompt, request.prompts))
        return self._inner.generate(msgspec.structs.replace(request, sampling=sampling, prompts=prompts))

    def _prompt(self, prompt: Prompt) -> Prompt:
        if self._chats_only and isinstance(prompt, TextPrompt):
            return ChatPrompt(messages=[{"role": "user", "content": prompt.text}])
        return prompt

    @override
    async def abort(self, request_id: str) -> None:
        await self._inner.abort(request_id)

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        return await self._inner.count_tokens(model, self._prompt(prompt))

    @override
    def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        return self._inner.load(model)

    @override
    async def unload(self, model: str) -> None:
        await self._inner.unload(model)

    @override
    async def health(self) -> Any:
        return await self._inner.health()

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class LiteLLMContract(BackendContract):
    """What is different about clouds, and for all of them."""

    async def test_loading_and_unloading_are_left_to_the_provider(self, backend: Backend, model: str):
        with pytest.raises(NotSupported):
            await load(backend, model)
        with pytest.raises(NotSupported):
            await backend.unload(model)

    test_a_load_ends_with_ready_and_shows = None
    test_a_second_load_joins_or_finds_it_loaded = None
    test_an_unload_takes_it_away_and_the_next_request_brings_it_back = None
    test_an_unload_of_what_is_not_loaded_succeeds = None
    test_an_unload_lets_a_running_request_finish = None
    test_a_request_during_an_unload_waits_and_loads_again = None

    async def test_min_tokens_is_refused(self, backend: Backend, model: str):
        with pytest.raises(UnsupportedParameter) as refused:
            await events_of(backend, request(model, min_tokens=6, explicit=frozenset({"min_tokens"})))

        assert refused.value.param == "min_tokens"

    test_min_tokens_overrides_a_stop = None

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_stop_string_cuts_at_its_first_occurrence(
        self, backend: Backend, model: str, stream: bool
    ):
        """Which stop it was providers do not say."""
        text, stop = await self.text_and_stop(backend, model)
        events = await events_of(backend, request(model, stop=(stop,), stream=stream))

        assert text_of(events) == text[: text.index(stop)]
        assert endings_of(events)[0].finish_reason == "stop"

    # A provider answers such a request in a way of its own: many refuse it.
    test_little_room_ends_with_length = None


class TestChat(LiteLLMContract):
    @pytest.fixture
    def model(self) -> str:
        return "chat"

    @pytest.fixture
    async def backend(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
        async with upstream(a_provider()) as provider:
            environment(monkeypatch, provider.url)
            async with a_backend(a_card("chat", "openai/gpt-4o", context_length=CONTEXT)) as backend:
                yield Adapted(backend, chats_only=True)

    # Raw text and token ids are for models that complete text.
    test_token_ids_are_a_prompt_as_they_are = None
    test_token_ids_outside_the_vocabulary_are_refused = None
    test_echo_puts_the_prompt_before_the_answer = None
    test_a_template_counts_more_than_its_text = None


class TestChatBehindTheRunnerWire(TestChat):
    @pytest.fixture
    async def backend(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
        async with upstream(a_provider()) as provider:
            environment(monkeypatch, provider.url)
            async with (
                a_backend(a_card("chat", "openai/gpt-4o", context_length=CONTEXT)) as backend,
                served(backend) as client,
            ):
                yield Adapted(client, chats_only=True)


class TestText(LiteLLMContract):
    @pytest.fixture
    def model(self) -> str:
        return "text"

    @pytest.fixture
    async def backend(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
        async with upstream(a_provider()) as provider:
            environment(monkeypatch, provider.url)
            card = a_card("text", "text-completion-openai/gpt-3.5-turbo-instruct", context_length=CONTEXT)
            async with a_backend(card) as backend:
                yield Adapted(backend, chats_only=False)

    # Of tokens, text completions say nothing that can be read here.
    test_every_sampled_token_has_its_logprob_and_alternatives = None
    test_the_best_alternative_is_the_greedy_token = None
    test_no_alternatives_may_be_asked_for = None
    # LiteLLM writes a conversation as one text in a form of its own.
    test_prompt_tokens_are_those_that_count_tokens_gives = None
