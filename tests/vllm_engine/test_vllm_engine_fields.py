"""What the real vLLM does with each field is what docs/fields.md says."""

from __future__ import annotations

import pytest

from backends.base import Backend
from tests.fields.survey import VALUES, Surveyed, app_before, documented, overheard
from tests.vllm_engine.shared_engine import MODEL, Served


@pytest.fixture
async def surveyed(backend: Backend, shared: Served) -> Surveyed:
    app = app_before(backend, shared.catalogue.resolve(MODEL))
    return Surveyed(app, dict.fromkeys(VALUES, MODEL), overheard(backend))


@pytest.mark.parametrize("kind", VALUES)
async def test_each_field_is_served_refused_or_named_as_the_table_says(surveyed: Surveyed, kind: str) -> None:
    found = {row: await surveyed.does(kind, row) for row in VALUES[kind]}

    assert found == {row: documented()[kind, row]["vllm"] for row in VALUES[kind]}
