"""Every behaviour of the contract, tried on the service that the tests start."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from openai_compat.conformance.cases import all_checks
from openai_compat.conformance.check import Check, NotApplicable, NotOffered, Variant


def _cases() -> list[Any]:
    return [
        pytest.param(
            check,
            variant,
            id="-".join(filter(None, (check.function.__name__, variant.label))),
            marks=[
                pytest.mark.timeout(check.time_limit_s),
                *([pytest.mark.ours] * (check.level == "extension")),
            ],
        )
        for check in all_checks()
        for variant in check.variants
    ]


@pytest.mark.parametrize(("check", "variant"), _cases())
def test_the_behaviour_is_as_the_contract_says(
    request: pytest.FixtureRequest, check: Check, variant: Variant
) -> None:
    needed = {name: request.getfixturevalue(name) for name in check.needs}
    try:
        outcome = check.function(**needed, **variant.inputs)
        if inspect.isawaitable(outcome):
            asyncio.run(_awaited(outcome))
    except NotApplicable as reason:
        pytest.skip(str(reason))
    except NotOffered as refusal:
        # With the shipped model on llama.cpp everything is; another server may leave out what OpenAI's API lets it.
        if request.config.getoption("--base-url") is None:
            raise
        pytest.skip(f"not offered: {refusal}")


async def _awaited(outcome: Any) -> None:
    await outcome
