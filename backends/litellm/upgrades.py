"""Failures of LiteLLM's own functions that no model and no request causes: they have changed, or cannot do what their
map says. Prices and parameters would be missing in silence, and budgets count what they miss as nothing."""

from __future__ import annotations

import logging
from typing import Final

LOOKED_AT: Final = "1.110.2"
"""The version whose insides were read. What is used of them and is no part of its API:

- `call._state_of`: names of local variables (`streamwrapper`, `response`) in the generators of its text completions,
  and of a stream's wrapper `completion_stream`, `chunks` and the three `…finish_reason`. Lost: the tokens that a
  provider reports of a stream, and whether it ended the stream itself.
- `chat`: that `completion` builds a coroutine where it is asked for one, and the variable that chooses its client.
- `transport`: `AsyncHTTPHandler._create_aiohttp_transport`, `aclient_session`, `in_memory_llm_clients_cache`. Lost: one
  pool of connections, and what is read and bounded on the way.
- `no_fetch`: the modules and functions that would fetch what a request names. Lost: that nothing is fetched.
- `sdk`: `_internal_context.is_internal_call`, and the settings that are globals.

A new version: read these places, run the tests of LiteLLM, then write it here.
"""

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
