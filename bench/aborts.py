"""`aborts`: 50 clients leave at once, in every phase a request can be in; when is everything free again?

Of 50: 6 stream, 5 wait for a whole answer, 5 have a long prompt that is still being read, 34 wait for a slot (half of
them streaming). They leave together by closing their connections. A `gauge` round then polls `/metrics` until nothing
runs or waits any more, and the CPU until the engine rests. A `capacity` round instead sends one short request per slot
at the same moment and waits until every one has its first token; the same requests on the idle service say how much of
that the requests themselves take.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from bench.client import Answer, ask, chat, open_session
from bench.compare import first_answer
from bench.measurement import Findings, Measurement, Setup
from bench.ours import llamacpp_settings, our_service
from bench.processes import QUIET, Server, ServerFailed
from bench.result import markdown, number, shown, verdict
from bench.stats import spread
from bench.workload import Prompts

SLOTS = 16
STREAMING, WHOLE, PREFILLING, QUEUED = 6, 5, 5, 34
LONG_PROMPT_WORDS = 600
RUNNING, WAITING, CANCELLED = (
    "llm:num_requests_running",
    "llm:num_requests_waiting",
    "llm:requests_cancelled_total",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    parser.add_argument("--threads", type=int, default=2)


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    size = {"slots": SLOTS, "ctx_per_slot": 1024, "threads": options.threads}
    limits = {
        "LLM_MAX_CONCURRENT_COMPLETIONS": str(SLOTS),
        "LLM_QUEUE_SIZE": "64",
        "LLM_QUEUE_TIMEOUT_S": "120",
    }
    prompts = Prompts(setup.seed)
    gauge: list[dict[str, Any]] = []
    capacity: list[dict[str, Any]] = []
    errors: list[str] = []
    settings = llamacpp_settings(**size) | limits
    async with (
        open_session() as session,
        our_service(settings=settings, out=setup.out, priority=setup.priority) as server,
    ):
        setup.say(f"starting {server.name}")
        await first_answer(session, server)
        await _probe_all(session, server)  # its prompt is in every slot's cache from now on
        for turn in range(options.rounds):
            await server.settle()
            idle = await _probe_all(session, server)
            await server.settle()
            left, before = await _crowd(session, server, prompts)
            after = await _probe_all(session, server)
            phases = await _phases(session, server, before)
            capacity.append({"idle": idle, "after": after, "phases": phases, **left})
            await server.settle()
            left, before = await _crowd(session, server, prompts)
            freed, rested = await _until_free(session, server)
            phases = await _phases(session, server, before)
            gauge.append({"freed_s": freed, "rested_s": rested, "phases": phases, **left})
            errors += [*idle["errors"], *after["errors"]]
            setup.say(
                f"round {turn + 1}: gauges at 0 after {freed:.3f} s, engine at rest after {rested:.1f} s; "
                f"{SLOTS} first tokens after {after['all_first_tokens_s']:.3f} s, "
                f"idle {idle['all_first_tokens_s']:.3f} s; cancelled {phases}"
            )
    ended = sum(each["ended_before"] for each in (*gauge, *capacity))
    total = STREAMING + WHOLE + PREFILLING + QUEUED
    return Findings(
        parameters={**size, "completions at once": SLOTS, "queue": 64},
        n=f"{options.rounds} rounds of each kind, {total} aborted requests a round: {STREAMING} streaming, "
        f"{WHOLE} not streaming, {PREFILLING} prefilling, {QUEUED} queued",
        data={"gauge": gauge, "capacity": capacity, "slots": SLOTS},
        errors=errors,
        warnings=[f"{ended} requests had ended before they could be aborted"] if ended else [],
    )


async def _crowd(
    session: aiohttp.ClientSession, server: Server, prompts: Prompts
) -> tuple[dict[str, int], dict[str, float]]:
    """Bring 50 requests into their phases and close all their connections. Returns when that is done, with how many
    of the prefilling had already said something, and the counts of cancellations before.

    Raises: ServerFailed when a request fails or a phase is not reached.
    """
    before = _by_phase(await _metrics(session, server))
    tasks: list[asyncio.Task[None]] = []

    def send(number: int, max_tokens: int, *, stream: bool, words: int | None = None) -> list[Answer]:
        answers = [Answer() for _ in range(number)]
        for answer in answers:
            body = chat(prompts.draw(words), max_tokens, stream=stream)
            tasks.append(asyncio.create_task(ask(session, server.url, body, answer)))
        return answers

    async def until(reached: Callable[[str], bool], what: str, answers: list[Answer]) -> None:
        deadline = time.perf_counter() + 60
        while not reached(await _metrics(session, server)):
            failed = [answer.error for answer in answers if answer.error is not None]
            if failed or time.perf_counter() > deadline:
                raise ServerFailed(f"{what} not reached: {failed or 'time is up'}")
            await asyncio.sleep(0.01)

    try:
        streaming = send(STREAMING, 800, stream=True)
        await until(lambda _: all(answer.pieces for answer in streaming), "streaming", streaming)
        whole = send(WHOLE, 800, stream=False)
        await until(lambda text: gauge_of(text, RUNNING) == STREAMING + WHOLE, "not streaming", whole)
        await asyncio.sleep(1.0)  # their prompts are read, they decode
        prefilling = send(PREFILLING, 64, stream=True, words=LONG_PROMPT_WORDS)
        await until(lambda text: gauge_of(text, RUNNING) == SLOTS, "prefilling", prefilling)
        queued = send(QUEUED // 2, 64, stream=True) + send(QUEUED - QUEUED // 2, 64, stream=False)
        await until(lambda text: gauge_of(text, WAITING) == QUEUED, "queued", queued)
        ended = sum(answer.ended is not None for answer in [*streaming, *whole, *prefilling, *queued])
        told = sum(bool(answer.pieces) for answer in prefilling)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
    return {"ended_before": ended, "prefilling_with_text": told}, before


async def _probe_all(session: aiohttp.ClientSession, server: Server) -> dict[str, Any]:
    """One short request per slot, at once: seconds until every one was admitted and has its first token. Their
    prompt is the same each time, so that hardly anything of it has to be read."""
    answers = [Answer() for _ in range(SLOTS)]
    begin = time.perf_counter()
    await asyncio.gather(*(ask(session, server.url, chat("Say something.", 8), answer) for answer in answers))
    firsts = [answer.pieces[0][0] - begin for answer in answers if answer.pieces]
    return {
        "all_first_tokens_s": max(firsts, default=float("inf")),
        "longest_queue_ms": max((answer.queue_ms or 0.0 for answer in answers), default=0.0),
        "errors": [answer.error for answer in answers if answer.error is not None],
    }


async def _until_free(session: aiohttp.ClientSession, server: Server) -> tuple[float, float]:
    """Seconds until both gauges are 0, and until the server uses next to no CPU for 0.2 s (polling included)."""
    begin = time.perf_counter()
    while True:
        text = await _metrics(session, server)
        if gauge_of(text, RUNNING) == 0 and gauge_of(text, WAITING) == 0:
            break
        if time.perf_counter() - begin > 60:
            raise ServerFailed("the gauges do not go back to 0")
    freed = time.perf_counter() - begin
    while True:
        used, at = server.cpu_s(), time.perf_counter()
        await asyncio.sleep(0.2)
        if (server.cpu_s() - used) / (time.perf_counter() - at) < QUIET:
            return freed, at - begin
        if time.perf_counter() - begin > 60:
            raise ServerFailed("the engine does not come to rest")


async def _metrics(session: aiohttp.ClientSession, server: Server) -> str:
    async with session.get(f"{server.url}/metrics") as response:
        return await response.text()


async def _phases(
    session: aiohttp.ClientSession, server: Server, before: Mapping[str, float]
) -> dict[str, int]:
    after = _by_phase(await _metrics(session, server))
    return {phase: round(value - before.get(phase, 0)) for phase, value in after.items()}


def _by_phase(text: str) -> dict[str, float]:
    found = re.findall(rf'^{CANCELLED}\{{[^}}]*phase="(\w+)"[^}}]*\}} (\S+)$', text, re.M)
    return {phase: float(value) for phase, value in found}


def gauge_of(text: str, name: str) -> float:
    """The sum of a metric's series in Prometheus text; 0 when there is none."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.M))


