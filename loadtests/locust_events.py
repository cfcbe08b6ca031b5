"""A record as locust events, so that locust's own tables, charts and failures show what counts for tokens.

Locust thinks in requests with a response time in ms. Here each measure is a type of its own: `TTFT`, `ITL` (one event
per gap), `TPOT`, `e2e`, and `tokens/s`, whose "ms" are tokens per second; the name is the kind of user. A failure is an
`e2e` event with its kind as the exception. `refused` and `left` are what a workload expects to happen.
"""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.record import Record

Event = tuple[str, float, str | None]
"""Type, value, and the failure if it is one."""


def events_of(record: Record, *, refusals_expected: bool) -> Iterator[Event]:
    """Everything that one request has to tell."""
    if record.ttft is not None:
        yield "TTFT", record.ttft * 1000, None
    for gap in record.gaps:
        yield "ITL", gap * 1000, None
    if record.tpot is not None:
        yield "TPOT", record.tpot * 1000, None
    e2e_ms = (record.e2e or 0.0) * 1000
    if record.outcome == "failed":
        yield "e2e", e2e_ms, record.error
    elif record.outcome == "refused":
        is_expected = refusals_expected or record.user == "over_limit"
        yield ("refused", e2e_ms, None) if is_expected else ("e2e", e2e_ms, record.error)
    elif record.outcome == "abandoned":
        yield "left", ((record.ttft or 0.0) + sum(record.gaps)) * 1000, None
    else:
        yield "e2e", e2e_ms, None
        if record.tokens_per_s is not None:
            yield "tokens/s", record.tokens_per_s, None
