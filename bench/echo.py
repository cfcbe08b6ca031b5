"""`echo`: what gateway and runner cost around an engine that costs nothing.

The fake backend echoes in a runner process of its own; the gateway has one worker, checks a token, counts a rate limit
that nobody reaches and writes its access log. Beside it a plain uvicorn and Starlette echo, a round each in turn: it is
the least that a Python server needs on this machine. Every answer is checked for its own request's number.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import count, islice
from typing import Any

import msgspec

from bench.client import open_session
from bench.measurement import Findings, Measurement, Setup
from bench.ours import ROOT, our_service
from bench.processes import Server, ServerFailed, free_port
from bench.raw_http import connect, request
from bench.rounds import CLIENT, Asked, Metric, one_round, side_by_side

TOKEN = "bench"  # noqa: S105  made up, and the service lives as long as the measurement
OURS, PLAIN = "ours", "plain"
SETTINGS = {
    "LLM_DEFAULT_BACKEND": "fake",
    "LLM_API_TOKENS": TOKEN,
    "LLM_RATE_LIMIT_RPS": "1000000",
    "LLM_RATE_LIMIT_BURST": "1000000",
    "LLM_MAX_CONCURRENT_COMPLETIONS": "64",
    "LLM_ARGS__GATEWAY__WORKERS": "1",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=20_000, help="at --connections, over all rounds")
    parser.add_argument(
        "--single-requests", type=int, default=4_000, help="at one connection, over all rounds"
    )
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4)


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    numbers = count()
    rounds: dict[str, list[dict[str, float]]] = {OURS: [], PLAIN: []}
    errors: list[str] = []
    async with AsyncExitStack() as stack:
        servers = {
            OURS: our_service(settings=SETTINGS, out=setup.out, log="service-fake", priority=setup.priority),
            PLAIN: _plain(setup),
        }
        for server in servers.values():
            setup.say(f"starting {server.name}")
            await stack.enter_async_context(server)
        await _both_answer(servers)
        for server in servers.values():
            await one_round(server, _asked(numbers, 500), options.connections)  # warm-up
        for turn in range(options.rounds):
            for side in (OURS, PLAIN) if turn % 2 == 0 else (PLAIN, OURS):
                single = _asked(numbers, options.single_requests // options.rounds)
                one, failed = await one_round(servers[side], single, 1)
                rest = _asked(numbers, options.requests // options.rounds)
                many, failed_too = await one_round(servers[side], rest, options.connections)
                errors += [f"{side}: {error}" for error in (*failed, *failed_too)]
                rounds[side].append(
                    {f"one_{name}": value for name, value in one.items()}
                    | {f"many_{name}": value for name, value in many.items()}
                )
                setup.say(
                    f"round {turn + 1}, {side:5}: p50 {one['p50_ms']:.3f} ms at one connection, "
                    f"{many['per_s']:.0f} requests/s at {options.connections}, errors {len(failed) + len(failed_too)}"
                )
    return Findings(
        parameters={
            "connections": options.connections,
            "gateway workers": 1,
            "token, rate limit and access log": "on",
            "answers checked": "status and echoed number",
        },
        n=f"{options.single_requests} requests at one connection and {options.requests} at {options.connections}, "
        f"in {options.rounds} rounds, for each server",
        data={"connections": options.connections, **rounds},
        errors=errors,
        client=CLIENT,
    )


def _plain(setup: Setup) -> Server:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "bench.echo_server:app",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--no-access-log", "--log-level", "warning"]
    return Server(
        "plain uvicorn",
        command,
        port=port,
        environment=os.environ,
        folder=ROOT,
        log=setup.out / "logs" / "plain.log",
        priority=setup.priority,
    )


async def _both_answer(servers: Mapping[str, Server]) -> None:
    async with open_session() as session:
        await servers[OURS].answers(session, "/ready")
    for server in servers.values():
        deadline = time.perf_counter() + 60
        while time.perf_counter() < deadline:
            server.check_alive()
            try:
                connection = await connect(server.port)
                status, _ = await connection.ask(_echo_request(0))
                connection.close()
            except OSError:
                status = 0
            if status == 200:
                break
            await asyncio.sleep(0.1)
        else:
            raise ServerFailed(f"{server.name} does not echo\n{server.last_words()}")


def _echo_request(number: int) -> bytes:
    body = {"model": "fake-echo", "messages": [{"role": "user", "content": _text(number)}]}
    return request("POST", "/v1/chat/completions", msgspec.json.encode(body), TOKEN)


def _text(number: int) -> str:
    return f"echo number {number:08d}"


def _asked(numbers: Iterator[int], requests: int) -> list[Asked]:
    return [(_echo_request(number), _text(number).encode()) for number in islice(numbers, requests)]


def table(data: Mapping[str, Any]) -> str:
    connections = data["connections"]
    metrics = [
        Metric("one_p50_ms", "p50 at one connection, ms", 3, {"at_most": 1.2}),
        Metric("one_p99_ms", "p99 at one connection, ms", 3),
        Metric("many_per_s", f"requests/s at {connections} connections", 0, {"at_least": 1200}),
        Metric("many_p50_ms", f"p50 at {connections} connections, ms", 2),
        Metric("many_p99_ms", f"p99 at {connections} connections, ms", 2),
        Metric("many_server_cpu_us", "server CPU per request, µs", 0),
    ]
    return side_by_side(["ours", "plain uvicorn and Starlette"], metrics, data[OURS], data[PLAIN])


ECHO = Measurement(
    name="echo",
    title="what gateway and runner cost around an engine that costs nothing",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=["--requests", "800", "--single-requests", "200", "--rounds", "2"],
)
