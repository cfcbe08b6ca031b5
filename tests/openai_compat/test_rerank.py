"""`POST /v1/rerank` and `POST /v1/score` on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from backends.embedding import Ranking, RerankRequest, Score
from backends.errors import BackendFailed
from tests.openai_compat.embedding_backend import EmbeddingBackend, embedder, embedding_app
from tests.openai_compat.scripted_backend import ScriptedBackend
from tests.openai_compat.wire import Reply, call, make_app

DOCUMENTS = ["a", "ccc", "bb"]


async def rerank(app: Any, *, url_query: str = "", **fields: Any) -> Reply:
    body = {"model": "vec", "query": "q", "documents": DOCUMENTS, **fields}
    return await call(app, "POST", "/v1/rerank", body, query=url_query)


async def score(app: Any, **fields: Any) -> Reply:
    return await call(
        app, "POST", "/v1/score", {"model": "vec", "text_1": "q", "text_2": DOCUMENTS, **fields}
    )


async def test_documents_come_back_best_first_with_their_places() -> None:
    reply = await rerank(embedding_app())

    assert reply.status == 200
    assert reply.json["results"] == [
        {"index": 1, "relevance_score": 3.0, "document": {"text": "ccc"}},
        {"index": 2, "relevance_score": 2.0, "document": {"text": "bb"}},
        {"index": 0, "relevance_score": 1.0, "document": {"text": "a"}},
    ]
    assert (reply.json["model"], reply.json["backend"]) == ("vec", "fake")
    assert reply.json["usage"] == {"prompt_tokens": 11, "total_tokens": 11}


async def test_top_n_keeps_the_best_and_may_exceed_the_documents() -> None:
    app = embedding_app()

    two, all_of_them = await rerank(app, top_n=2), await rerank(app, top_n=50)

    assert [result["index"] for result in two.json["results"]] == [1, 2]
    assert len(all_of_them.json["results"]) == 3


async def test_documents_may_be_objects_with_a_text_and_may_be_left_out_of_the_answer() -> None:
    backend = EmbeddingBackend()

    reply = await rerank(
        embedding_app(backend), documents=[{"text": "aa", "id": 7}, "b"], return_documents=False
    )

    assert backend.asked[0].documents == ("aa", "b")
    assert reply.json["results"][0] == {"index": 0, "relevance_score": 2.0}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"query": ["q"]}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a", ""]}, "documents.1"),
        ({"documents": [{"body": "a"}]}, "documents.0.text"),
        ({"documents": [{"text": ""}]}, "documents.0.text"),
        ({"documents": ["a"] * 1001}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"return_documents": 1}, "return_documents"),
        ({"model": None}, "model"),
        ({"api_key": "x"}, "api_key"),
    ],
)
async def test_a_rerank_body_that_is_none_is_refused(fields: dict[str, Any], param: str) -> None:
    reply = await rerank(embedding_app(), **fields)

    assert (reply.status, reply.error["param"]) == (422, param)


async def test_strict_refuses_unknown_fields() -> None:
    app = embedding_app()

    ignored, refused = await rerank(app, shiny=1), await rerank(app, url_query="strict=1", shiny=1)

    assert (ignored.status, ignored.headers["x-llm-ignored"]) == (200, "shiny")
    assert refused.status == 422


async def test_a_model_that_ranks_nothing_is_told_what_it_can() -> None:
    for reply in (await rerank(embedding_app(), model="tiny"), await score(embedding_app(), model="tiny")):
        assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")
        assert "chat, completion" in reply.error["message"]


async def test_a_backend_that_ranks_nothing_is_501() -> None:
    app = make_app(ScriptedBackend(), cards=[embedder()])

    for reply in (await rerank(app), await score(app)):
        assert (reply.status, reply.error["code"]) == (501, "not_implemented")


@pytest.mark.parametrize(
    "scores",
    [
        (Score(0, 1.0),),
        (Score(0, 1.0), Score(0, 0.5), Score(1, 0.1)),
        (Score(0, 1.0), Score(1, 0.5), Score(3, 0.1)),
    ],
)
async def test_ranks_of_other_documents_are_no_answer(scores: tuple[Score, ...]) -> None:
    def wrong(_: RerankRequest) -> Ranking:
        return Ranking(scores, 1)

    reply = await rerank(embedding_app(EmbeddingBackend(rank=wrong)))

    assert reply.status == 500


async def test_one_text_is_scored_against_each_of_the_others_in_their_order() -> None:
    backend = EmbeddingBackend()

    reply = await score(embedding_app(backend))

    assert reply.json["data"] == [
        {"index": index, "object": "score", "score": value} for index, value in enumerate((1.0, 3.0, 2.0))
    ]
    assert reply.json["object"] == "list"
    assert len(backend.asked) == 1


async def test_as_many_texts_are_scored_pair_by_pair() -> None:
    backend = EmbeddingBackend()

    reply = await score(embedding_app(backend), text_1=["p", "q", "r"])

    assert [entry["score"] for entry in reply.json["data"]] == [1.0, 3.0, 2.0]
    assert [(asked.query, asked.documents) for asked in backend.asked] == [
        ("p", ("a",)),
        ("q", ("ccc",)),
        ("r", ("bb",)),
    ]
    assert reply.json["usage"]["total_tokens"] == 33


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text_1": ""}, "text_1"),
        ({"text_1": []}, "text_1"),
        ({"text_1": ["a", "b"]}, "text_1"),
        ({"text_2": [""]}, "text_2.0"),
        ({"text_2": 5}, "text_2"),
        ({"text_2": None}, "text_2"),
    ],
)
async def test_a_score_body_that_is_none_is_refused(fields: dict[str, Any], param: str) -> None:
    reply = await score(embedding_app(), **fields)

    assert (reply.status, reply.error["param"]) == (422, param)


async def test_one_pair_that_fails_fails_the_request() -> None:
    reply = await score(
        embedding_app(EmbeddingBackend(error=BackendFailed("broken"))), text_1=["p", "q", "r"]
    )

    assert (reply.status, reply.error["code"]) == (500, "backend_error")
