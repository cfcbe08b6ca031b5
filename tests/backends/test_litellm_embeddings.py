"""LiteLLM's embeddings and ranks meet the contract, with a provider on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backends.base import Backend
from backends.embedding import RerankRequest
from backends.errors import (
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    Draining,
    UnsupportedParameter,
    UpstreamAuthFailed,
    UpstreamError,
    UpstreamRateLimited,
)
from backends.litellm import measure
from backends.litellm.backend import LiteLLMBackend
from backends.litellm.patience import Patience
from models.card import ModelCard, Price
from tests.backends.embedding_contract import FOX, EmbeddingContract, embedded, numbers, wanted
from tests.backends.litellm_backends import QUICK, a_backend, a_card, environment, needs_litellm
from tests.backends.provider_upstreams.openai_embeddings import Embedder
from tests.backends.provider_upstreams.server import Call, Upstream, Wire, upstream
from tests.backends.serving import served

pytestmark = needs_litellm

CARD = a_card("vec", "openai/text-embedding-3-small", capabilities=("embeddings",))
RANKER = a_card("ranker", "cohere/rerank-v3.5", capabilities=("rerank",))
CHAT = a_card("chat", "openai/gpt-4o")


@pytest.fixture
def embedder() -> str:
    return "vec"


class TestLiteLLM(EmbeddingContract):
    @pytest.fixture
    async def backend(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
        async with upstream(Embedder()) as server:
            environment(monkeypatch, server.url)
            async with a_backend(CARD) as backend:
                yield backend


class TestLiteLLMBehindTheRunnerWire(EmbeddingContract):
    @pytest.fixture
    async def backend(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
        async with upstream(Embedder()) as server:
            environment(monkeypatch, server.url)
            async with a_backend(CARD) as backend, served(backend) as client:
                yield client


@asynccontextmanager
async def a_provider(
    monkeypatch: pytest.MonkeyPatch,
    patience: Patience = QUICK,
    cards: Sequence[ModelCard] = (),
    **script: Any,
) -> AsyncIterator[tuple[LiteLLMBackend, Upstream]]:
    async with upstream(Embedder(**script)) as server:
        environment(monkeypatch, server.url)
        monkeypatch.setenv("COHERE_API_KEY", "co-0123456789abcdef")
        monkeypatch.setenv("COHERE_API_BASE", server.url)
        async with a_backend(CARD, RANKER, CHAT, *cards, patience=patience) as backend:
            yield backend, server


async def test_dimensions_are_cut_here_and_not_asked_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch) as (backend, server):
        found = await embedded(backend, wanted("vec", FOX, dimensions=4))

    assert len(numbers(found.vectors[0])) == 4
    assert "dimensions" not in server.calls[0].body


async def test_tokens_that_the_provider_does_not_report_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch, reports_usage=False) as (backend, _):
        found = await embedded(backend, wanted("vec", FOX))

    assert 8 <= found.prompt_tokens <= 14


async def test_token_ids_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch) as (backend, server):
        await embedded(backend, wanted("vec", [1, 2], [3]))

    assert server.calls[0].body["input"] == [[1, 2], [3]]


async def test_a_model_that_the_map_knows_to_chat_makes_no_embeddings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_provider(monkeypatch) as (backend, server):
        with pytest.raises(UnsupportedParameter):
            await embedded(backend, wanted("chat", FOX))

    assert server.calls == []


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        ((401, {"error": {"message": "bad key sk-openai-0123456789abcdef"}}), UpstreamAuthFailed),
        ((429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}), UpstreamRateLimited),
        ((503, {"error": {"message": "busy"}}), BackendUnavailable),
        ((500, {"error": {"message": "oops"}}), UpstreamError),
        ((200, {"object": "list", "data": []}), UpstreamError),
    ],
)
async def test_a_refusal_has_its_class_and_shows_no_key(
    monkeypatch: pytest.MonkeyPatch, refusal: tuple[int, Any], error: type[Exception]
) -> None:
    async with a_provider(monkeypatch, refusal=refusal) as (backend, _):
        with pytest.raises(error) as caught:
            await embedded(backend, wanted("vec", FOX))

    assert "sk-openai" not in str(caught.value)


async def test_an_answer_without_an_end_is_not_asked_for_again(
    provider: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "MAX_ANSWER_BYTES", 100_000)

    async def endless(_: Call, wire: Wire) -> None:
        await wire.begin_stream("application/json")
        while True:
            await wire.piece(b"[" * 10_000)

    provider.answer = endless
    async with a_backend(CARD, patience=Patience(max_retries=2)) as backend:
        with pytest.raises(UpstreamError, match="more than 100000 bytes"):
            await embedded(backend, wanted("vec", FOX))

    assert len(provider.calls) == 1


async def test_a_failure_that_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience(request_timeout_s=20.0, idle_timeout_s=5.0, max_retries=2)

    async with a_provider(monkeypatch, patience, refusal=(503, {"error": {"message": "busy"}})) as (
        backend,
        server,
    ):
        with pytest.raises(BackendUnavailable):
            await embedded(backend, wanted("vec", FOX))

    assert len(server.calls) == 3


async def test_cancelling_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch, holds=True) as (backend, server):
        waiting = asyncio.create_task(backend.embed(wanted("vec", FOX)))
        while not server.calls:  # noqa: ASYNC110 - in another task
            await asyncio.sleep(0.005)

        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await server.calls[0].wait_until_ended()

    assert server.calls[0].client_left


async def test_a_provider_that_does_not_answer_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience(request_timeout_s=0.3, idle_timeout_s=0.3, max_retries=0)

    async with a_provider(monkeypatch, patience, holds=True) as (backend, _):
        with pytest.raises(BackendTimeout):
            await embedded(backend, wanted("vec", FOX))


async def test_draining_waits_for_a_call_and_refuses_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch, holds=True) as (backend, server):
        waiting = asyncio.create_task(backend.embed(wanted("vec", FOX)))
        while not server.calls:  # noqa: ASYNC110 - in another task
            await asyncio.sleep(0.005)

        is_drained = await backend.drain(0.05)
        with pytest.raises(Draining):
            await backend.embed(wanted("vec", FOX))
        await backend.aclose()

        assert not is_drained
        with pytest.raises(BackendFailed):
            await waiting
        assert await backend.drain(1)


async def test_documents_are_ranked_by_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = RerankRequest(
        request_id="r",
        model="ranker",
        query="water of rivers",
        documents=("a", "water of rivers", "water"),
        top_n=2,
    )

    async with a_provider(monkeypatch) as (backend, _):
        found = await backend.rerank(asked)

    assert [score.index for score in found.scores] == [1, 2]
    assert found.scores[0].score == pytest.approx(1)


# What it costs

PRICED = a_card(
    "priced",
    "openai/text-embedding-3-small",
    capabilities=("embeddings",),
    price=Price(prompt=2.0, completion=0.0),
)
ROUTED = a_card("routed", "openrouter/openai/text-embedding-3-small", capabilities=("embeddings",))
UNKNOWN = a_card("unknown", "openai/some-embedder", capabilities=("embeddings",))
PRICED_RANKER = a_card(
    "dear", "cohere/rerank-v3.5", capabilities=("rerank",), price=Price(prompt=3.0, completion=0.0)
)


def ranking_of(model: str) -> RerankRequest:
    return RerankRequest(request_id="r", model=model, query="water", documents=("a", "water of rivers"))


async def test_embeddings_cost_what_litellms_map_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch) as (backend, _):
        found = await embedded(backend, wanted("vec", FOX))

    assert found.cost_usd == pytest.approx(found.prompt_tokens * 0.02e-6)


async def test_a_cards_price_goes_before_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch, cards=[PRICED]) as (backend, _):
        found = await embedded(backend, wanted("priced", FOX))

    assert found.cost_usd == pytest.approx(found.prompt_tokens * 2e-6)


async def test_tokens_that_were_counted_here_cost_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch, reports_usage=False) as (backend, _):
        found = await embedded(backend, wanted("vec", FOX))

    assert found.cost_usd == pytest.approx(found.prompt_tokens * 0.02e-6)
    assert found.cost_usd > 0


async def test_what_the_provider_says_goes_before_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch, cards=[ROUTED], cost=0.125) as (backend, _):
        assert (await embedded(backend, wanted("routed", FOX))).cost_usd == 0.125


async def test_nobody_knows_the_price_of_what_is_in_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch, cards=[UNKNOWN]) as (backend, _):
        assert (await embedded(backend, wanted("unknown", FOX))).cost_usd is None


async def test_ranks_cost_by_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch) as (backend, _):
        assert (await backend.rerank(ranking_of("ranker"))).cost_usd == pytest.approx(0.002)


async def test_ranks_cost_by_the_token_where_the_card_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cohere tells no tokens, so they are counted here, the query with each document."""
    async with a_provider(monkeypatch, cards=[PRICED_RANKER]) as (backend, _):
        found = await backend.rerank(ranking_of("dear"))

    assert 5 <= found.prompt_tokens <= 8
    assert found.cost_usd == pytest.approx(found.prompt_tokens * 3e-6)


async def test_the_cost_travels_over_the_runners_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_provider(monkeypatch) as (backend, _), served(backend) as client:
        assert (await client.embed(wanted("vec", FOX))).cost_usd
        assert (await client.rerank(ranking_of("ranker"))).cost_usd
