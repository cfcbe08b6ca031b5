"""Failures of LiteLLM's own functions that no model and no request causes: they have changed, or cannot do what their
map says. Prices and parameters would be missing in silence, and budgets count what they miss as nothing."""

from __future__ import annotations

import logging
from typing import Final

_log: Final = logging.getLogger(__name__)
_told: Final[set[tuple[str, type[Exception]]]] = set()

CHANGED: Final = (AttributeError, ImportError, TypeError)
"""What calling a function that has another form raises. An unknown model is a ValueError or a bare Exception."""


def tell(lost: str, error: Exception) -> None:
    """Say once for each kind of error what is lost by it. Its text stays out: it may hold what a caller sent."""
    kind = (lost, type(error))
    if kind not in _told:
        _told.add(kind)
        _log.warning("LiteLLM fails with %s: %s", type(error).__name__, lost)
