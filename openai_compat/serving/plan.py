"""A request made ready for one target: what its backend is asked, and what its answer looks like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backends.types import GenerationRequest
from openai_compat.receipts.document import Asked
from openai_compat.serving.answers import Answer
from openai_compat.serving.gateway import Target


@dataclass(frozen=True, slots=True)
class Plan:
    """`ignored`: fields that this target does nothing with. `receipt`: where one is wanted, its first part."""

    target: Target
    request: GenerationRequest
    answer: Answer
    ignored: tuple[str, ...]
    receipt: Asked | None = None


Planner = Callable[[Target], Plan]
"""Raises: UnsupportedParameter for what the target cannot honour."""
