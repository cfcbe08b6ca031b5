"""`llama-server` and `llama_cpp.server`: our service against llama.cpp's own server and against that of the package
llama-cpp-python, at several numbers of streams.

Both servers are up for the whole run and take turns, a window each; who begins changes from turn to turn. The one whose
turn it is not must be idle, which is measured. Both get the same output lengths and prompts of the same kind, never the
same prompt twice.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import aiohttp

from bench import llama_cpp_server
from bench.client import Answer, ask, chat, open_session
from bench.llama_server import llama_server_peer
from bench.load import Body, Sample, closed_loop, look_at
from bench.measurement import Findings, Measurement, Ratio, Setup, many, whole_numbers
from bench.ours import llamacpp_settings, our_service
from bench.peer import Peer, as_it_is
from bench.processes import Server, ServerFailed, machine_cpu_s
from bench.result import markdown, number, shown, verdict
from bench.stats import ratio, spread
from bench.workload import Prompts, lengths, warmup_lengths

OURS, THEIRS = "ours", "theirs"
IDLE_SHARE = 0.02
"""Share of one core that the idle server may use before the result warns of it."""
OTHERS_CORES = 0.1
"""Cores that anything but client and servers may use before the result warns of it."""
WARM_S = 7.0
"""Beside a window: warm-up, settling, counting."""
COUNTED = ", counted from the text"
METRICS = {
    "tokens_per_s": (f"output tokens/s{COUNTED}", 1, {"at_least": 0.97}),
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


def add_llama_server_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument(
        "--llama-server-flags", default="", metavar="'…'", help="further flags for llama-server"
    )


def add_llama_cpp_server_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    llama_cpp_server.add_arguments(parser)


Maker = Callable[[argparse.Namespace, Setup], Peer]


async def measure(make: Maker, options: argparse.Namespace, setup: Setup) -> Findings:
    peer = make(options, setup)
    size = {"slots": options.slots, "ctx_per_slot": options.ctx_per_slot, "threads": options.threads}
    prompts = Prompts(setup.seed)
    samples: dict[int, dict[str, list[tuple[Sample, dict[str, float]]]]] = {}
    errors: list[str] = []
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        servers = {
            OURS: our_service(settings=llamacpp_settings(**size), out=setup.out, priority=setup.priority),
            THEIRS: peer.server,
        }
        for side, server in servers.items():
            setup.say(f"starting {server.name}")
            await stack.enter_async_context(server)
            await first_answer(session, server, "/health" if side == OURS else peer.ready)
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
                        worded=as_it_is if side == OURS else peer.body,
                    )
                    samples[streams][side].append((sample, used))
                    errors += [f"{servers[side].name}: {error}" for error in failed]
                    shown = sample.summary()
                    setup.say(
                        f"{streams:3} streams, alternation {turn + 1}, {servers[side].name:16}: "
                        f"{number(shown['pieces_per_s'])} pieces/s, TTFT p50 {number(shown['ttft_p50_ms'], 0)} ms, "
                        f"ITL p50/p99 {number(shown['itl_p50_ms'])}/{number(shown['itl_p99_ms'])} ms, "
                        f"errors {len(failed)}"
                    )
        setup.say("counting tokens")
        counted = await _count_all(session, peer, samples)
    each = [used for sides in samples.values() for side in sides.values() for _, used in side]
    idle, others = (max(used[name] for used in each) for name in ("idle_share", "others_cores"))
    warnings = list(peer.warnings)
    if idle > IDLE_SHARE:
        warnings.append(f"the idle server used up to {idle:.1%} of a core")
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
            peer.name: peer.settings,
        },
        n=f"{options.alternations} windows of {options.seconds:g} s per server and point, "
        f"{ended} requests ended in them",
        data={"points": _points(counted), "idle_share_max": idle},
        errors=errors,
        warnings=warnings,
        versions=dict(peer.versions),
    )


async def first_answer(session: aiohttp.ClientSession, server: Server, ready: str = "/health") -> None:
    """Wait until the model is loaded and has answered once. `ready`: the path that answers 200 then.

    Raises: ServerFailed when it answers with an error.
    """
    await server.answers(session, ready)
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
    worded: Callable[[Body], Body] = as_it_is,
) -> tuple[Sample, dict[str, float], list[str]]:
    """One server's turn: what it showed, the CPU both used, and the errors."""
    cpu: list[tuple[float, float, float, float]] = []

    def note() -> None:
        cpu.append((server.cpu_s(), other.cpu_s(), time.process_time(), machine_cpu_s()))

    def bodies() -> Iterator[Body]:
        while True:
            yield worded(chat(prompts.draw(), next(draw)))

    window = await closed_loop(
        session,
        server.url,
        warmup=[worded(chat(prompts.draw(), length)) for length in warmup_lengths(streams)],
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
    peer: Peer,
    samples: Mapping[int, Mapping[str, Sequence[tuple[Sample, dict[str, float]]]]],
) -> dict[int, dict[str, list[dict[str, float | None]]]]:
    """Every window's numbers, with its tokens counted from the text by one vocabulary for both servers."""
    counted: dict[int, dict[str, list[dict[str, float | None]]]] = defaultdict(dict)
    for streams, sides in samples.items():
        for side, windows in sides.items():
            counted[streams][side] = []
            for sample, used in windows:
                inside = sum([await peer.count_tokens(session, peer.server, text) for text in sample.texts])
                whole = sum(
                    [await peer.count_tokens(session, peer.server, text) for text in sample.whole_texts]
                )
                told = sum(sample.whole_tokens)
                counted[streams][side].append(
                    {
                        **sample.summary(),
                        **used,
                        "tokens_per_s": inside / sample.seconds,
                        "usage_tokens_per_s": told / sample.seconds if told else None,
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


def table(peer: str, has_goals: bool, data: Mapping[str, Any]) -> str:
    rows: list[list[str]] = []
    for point in data["points"]:
        for name, (words, digits, goal) in METRICS.items():
            ours, theirs = ([window[name] for window in point[side]] for side in (OURS, THEIRS))
            rate = ratio(ours, theirs) if goal else None
            row = [
                f"{point['streams']} · {words}",
                shown(spread(ours), digits),
                shown(spread(theirs), digits),
            ]
            row.append(shown(rate, 3) if goal else "")
            if has_goals:
                row.append(verdict(rate.median if rate else None, **goal) if goal else "")
            rows.append(row)
    head = ["Streams · what", "ours", peer, "ours ÷ theirs"]
    return markdown([*head, "goal"] if has_goals else head, rows)


def ratios(peer: str, has_goals: bool, data: Mapping[str, Any]) -> list[Ratio]:
    rows = []
    for point in data["points"]:
        for name, (words, digits, goal) in METRICS.items():
            if not goal:
                continue
            ours, theirs = ([window[name] for window in point[side]] for side in (OURS, THEIRS))
            rows.append(
                Ratio.of(
                    ours,
                    theirs,
                    route="llama.cpp",
                    peer=peer,
                    what=f"{many(point['streams'], 'stream')}: {words.removesuffix(COUNTED)}",
                    is_more_better="at_least" in goal,
                    digits=digits,
                    goal=goal if has_goals else None,
                )
            )
    return rows


def seconds(options: argparse.Namespace) -> float:
    windows = 2 * len(options.streams) * options.alternations
    return float(45 + windows * (options.seconds + WARM_S))


COMPARE = Measurement(
    name="llama-server",
    title="throughput and latency against llama.cpp's own server",
    add_arguments=add_llama_server_arguments,
    measure=partial(measure, llama_server_peer),
    table=partial(table, "llama-server", True),
    ratios=partial(ratios, "llama-server", True),
    seconds=seconds,
    quick=["--streams", "1,4", "--alternations", "1", "--seconds", "4", "--slots", "4"],
)
COMPARE_PYTHON = Measurement(
    name=llama_cpp_server.NAME,
    title="throughput and latency against llama-cpp-python's own server",
    add_arguments=add_llama_cpp_server_arguments,
    measure=partial(measure, llama_cpp_server.peer),
    table=partial(table, llama_cpp_server.NAME, False),
    ratios=partial(ratios, llama_cpp_server.NAME, False),
    seconds=seconds,
    quick=["--streams", "1,2", "--alternations", "1", "--seconds", "4", "--slots", "4"],
)
