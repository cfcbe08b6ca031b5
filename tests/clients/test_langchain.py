"""LangChain: a chat model, its agent, and the vectors of a store."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field, SecretStr

from tests.clients.conftest import Served

CLIENT = "[langchain-openai](https://github.com/langchain-ai/langchain)"
PACKAGE = "langchain-openai"
KEY = SecretStr("not-needed")


def test_chat__invoke_answers(llamacpp: Served) -> None:
    llm = ChatOpenAI(base_url=llamacpp.base_url, api_key=KEY, model=llamacpp.model, max_tokens=24)

    ai_msg = llm.invoke([("system", "You are a helpful translator."), ("human", "I love programming.")])

    assert ai_msg.text
    assert ai_msg.usage_metadata["output_tokens"] <= 24


def test_stream__chunks_come_as_they_are_made(llamacpp: Served) -> None:
    llm = ChatOpenAI(base_url=llamacpp.base_url, api_key=KEY, model=llamacpp.model, max_tokens=24)

    chunks = [chunk.text for chunk in llm.stream("Write a sentence about the sea.")]

    assert len([chunk for chunk in chunks if chunk]) > 5


def test_structured_result__with_structured_output_gives_a_pydantic_model(llamacpp: Served) -> None:
    class Joke(BaseModel):
        setup: str = Field(max_length=40)
        punchline: str = Field(max_length=40)

    llm = ChatOpenAI(base_url=llamacpp.base_url, api_key=KEY, model=llamacpp.model)

    joke = llm.with_structured_output(Joke, method="json_schema").invoke("Tell me a joke about cats")

    assert isinstance(joke, Joke)


def test_tools__a_bound_tool_that_must_be_called_is_called(llamacpp: Served) -> None:
    class GetWeather(BaseModel):
        """Get the current weather in a given location"""

        location: str = Field(description="The city and state, e.g. San Francisco, CA", max_length=30)

    llm = ChatOpenAI(base_url=llamacpp.base_url, api_key=KEY, model=llamacpp.model)

    ai_msg = llm.bind_tools([GetWeather], tool_choice="GetWeather").invoke("what is the weather like in SF")

    (call,) = ai_msg.tool_calls
    assert call["name"] == "GetWeather"
    assert GetWeather(**call["args"])
    assert not ai_msg.invalid_tool_calls


def test_tools__an_agent_calls_a_tool_and_answers(fake: Served) -> None:
    asked_for: list[str] = []

    @tool
    def get_weather(city: str) -> str:
        """Get weather for a given city."""
        asked_for.append(city)
        return f"It is always sunny in {city}!"

    agent = create_agent(
        model=ChatOpenAI(base_url=fake.base_url, api_key=KEY, model=fake.model), tools=[get_weather]
    )

    result = agent.invoke({"messages": [{"role": "user", "content": "get_weather in sf, please"}]})

    assert len(asked_for) == 1
    assert result["messages"][-1].text == f"It is always sunny in {asked_for[0]}!"


def test_embeddings__a_store_finds_the_nearest_text(embedder: Served) -> None:
    # Its own tokenizer would have to be fetched, and is OpenAI's: the texts go out as they are.
    embeddings = OpenAIEmbeddings(
        base_url=embedder.base_url, api_key=KEY, model=embedder.model, check_embedding_ctx_length=False
    )
    store = InMemoryVectorStore.from_texts(
        ["The ship sails over the ocean.", "Bread is made of flour and water."], embedding=embeddings
    )

    found = store.similarity_search("a boat at sea", k=1)

    assert found[0].page_content == "The ship sails over the ocean."
