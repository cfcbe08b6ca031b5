"""Vercel's AI SDK with its provider for servers like OpenAI's; the programs are in node/ai."""

from __future__ import annotations

from tests.clients.conftest import RunNode, Served

CLIENT = "[ai](https://github.com/vercel/ai) with @ai-sdk/openai-compatible"
PACKAGE = "npm:ai"


def test_chat__generate_text_answers(run_node: RunNode, llamacpp: Served) -> None:
    answer = run_node("ai/chat.mjs", llamacpp)

    assert answer["text"]
    assert answer["usage"]["outputTokens"] <= 24


def test_stream__text_comes_as_it_is_made(run_node: RunNode, llamacpp: Served) -> None:
    pieces = run_node("ai/stream.mjs", llamacpp)

    assert len(pieces) > 5


def test_structured_result__an_object_meets_the_zod_schema(run_node: RunNode, llamacpp: Served) -> None:
    recipe = run_node("ai/structured.mjs", llamacpp)

    assert isinstance(recipe["name"], str)
    assert isinstance(recipe["steps"], list)


def test_tools__a_tool_is_called_and_its_result_talked_about(run_node: RunNode, fake: Served) -> None:
    answer = run_node("ai/tools.mjs", fake)

    assert answer["calls"] == 1
    assert "Sunny" in answer["text"]


def test_tools__a_tool_that_must_be_called_is_called(run_node: RunNode, llamacpp: Served) -> None:
    called = run_node("ai/tools_required.mjs", llamacpp)

    assert [call["toolName"] for call in called["calls"]] == ["weather"]
    assert set(called["calls"][0]["input"]) == {"location"}
    assert called["results"] == ["Sunny."]


def test_embeddings__embed_many_gives_a_vector_per_text(run_node: RunNode, embedder: Served) -> None:
    lengths = run_node("ai/embeddings.mjs", embedder)

    assert lengths == [384, 384]
