"""Whether an engine that has requests gets anything done: a core can hang without dying, and its server then goes on
saying that it is healthy.

A sign of progress is anything that a generation has received, or a change of what only the core reports: tokens, and
how full its KV cache is, which rises with each piece of a long prompt. The metrics of requests that came or left are
the server's own and say nothing of the core. A server that does not answer shows no progress either; one that answers
without these metrics (`--disable-log-stats`) cannot be judged, and is not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

LOOKS: Final = 10
"""Within the time that an engine gets."""
_FAMILIES: Final = (
    b"vllm:prompt_tokens_total{",
    b"vllm:generation_tokens_total{",
    b"vllm:iteration_tokens_total_count{",
    b"vllm:kv_cache_usage_perc{",
    b"vllm:num_requests_running{",
)


class Patient(Protocol):
    """What is looked at: an `Upstream`."""

    @property
    def running(self) -> int: ...
    @property
    def received(self) -> int: ...
    async def metrics(self) -> bytes: ...


async def until_stuck(patient: Patient, limit_s: float, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Returns once requests have been under way for `limit_s` without progress. Times without requests do not count,
    but do not begin anew either: whoever asks an engine that hangs gives up at some time, and the next one asks."""
    stuck = 0
    last: object = None
    while stuck < LOOKS:
        await sleep(limit_s / LOOKS)
        if not patient.running:
            continue
        signs = signs_in(await patient.metrics())
        now = (patient.received, signs)
        stuck = stuck + 1 if now == last and signs is not None else 0
        last = now


def signs_in(metrics: bytes) -> tuple[bytes, ...] | None:
    """The lines that change only with the core's work. Empty where the server did not answer; None where it has none of
    them."""
    found = tuple(line for line in metrics.splitlines() if line.startswith(_FAMILIES))
    return found if found or not metrics else None
