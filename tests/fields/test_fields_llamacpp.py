"""What llama.cpp does with each field is what docs/fields.md says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from models.catalogue import Catalogue
from tests.backends.shipped_model import MODEL, a_backend
from tests.fields.survey import VALUES, Surveyed, app_before, documented, overheard

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]


@pytest.fixture
async def surveyed() -> AsyncIterator[Surveyed]:
    async with a_backend() as backend:
        app = app_before(backend, Catalogue.load(None).resolve(MODEL))
        yield Surveyed(app, dict.fromkeys(VALUES, MODEL), overheard(backend))


@pytest.mark.parametrize("kind", VALUES)
async def test_each_field_is_served_refused_or_named_as_the_table_says(surveyed: Surveyed, kind: str) -> None:
    found = {row: await surveyed.does(kind, row) for row in VALUES[kind]}

    assert found == {row: documented()[kind, row]["llamacpp"] for row in VALUES[kind]}
