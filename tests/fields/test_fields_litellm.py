"""What LiteLLM does with each field, before a provider that speaks OpenAI's format, is what docs/fields.md says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.backends.litellm_backends import a_backend, a_card, environment, needs_litellm
from tests.backends.provider_upstreams.openai_format import Model
from tests.backends.provider_upstreams.server import Call, Upstream, Wire, upstream
from tests.fields.survey import VALUES, Surveyed, app_before, documented

pytestmark = needs_litellm
MODELS = {"chat": "chats", "completion": "completes"}


@pytest.fixture
async def surveyed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Surveyed]:
    bodies: list[object] = []
    provider = Model()

    async def answer(asked: Call, wire: Wire) -> None:
        bodies.append(asked.body)
        await provider(asked, wire)

    cards = [
        a_card("chats", "gpt-4o", capabilities=("chat", "tools")),
        a_card("completes", "gpt-3.5-turbo-instruct", capabilities=("completion",)),
    ]
    server: Upstream
    async with upstream(answer) as server:
        environment(monkeypatch, server.url)
        async with a_backend(*cards) as backend:
            yield Surveyed(app_before(backend, *cards), MODELS, bodies)


@pytest.mark.parametrize("kind", VALUES)
async def test_each_field_is_served_refused_or_named_as_the_table_says(surveyed: Surveyed, kind: str) -> None:
    found = {row: await surveyed.does(kind, row) for row in VALUES[kind]}

    assert found == {row: documented()[kind, row]["litellm"] for row in VALUES[kind]}
