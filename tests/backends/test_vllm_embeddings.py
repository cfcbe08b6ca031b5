"""Embeddings and ranks of servers that run elsewhere: the contract, and answers of other servers than our own."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backends.base import Backend
from backends.embedding import RerankRequest
from backends.errors import (
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidParameter,
    NotSupported,
    UnsupportedParameter,
    UpstreamAuthFailed,
    UpstreamError,
)
from backends.fake import FakeLoader
from backends.pool import PooledBackend
from backends.vllm.remote import RemoteBackend
from backends.vllm.upstream import Upstream
from models.catalogue import Catalogue
from models.errors import UnknownModel
from openai_compat.app import create_app
from openai_compat.config import WireConfig
from tests.backends.embedding_contract import EmbeddingContract, embedded, numbers, wanted
from tests.backends.serving import serving


def this_service() -> Starlette:
    catalogue = Catalogue.load(None)
    return create_app(
        backends={"fake": PooledBackend(FakeLoader(resolve=catalogue.resolve))},
        catalogue=catalogue,
        config=WireConfig(default_backend="fake", rate_limit_rps=0, access_log=False),
    )


@pytest.fixture
def embedder() -> str:
    return "fake-embeddings"


class TestRemoteBackend(EmbeddingContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with serving(this_service()) as url:
            backend = RemoteBackend([Upstream(url)], Catalogue([]), poll_s=0.05)
            await backend.start()
            while not (await backend.health()).models:  # noqa: ASYNC110 - asked for in another task
                await asyncio.sleep(0.005)
            yield backend
            await backend.aclose()

    async def test_documents_are_ranked_by_the_server(self, backend: Backend, embedder: str) -> None:
        asked = RerankRequest(
            request_id="r",
            model=embedder,
            query="water of rivers",
            documents=("xylophones rust", "rivers carry water to the sea", "water is wet"),
            top_n=2,
        )

        found = await backend.rerank(asked)

        assert [score.index for score in found.scores] == [1, 2]
        assert found.prompt_tokens > 0


Answer = Callable[[dict[str, Any]], tuple[int, Any]]


class Stub:
    """A server that answers as a test says, and keeps what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[dict[str, Any]] = []

    def app(self) -> Starlette:
        async def answer(request: Request) -> Response:
            body = msgspec.json.decode(await request.body())
            self.asked.append(body)
            status, said = self._answer(body)
            content = said if isinstance(said, bytes) else msgspec.json.encode(said)
            return Response(content, status, media_type="application/json")

        return Starlette(
            routes=[Route(path, answer, methods=["POST"]) for path in ("/v1/embeddings", "/v1/rerank")]
        )


@asynccontextmanager
async def a_server(answer: Answer) -> AsyncIterator[tuple[Upstream, Stub]]:
    stub = Stub(answer)
    async with serving(stub.app()) as url:
        upstream = Upstream(url)
        yield upstream, stub
        await upstream.aclose()


def vectors(*values: Any, **usage: int) -> dict[str, Any]:
    data = [{"index": index, "embedding": value} for index, value in enumerate(values)]
    return {"data": data, "usage": {"prompt_tokens": 3, **usage}}


def refusing(status: int, message: str, **fields: Any) -> Answer:
    return lambda _: (status, {"error": {"message": message, **fields}})


async def test_numbers_written_out_are_taken_as_base64_is() -> None:
    packed = base64.b64encode(bytes(4) + b"\0\0\x40\x40" + b"\0\0\x80\x40").decode()

    async with a_server(lambda _: (200, vectors([0.0, 3.0, 4.0], packed))) as (upstream, _):
        found = await upstream.embed(wanted("m", "a", "b"), served_name="there")

    assert [numbers(v) for v in found.vectors] == [pytest.approx((0, 0.6, 0.8))] * 2
    assert found.prompt_tokens == 3


async def test_the_server_is_asked_for_base64_under_its_own_name_and_never_for_dimensions() -> None:
    async with a_server(lambda _: (200, vectors([3.0, 4.0, 12.0]))) as (upstream, stub):
        found = await upstream.embed(wanted("m", "a", dimensions=2), served_name="there")

    assert stub.asked == [{"model": "there", "input": ["a"], "encoding_format": "base64"}]
    assert numbers(found.vectors[0]) == pytest.approx((0.6, 0.8))


async def test_token_ids_are_passed_on() -> None:
    async with a_server(lambda _: (200, vectors([1.0], [1.0]))) as (upstream, stub):
        await upstream.embed(wanted("m", [1, 2], [3]), served_name="m")

    assert stub.asked[0]["input"] == [[1, 2], [3]]


