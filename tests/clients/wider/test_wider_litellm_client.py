"""What users of LiteLLM's SDK do besides its quick start."""

from __future__ import annotations

import litellm
import pytest

from tests.clients.conftest import Served

ASK = [{"role": "user", "content": "What is the weather like in Rome?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
        },
    },
}


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "custom_openai"])
def test_each_of_its_names_for_such_servers_works(llamacpp: Served, provider: str) -> None:
    response = litellm.completion(
        model=f"{provider}/{llamacpp.model}",
        api_base=llamacpp.base_url,
        api_key="not-needed",
        messages=ASK,
        max_tokens=8,
    )

    assert response.choices[0].message.content


async def test_an_async_stream_of_a_call_adds_up(llamacpp: Served) -> None:
    stream = await litellm.acompletion(
        model=f"openai/{llamacpp.model}",
        api_base=llamacpp.base_url,
        api_key="not-needed",
        messages=ASK,
        tools=[TOOL],
        tool_choice="required",
        stream=True,
    )
    chunks = [chunk async for chunk in stream]

    whole = litellm.stream_chunk_builder(chunks, messages=ASK)
    assert [call.function.name for call in whole.choices[0].message.tool_calls] == ["get_weather"]
    assert whole.choices[0].finish_reason == "tool_calls"


def test_a_text_completion_works(llamacpp: Served) -> None:
    response = litellm.text_completion(
        model=f"text-completion-openai/{llamacpp.model}",
        api_base=llamacpp.base_url,
        api_key="not-needed",
        prompt="The sea is",
        max_tokens=8,
    )

    assert response.choices[0].text


def test_a_prompt_that_is_too_long_is_the_exception_by_which_agents_compact(llamacpp: Served) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(
            model=f"openai/{llamacpp.model}",
            api_base=llamacpp.base_url,
            api_key="not-needed",
            messages=[{"role": "user", "content": "The sea is deep. " * 4000}],
        )


def test_an_unknown_model_is_not_found(llamacpp: Served) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(
            model="openai/nobody-has-this", api_base=llamacpp.base_url, api_key="not-needed", messages=ASK
        )
