"""The remote backend meets the contract with a real OpenAI-compatible server behind it: this service, with the fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from backends.base import Backend
from backends.errors import NotSupported
from backends.fake import FakeLoader, FakeScript, tokens
from backends.pool import PooledBackend
from backends.registry import FEATURES
from backends.types import ChatPrompt, TextPrompt
from backends.vllm.remote import RemoteBackend
from backends.vllm.upstream import Upstream
from models.card import ModelCard, RemoteSource
from models.catalogue import Catalogue
from openai_compat.app import create_app
from openai_compat.config import WireConfig
from tests.backends.contract import BackendContract, endings_of, events_of, load, request, text_of
from tests.backends.serving import serving

CONTEXT = 2000


def a_server() -> Starlette:
    """This service as somebody else's OpenAI-compatible server, with vLLM's route that counts tokens beside it."""
    card = ModelCard(
        id="fake-echo",
        backend="fake",
        sources={"fake": RemoteSource(name="fake-echo")},
        context_length=CONTEXT,
    )
    pool = PooledBackend(FakeLoader({"fake-echo": FakeScript(context_length=CONTEXT, itl_s=0.001)}))
    pool.features = FEATURES["fake"]
    app = create_app(
        backends={"fake": pool},
        catalogue=Catalogue([card]),
        config=WireConfig(default_backend="fake", rate_limit_rps=0, max_concurrent_completions=100),
    )

    async def tokenize(asked: Request) -> JSONResponse:
        body: dict[str, Any] = await asked.json()
        if body["model"] != "fake-echo":
            return JSONResponse({"error": {"message": "no model", "code": 404, "type": "NotFoundError"}}, 404)
        prompt = (
            ChatPrompt(messages=body["messages"]) if "messages" in body else TextPrompt(text=body["prompt"])
        )
        return JSONResponse({"count": tokens.count(prompt), "max_model_len": CONTEXT})

    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app.router.lifespan_context(app):
            yield

    routes = [Route("/tokenize", tokenize, methods=["POST"]), Mount("/", app)]
    return Starlette(routes=routes, lifespan=asynccontextmanager(lifespan))


@pytest.fixture
def model() -> str:
    return "fake-echo"


class TestRemoteBackend(BackendContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with serving(a_server()) as url:
            backend = RemoteBackend([Upstream(url)], Catalogue([]), poll_s=0.05)
            backend.features = FEATURES["vllm"]
            await backend.start()
            while not (await backend.health()).models:  # noqa: ASYNC110 - asked for in another task
                await asyncio.sleep(0.005)
            yield backend
            await backend.aclose()

    async def test_loading_and_unloading_are_left_to_the_server(self, backend: Backend, model: str):
        with pytest.raises(NotSupported):
            await load(backend, model)
        with pytest.raises(NotSupported):
            await backend.unload(model)

    # What needs a backend that loads and unloads.
    test_a_load_ends_with_ready_and_shows = None
    test_a_second_load_joins_or_finds_it_loaded = None
    test_an_unload_takes_it_away_and_the_next_request_brings_it_back = None
    test_an_unload_of_what_is_not_loaded_succeeds = None
    test_an_unload_lets_a_running_request_finish = None
    test_a_request_during_an_unload_waits_and_loads_again = None

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_stop_string_cuts_at_its_first_occurrence(
        self, backend: Backend, model: str, stream: bool
    ):
        """Which stop it was this server, like OpenAI's, does not say."""
        text, stop = await self.text_and_stop(backend, model)
        events = await events_of(backend, request(model, ignore_eos=True, stop=(stop,), stream=stream))

        assert text_of(events) == text[: text.index(stop)]
        assert endings_of(events)[0].finish_reason == "stop"
