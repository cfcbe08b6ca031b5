"""OpenAI's own client for JavaScript; the programs are in node/openai."""

from __future__ import annotations

from tests.clients.conftest import RunNode, Served

CLIENT = "[openai](https://github.com/openai/openai-node) (JavaScript)"
PACKAGE = "npm:openai"


def test_chat__a_question_is_answered(run_node: RunNode, llamacpp: Served) -> None:
    answer = run_node("openai/chat.mjs", llamacpp)

    assert answer["content"]
    assert answer["usage"]["completion_tokens"] <= 24


def test_stream__the_pieces_come_as_they_are_made(run_node: RunNode, llamacpp: Served) -> None:
    pieces = run_node("openai/stream.mjs", llamacpp)

    assert len(pieces) > 5


def test_structured_result__parse_gives_what_the_zod_schema_says(run_node: RunNode, llamacpp: Served) -> None:
    parsed = run_node("openai/structured.mjs", llamacpp)

    assert isinstance(parsed["name"], str)
    assert isinstance(parsed["participants"], list)


def test_tools__run_tools_calls_a_function_and_answers(run_node: RunNode, fake: Served) -> None:
    answer = run_node("openai/tools.mjs", fake)

    assert answer == {"calls": 1, "content": "Sunny."}


def test_tools__a_function_that_must_be_called_is_called(run_node: RunNode, llamacpp: Served) -> None:
    answer = run_node("openai/tools_required.mjs", llamacpp)

    assert answer["name"] == "getWeather"
    assert set(answer["arguments"]) == {"city"}


def test_embeddings__one_vector_per_text(run_node: RunNode, embedder: Served) -> None:
    lengths = run_node("openai/embeddings.mjs", embedder)

    assert lengths == [384, 384]
