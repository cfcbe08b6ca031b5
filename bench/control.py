"""`control`: how long `GET /v1/models` takes while every slot generates."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

from bench.client import chat, open_session
from bench.compare import first_answer
from bench.load import Body, streams_running
from bench.measurement import Findings, Measurement, Setup
from bench.ours import llamacpp_settings, our_service
from bench.raw_http import ConnectionLost, connect, request
from bench.result import markdown, number, verdict
from bench.stats import percentile
from bench.workload import Prompts, lengths, warmup_lengths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--pause-ms", type=float, default=50.0, help="between two samples")
    parser.add_argument("--threads", type=int, default=2)


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    prompts, draw = Prompts(setup.seed), lengths(setup.seed)
    size = {"slots": options.streams, "ctx_per_slot": 1024, "threads": options.threads}

    def bodies() -> Iterator[Body]:
        while True:
            yield chat(prompts.draw(), next(draw))

    async with (
        open_session() as session,
        our_service(settings=llamacpp_settings(**size), out=setup.out, priority=setup.priority) as server,
    ):
        setup.say(f"starting {server.name}")
        await first_answer(session, server)
        idle, errors = await _sample(server.port, max(options.samples // 4, 20), options.pause_ms / 1000)
        setup.say(f"idle: p99 {_ms(idle, 0.99)} ms; now {options.streams} streams")
        warmup = [chat(prompts.draw(), length) for length in warmup_lengths(options.streams)]
        async with streams_running(session, server.url, warmup=warmup, bodies=bodies()) as window:
            busy, failed = await _sample(server.port, options.samples, options.pause_ms / 1000)
        pieces = sum(window.opened <= at < window.closed for each in window.answers for at, _ in each.pieces)
        rate = pieces / (window.closed - window.opened)
        setup.say(f"busy: p99 {_ms(busy, 0.99)} ms, {rate:.1f} pieces of text/s meanwhile")
    return Findings(
        parameters={**size, "streams": options.streams, "pause": f"{options.pause_ms:g} ms"},
        n=f"{len(busy)} samples while {options.streams} streams ran, {len(idle)} on the idle service",
        data={
            "streams": options.streams,
            "pieces_per_s": rate,
            **{
                f"{state}_{name}": percentile(values, share)
                for state, values in (("idle", idle), ("busy", busy))
                for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
        },
        errors=[*errors, *failed, *window.errors],
        client="asyncio protocol on one kept-alive connection for the samples, aiohttp for the streams",
    )


async def _sample(port: int, samples: int, pause_s: float) -> tuple[list[float], list[str]]:
    """Seconds that each request took, and what went wrong."""
    asked = request("GET", "/v1/models")
    latencies: list[float] = []
    errors: list[str] = []
    connection = await connect(port)
    for _ in range(samples):
        begin = time.perf_counter()
        try:
            status, body = await connection.ask(asked)
        except ConnectionLost as error:
            errors.append(str(error))
            connection = await connect(port)
            continue
        latencies.append(time.perf_counter() - begin)
        if status != 200:
            errors.append(f"status {status}: {body[:200]!r}")
        await asyncio.sleep(pause_s)
    connection.close()
    return latencies, errors


def _ms(values: list[float], share: float) -> str:
    seconds = percentile(values, share)
    return number(None if seconds is None else seconds * 1000)


def table(data: Mapping[str, Any]) -> str:
    def cells(state: str) -> list[str]:
        return [
            number(None if data[f"{state}_{name}"] is None else data[f"{state}_{name}"] * 1000, 2)
            for name in ("p50", "p99", "max")
        ]

    p99 = data["busy_p99"]
    goal = verdict(None if p99 is None else p99 * 1000, at_most=100)
    rows = [
        ["idle", *cells("idle"), ""],
        [
            f"{data['streams']} streams ({number(data['pieces_per_s'])} pieces of text/s)",
            *cells("busy"),
            goal,
        ],
    ]
    return markdown(["`GET /v1/models`", "p50, ms", "p99, ms", "longest, ms", "goal (p99)"], rows)


CONTROL = Measurement(
    name="control",
    title="control routes while every slot generates",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=["--streams", "4", "--samples", "40"],
)