async def test_vectors_are_put_in_order_by_their_index() -> None:
    said = {"data": [{"index": 1, "embedding": [0, 1]}, {"index": 0, "embedding": [1, 0]}], "usage": {}}

    async with a_server(lambda _: (200, said)) as (upstream, _):
        found = await upstream.embed(wanted("m", "a", "b"), served_name="m")

    assert [numbers(v) for v in found.vectors] == [(1, 0), (0, 1)]


@pytest.mark.parametrize(
    "said",
    [
        b"<html>",
        b"[]",
        {"data": "x"},
        {"data": [1]},
        {"data": []},
        {"data": [{"index": 0}]},
        {"data": [{"index": 7, "embedding": [1.0]}]},
        {"data": [{"index": True, "embedding": [1.0]}]},
        {"data": [{"embedding": [1.0]}]},
        vectors([]),
        vectors([[1.0]]),
        vectors("###"),
        vectors("AAA="),
        vectors([1e400]),
        vectors(["a"]),
        vectors({"a": 1}),
    ],
)
async def test_an_answer_without_sense_is_the_servers_fault(said: Any) -> None:
    content = msgspec.json.encode(said).replace(b"null", b"1e999") if not isinstance(said, bytes) else said

    async with a_server(lambda _: (200, content)) as (upstream, _):
        with pytest.raises(UpstreamError):
            await upstream.embed(wanted("m", "a"), served_name="m")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusing(404, "The model `m` does not exist.", code=404, type="NotFoundError"), UnknownModel),
        (lambda _: (404, {"detail": "Not Found"}), NotSupported),
        (refusing(405, "Method Not Allowed"), NotSupported),
        (refusing(400, "The model does not support Embeddings API"), UnsupportedParameter),
        (refusing(400, "Token id 99999 is out of vocabulary"), InvalidParameter),
        (refusing(401, "bad key"), UpstreamAuthFailed),
        (refusing(503, "busy"), BackendUnavailable),
        (refusing(500, "oops"), UpstreamError),
    ],
)
async def test_a_refusal_has_its_class(answer: Answer, error: type[Exception]) -> None:
    async with a_server(answer) as (upstream, _):
        with pytest.raises(error):
            await upstream.embed(wanted("m", "a"), served_name="m")


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 256 tokens. However, you requested 402 tokens in the input for "
        "embedding generation. Please reduce the length of the input.",
        "This model's maximum context length is 256 tokens. However, your prompt resulted in 402 tokens.",
        "This model's maximum context length is 256 tokens. However, your request has 402 input tokens. Please "
        "reduce the length of the input messages.",
    ],
)
async def test_a_text_that_is_too_long_is_told_both_numbers(message: str) -> None:
    async with a_server(refusing(400, message)) as (upstream, _):
        with pytest.raises(ContextLengthExceeded) as caught:
            await upstream.embed(wanted("m", "a"), served_name="m")

    assert (caught.value.prompt_tokens, caught.value.context_length) == (402, 256)
    assert caught.value.param == "input"


async def test_another_server_is_asked_where_one_cannot_be_reached() -> None:
    stub = Stub(lambda _: (200, vectors([1.0])))

    async with serving(stub.app()) as url:
        servers = [Upstream("http://127.0.0.1:1"), Upstream(url)]
        backend = RemoteBackend(servers, Catalogue.load(None), poll_s=60)
        outcomes = [await embedded(backend, wanted("all-minilm-l6-v2", "a")) for _ in range(4)]
        await backend.aclose()

    assert [len(outcome.vectors) for outcome in outcomes] == [1] * 4


@pytest.mark.parametrize(
    "results",
    [
        "x",
        [],
        [{"index": 0, "relevance_score": 1.0}],
        [{"index": 0, "relevance_score": 1.0}, {"index": 2, "relevance_score": 1.0}],
        [{"index": 0, "relevance_score": "1"}, {"index": 1, "relevance_score": 1.0}],
        [{"index": 0, "relevance_score": True}, {"index": 1, "relevance_score": 1.0}],
    ],
)
async def test_ranks_without_sense_are_the_servers_fault(results: Any) -> None:
    asked = RerankRequest(request_id="r", model="m", query="q", documents=("a", "b"))

    async with a_server(lambda _: (200, {"results": results})) as (upstream, _):
        with pytest.raises(UpstreamError):
            await upstream.rerank(asked, served_name="m")
