"""What embeddings and ranks of a cloud cost is told, counted and paid, as for completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest, Score
from backends.errors import BackendUnavailable
from models.card import ModelCard
from openai_compat.principals import digest_of
from tests.openai_compat.embedding_backend import EmbeddingBackend, pack
from tests.openai_compat.test_budgets import PRICE
from tests.openai_compat.test_principals import file_of
from tests.openai_compat.wire import Connection, Reply, call, make_app

ALICE = {"authorization": "Bearer alice"}
CALLS = [
    ("/v1/embeddings", {"input": "Hi there"}, 0.25),
    ("/v1/rerank", {"query": "Hi", "documents": ["a", "b"]}, 0.5),
    ("/v1/score", {"text_1": "Hi", "text_2": ["a", "b"]}, 0.5),
]
every_call = pytest.mark.parametrize(("path", "fields", "cost"), CALLS)


def vectors(request: EmbeddingRequest) -> Embeddings:
    return Embeddings(tuple(pack(1.0) for _ in request.inputs), 3, 0.25)


def ranks(request: RerankRequest) -> Ranking:
    return Ranking(tuple(Score(i, 0.5) for i in range(len(request.documents))), 3, 0.5)


@asynccontextmanager
async def a_cloud(
    folder: Path, *, kind: str = "litellm", limit_s: float = 30.0, **backend: Any
) -> AsyncIterator[tuple[FastAPI, EmbeddingBackend]]:
    """`alice` has a budget of a dollar a day."""
    cloud = EmbeddingBackend(**{"answer": vectors, "rank": ranks, "kind": kind, **backend})
    file = folder / "principals.json"
    alice = {"name": "alice", "token_sha256": digest_of(b"alice").hex(), "budget_usd_per_day": 1}
    file.write_bytes(file_of(alice))
    card = ModelCard.model_validate(
        {
            "id": "vec",
            "sources": {kind: {"name": "vec"}},
            "capabilities": ["embeddings", "rerank"],
            "price": PRICE,
        }
    )
    app = make_app(
        backends={kind: cloud},
        cards=[card],
        principals_file=file,
        state_dir=folder / "state",
        request_timeout_s=limit_s,
    )
    try:
        yield app, cloud
    finally:
        await app.state.gateway.budgets.aclose()


async def ask(app: FastAPI, path: str, fields: dict[str, Any]) -> Reply:
    return await call(app, "POST", path, {"model": "vec", **fields}, headers=ALICE)


async def spent(app: FastAPI) -> float:
    budgets = app.state.gateway.budgets
    while budgets._adding:
        await asyncio.wait(budgets._adding)
    return float((await budgets._store.spent("alice")).nanos / 1e9)


@every_call
async def test_the_cost_is_told_counted_and_paid(
    tmp_path: Path, path: str, fields: dict[str, Any], cost: float
) -> None:
    async with a_cloud(tmp_path) as (app, _):
        reply = await ask(app, path, fields)
        metrics = app.state.gateway.metrics.render().decode()

        assert reply.headers["x-llm-cost-usd"] == str(cost)
        assert reply.json["usage"]["cost_usd"] == cost
        assert f'llm:cost_usd_total{{backend="litellm",model="vec"}} {cost}' in metrics
        assert f'llm:principal_cost_usd_total{{principal="alice"}} {cost}' in metrics
        assert await spent(app) == cost


@every_call
async def test_the_call_after_the_one_that_spent_the_budget_is_refused(
    tmp_path: Path, path: str, fields: dict[str, Any], cost: float
) -> None:
    async with a_cloud(tmp_path) as (app, cloud):
        statuses = [(await ask(app, path, fields)).status for _ in range(5)]

        assert statuses == [200] * int(1 / cost) + [429] * (5 - int(1 / cost))
        assert len(cloud.asked) == int(1 / cost)


async def test_several_queries_cost_what_each_costs(tmp_path: Path) -> None:
    async with a_cloud(tmp_path) as (app, _):
        reply = await ask(app, "/v1/score", {"text_1": ["Hi", "Ho"], "text_2": ["a", "b"]})

        assert reply.headers["x-llm-cost-usd"] == "1"


async def test_what_runs_here_costs_nothing(tmp_path: Path) -> None:
    free = EmbeddingBackend.__dataclass_fields__["answer"].default
    async with a_cloud(tmp_path, kind="fake", answer=free) as (app, _):
        reply = await ask(app, "/v1/embeddings", {"input": "Hi"})

        assert "x-llm-cost-usd" not in reply.headers
        assert "cost_usd" not in reply.json["usage"]
        assert not (tmp_path / "state").exists()


async def test_an_answer_that_is_none_is_paid_for(tmp_path: Path) -> None:
    def too_few(_: EmbeddingRequest) -> Embeddings:
        return Embeddings((), 3, 0.25)

    async with a_cloud(tmp_path, answer=too_few) as (app, _):
        assert (await ask(app, "/v1/embeddings", {"input": "Hi"})).status == 500
        assert await spent(app) == 0.25


@pytest.mark.parametrize(
    ("path", "fields", "tokens"),
    [
        # A token for every four characters, rounded up text by text; a document is read with its query.
        ("/v1/embeddings", {"input": ["Hi there", "Hi"]}, 2 + 1),
        ("/v1/embeddings", {"input": [[7, 8, 9], [7]]}, 3 + 1),
        ("/v1/rerank", {"query": "Hi there", "documents": ["a", "b"]}, 2 * (2 + 1)),
    ],
)
async def test_leaving_before_the_answer_is_not_free(
    tmp_path: Path, path: str, fields: dict[str, Any], tokens: int
) -> None:
    async with a_cloud(tmp_path, hangs=True) as (app, cloud):
        body = json.dumps({"model": "vec", **fields}).encode()
        connection = Connection(app, "POST", path, body=body, headers=ALICE)
        running = asyncio.create_task(connection.run())
        await cloud.reached.wait()
        connection.leave()
        await running

        assert await spent(app) == tokens


async def test_a_deadline_of_ours_is_not_free(tmp_path: Path) -> None:
    async with a_cloud(tmp_path, limit_s=0.05, hangs=True) as (app, _):
        assert (await ask(app, "/v1/embeddings", {"input": "Hi there"})).status == 504
        assert await spent(app) == 2.0


async def test_a_refusal_of_the_cloud_costs_nothing(tmp_path: Path) -> None:
    async with a_cloud(tmp_path, error=BackendUnavailable("Not now")) as (app, _):
        assert (await ask(app, "/v1/embeddings", {"input": "Hi"})).status == 503
        assert await spent(app) == 0.0