def table(data: Mapping[str, Any]) -> str:
    after = [each["after"]["all_first_tokens_s"] for each in data["capacity"]]
    idle = [each["idle"]["all_first_tokens_s"] for each in data["capacity"]]
    freed = spread(each["freed_s"] for each in data["gauge"])
    rested = spread(each["rested_s"] for each in data["gauge"])
    full = spread(after)
    phases = data["gauge"][-1]["phases"] if data["gauge"] else {}
    told = sum(each["prefilling_with_text"] for kind in ("gauge", "capacity") for each in data[kind])
    slots = data["slots"]
    return markdown(
        ["After 50 clients left at once", "s", "goal"],
        [
            [
                f"`{RUNNING}` and `{WAITING}` back to 0",
                shown(freed, 3),
                verdict(freed.highest if freed else None, at_most=1),
            ],
            [
                "the engine uses no CPU any more",
                shown(rested, 2),
                verdict(rested.highest if rested else None, at_most=1),
            ],
            [
                f"{slots} new requests, sent at that moment, all have their first token",
                shown(full, 3),
                verdict(full.highest if full else None, at_most=1),
            ],
            ["the same on the idle service", shown(spread(idle), 3), ""],
            ["longest `x-llm-queue-ms` of these, after the others left", _seconds(data, "after"), ""],
            ["longest `x-llm-queue-ms` of these, idle", _seconds(data, "idle"), ""],
            [
                "cancellations counted by phase, last round",
                ", ".join(f"{k} {v}" for k, v in phases.items()),
                "",
            ],
            ["prefilling requests that already had text, all rounds", str(told), ""],
        ],
    )


def _seconds(data: Mapping[str, Any], when: str) -> str:
    longest = max((each[when]["longest_queue_ms"] for each in data["capacity"]), default=None)
    return number(None if longest is None else longest / 1000, 3)


ABORTS = Measurement(
    name="aborts",
    title="50 clients leave at once",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=["--rounds", "1"],
)
