"""So many whole answers over so many kept-alive connections, and the table of two servers that took such rounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.processes import Server
from bench.raw_http import ConnectionLost, RawConnection, connect
from bench.result import markdown, shown, verdict
from bench.stats import percentile, spread

CLIENT = "asyncio protocol on kept-alive connections, requests built beforehand"
Asked = tuple[bytes, bytes]
"""A request as it goes over the wire, and what its answer has to hold."""


async def one_round(
    server: Server, asked: Sequence[Asked], connections: int
) -> tuple[dict[str, float], list[str]]:
    """Latencies, requests per second of time and of the server's CPU, and errors. 0: not measured."""
    todo = list(reversed(asked))
    latencies: list[float] = []
    errors: list[str] = []

    async def work(connection: RawConnection) -> None:
        while todo:
            sent, expected = todo.pop()
            begin = time.perf_counter()
            try:
                status, answer = await connection.ask(sent)
            except ConnectionLost as error:
                errors.append(str(error))
                connection = await connect(server.port)
                continue
            latencies.append(time.perf_counter() - begin)
            if status != 200 or expected not in answer:
                errors.append(f"status {status}: {answer[:200]!r}")
        connection.close()

    opened = await asyncio.gather(*(connect(server.port) for _ in range(connections)))
    before, begin = server.cpu_s(), time.perf_counter()
    await asyncio.gather(*(work(connection) for connection in opened))
    seconds = time.perf_counter() - begin
    used = max(server.cpu_s() - before, 0.001)
    return {
        "p50_ms": (percentile(latencies, 0.5) or 0.0) * 1000,
        "p99_ms": (percentile(latencies, 0.99) or 0.0) * 1000,
        "per_s": len(asked) / seconds,
        "per_cpu_s": len(asked) / used,
        "server_cpu_us": used / len(asked) * 1e6,
    }, errors


class Metric(NamedTuple):
    """A row: the number's name, what it is called, its digits, and a goal for ours as `verdict` takes it."""

    name: str
    words: str
    digits: int
    goal: Mapping[str, float] = {}


def side_by_side(head: Sequence[str], metrics: Sequence[Metric], ours: Any, theirs: Any) -> str:
    """A table of two servers' rounds, with goals for the first."""
    rows = []
    for metric in metrics:
        mine, other = (spread(each[metric.name] for each in rounds) for rounds in (ours, theirs))
        goal = verdict(mine.median if mine else None, **metric.goal) if metric.goal else ""
        rows.append([metric.words, shown(mine, metric.digits), shown(other, metric.digits), goal])
    return markdown(["", *head, "goal (ours)"], rows)
