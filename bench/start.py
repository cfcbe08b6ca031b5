"""`start`: from `bentoml serve .` to the first streamed token, and the memory of the processes at rest.

The start before the counted ones writes Python's byte code and brings the files into the page cache. It is reported
beside them, but what it took depends on what was started before.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from bench.client import Answer, ask, chat, open_session
from bench.measurement import Findings, Measurement, Setup
from bench.ours import our_service
from bench.processes import START_TIMEOUT_S, Server, ServerFailed
from bench.result import markdown, number, shown, verdict
from bench.stats import spread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    rounds: list[dict[str, Any]] = []
    earlier: float | None = None
    # As shipped: nothing is set but what has to be.
    settings = {"LLM_DEFAULT_BACKEND": "llamacpp"}
    async with open_session() as session:
        for turn in range(options.rounds + 1):
            async with our_service(settings=settings, out=setup.out, priority=setup.priority) as server:
                first = await _first_token(session, server)
                await server.settle()
                memory = _memory(server)
            if turn == 0:
                earlier = first
            else:
                rounds.append({"first_token_s": first, "rss_mib": memory})
            shown_memory = ", ".join(f"{name} {mib:.0f} MiB" for name, mib in memory.items())
            setup.say(
                f"{f'round {turn}' if turn else 'not counted'}: first token after {first:.2f} s; {shown_memory}"
            )
    return Findings(
        parameters={"settings": "as shipped"},
        n=f"{options.rounds} starts, after one that is not counted",
        data={"rounds": rounds, "not_counted_s": earlier},
    )


async def _first_token(session: aiohttp.ClientSession, server: Server) -> float:
    """Ask until there is an answer, and give the seconds from the start to its first text.

    Raises: ServerFailed when the service ends, or does not answer in START_TIMEOUT_S.
    """
    error: str | None = None
    while time.perf_counter() - server.started_at < START_TIMEOUT_S:
        server.check_alive()
        answer = Answer()
        await ask(session, server.url, chat("Hello", 8), answer)
        if answer.ended is not None and answer.pieces:
            return answer.pieces[0][0] - server.started_at
        error = answer.error
        await asyncio.sleep(0.02)
    raise ServerFailed(f"no token in {START_TIMEOUT_S:.0f} s: {error}\n{server.last_words()}")


def _memory(server: Server) -> dict[str, float]:
    """Resident MiB by process, named by what each says it is. Shared pages count in every process that has them."""
    found: dict[str, float] = {}
    for process in server.tree():
        name, rss = role(process.cmdline()), process.memory_info().rss / 2**20
        found[name] = found.get(name, 0.0) + rss
    return found


def role(command: list[str]) -> str:
    """`--service-name X` of a worker; else the supervisor, or a helper of Python's."""
    if "--service-name" in command[:-1]:
        return command[command.index("--service-name") + 1]
    return "helpers" if any("multiprocessing" in part for part in command) else "supervisor"


def table(data: Mapping[str, Any]) -> str:
    rounds = data["rounds"]
    first = spread(each["first_token_s"] for each in rounds)
    rows = [
        [
            "`bentoml serve .` to the first streamed token, s",
            shown(first, 2),
            verdict(first.median if first else None, at_most=6),
        ],
        ["the start before these, not counted", number(data["not_counted_s"], 2), ""],
    ]
    for name in sorted({name for each in rounds for name in each["rss_mib"]}):
        rss = spread(each["rss_mib"].get(name) for each in rounds)
        rows.append([f"resident memory at rest, {name}, MiB", shown(rss, 0), ""])
    return markdown(["", "median (lowest–highest)", "goal"], rows)


START = Measurement(
    name="start",
    title="start and memory",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=["--rounds", "1"],
)
