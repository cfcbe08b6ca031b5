"""LlamaIndex's way to servers like OpenAI's: chat, stream, a tool, vectors."""

from __future__ import annotations

from typing import Literal

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

from tests.clients.conftest import Served

CLIENT = "[LlamaIndex](https://github.com/run-llama/llama_index) (OpenAILike)"
PACKAGE = "llama-index-llms-openai-like"


def llm_at(served: Served, *, tools: bool = False, max_tokens: int = 24) -> OpenAILike:
    return OpenAILike(
        model=served.model,
        api_base=served.base_url,
        api_key="not-needed",
        is_chat_model=True,
        is_function_calling_model=tools,
        context_window=8192,
        max_tokens=max_tokens,
    )


def test_chat__a_message_is_answered(llamacpp: Served) -> None:
    response = llm_at(llamacpp).chat([ChatMessage(role="user", content="Hello World!")])

    assert response.message.content


def test_stream__deltas_come_as_they_are_made(llamacpp: Served) -> None:
    llm = llm_at(llamacpp)

    deltas = [chunk.delta for chunk in llm.stream_chat([ChatMessage(role="user", content="Tell a story.")])]

    assert len([delta for delta in deltas if delta]) > 5


def test_structured_result__a_structured_llm_gives_a_pydantic_model(llamacpp: Served) -> None:
    class Album(BaseModel):
        """A music album."""

        artist: str = Field(max_length=20)
        songs: list[Literal["Waves", "Tide"]] = Field(max_length=2)

    album = (
        llm_at(llamacpp, tools=True, max_tokens=200)
        .as_structured_llm(Album)
        .complete("An album inspired by the sea.")
        .raw
    )

    assert isinstance(album, Album)


def test_tools__predict_and_call_calls_the_function(llamacpp: Served) -> None:
    asked_for: list[str] = []

    class Song(BaseModel):
        name: Literal["Waves", "Tide"]

    def generate_song(name: str) -> str:
        """Generates a song with provided name."""
        asked_for.append(name)
        return f"{name}: la la la"

    tool = FunctionTool.from_defaults(fn=generate_song, fn_schema=Song)
    response = llm_at(llamacpp, tools=True, max_tokens=200).predict_and_call(
        [tool], "Pick a random song for me", tool_required=True
    )

    assert asked_for
    assert "la la la" in str(response)


async def test_tools__an_agent_calls_a_function_and_answers(fake: Served) -> None:
    asked_for: list[str] = []

    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked_for.append(city)
        return f"It is sunny in {city}."

    agent = FunctionAgent(tools=[get_weather], llm=llm_at(fake, tools=True), streaming=False)

    response = await agent.run("get_weather of Lima")

    assert len(asked_for) == 1
    assert str(response) == f"It is sunny in {asked_for[0]}."


def test_embeddings__a_query_and_texts_have_vectors(embedder: Served) -> None:
    embedding = OpenAILikeEmbedding(
        model_name=embedder.model, api_base=embedder.base_url, api_key="not-needed", embed_batch_size=10
    )

    vectors = embedding.get_text_embedding_batch(["river", "stone"])

    assert [len(vector) for vector in [*vectors, embedding.get_query_embedding("water")]] == [384] * 3


def test_embeddings__the_class_of_openais_own_models_takes_ours_by_its_name(embedder: Served) -> None:
    embedding = OpenAIEmbedding(
        model_name=embedder.model, api_base=embedder.base_url, api_key="not-needed", dimensions=128
    )

    vectors = embedding.get_text_embedding_batch(["river", "stone"])

    assert [len(vector) for vector in vectors] == [128] * 2
