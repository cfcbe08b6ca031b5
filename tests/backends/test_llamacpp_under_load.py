"""What a request gets does not depend on who runs beside it."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from tests.backends.shipped_model import a_model, prose
from tests.backends.test_llamacpp_determinism import alone, answer, asked

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


async def test_a_greedy_text_is_the_same_beside_others() -> None:
    wanted = asked(prose(70, seed=1), temperature=0.0, max_tokens=12)
    others = [asked(prose(40 + 9 * i, seed=10 + i), temperature=0.9, max_tokens=30) for i in range(4)]
    by_itself = await alone(wanted)

    async with a_model(n_batch=32) as model:
        running = [asyncio.create_task(answer(model, other)) for other in others]
        await asyncio.sleep(0.3)
        beside_others = await answer(model, wanted)
        await asyncio.gather(*running)

    assert beside_others == by_itself


async def test_a_prefix_first_computed_under_load_is_reused_by_a_greedy_request() -> None:
    shared = prose(64, seed=3)
    async with a_model(n_batch=32) as model:
        running = asyncio.create_task(answer(model, asked(prose(20, seed=4), max_tokens=60)))
        await asyncio.sleep(0.3)
        await answer(model, asked(shared, temperature=0.0))
        events = [event async for batch in model.generate(asked(shared, temperature=0.0)) for event in batch]
        await running

    assert events[-1].usage.cached_tokens == 62  # type: ignore[union-attr]  # the terminal event
