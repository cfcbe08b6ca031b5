"""`vllm`: streams through our service against vLLM's own server bare.

Three sides take turns, a window each:

- bare: vLLM's API server, asked directly.
- remote: the gateway in front of that same server (`LLM_VLLM_BASE_URL`).
- local: a service of ours that runs an engine of its own, with the same flags, behind its runner.

Engine and weights are the same, so what differs is what lies between them and the client.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from bench.client import Answer, ask, chat, open_session
from bench.load import Body, Sample, closed_loop, look_at
from bench.measurement import Findings, Measurement, PeerMissing, Ratio, Setup, many, whole_numbers
from bench.ours import ROOT, UNLIMITED, our_service
from bench.processes import Server, ServerFailed, free_port
from bench.result import markdown, number, shown, verdict
from bench.stats import ratio, spread
from bench.workload import Prompts, lengths, warmup_lengths

MODEL = "smollm2-vllm"
BARE, REMOTE, LOCAL = "bare", "remote", "local"
ENGINE_START_S = 600.0
WARM_S = 7.0
"""Beside a window: warm-up, settling, counting."""
COUNTED = ", counted from the text"
METRICS = {
    "tokens_per_s": (f"output tokens/s{COUNTED}", 1, {"at_least": 0.95}),
    "ttft_p50_ms": ("TTFT p50, ms", 0, {}),
    "itl_p50_ms": ("ITL p50, ms", 1, {}),
    "itl_p99_ms": ("ITL p99, ms", 1, {}),
    "requests": ("requests ended per window", 0, {}),
}
_CATALOGUE = """
models:
  - id: {model}
    backend: vllm
    sources:
      vllm: {{path: {weights}}}
    capabilities: [chat, completion]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=whole_numbers, default=[1, 4, 8, 16], metavar="N,N,…")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="window per side and alternation")
    parser.add_argument(
        "--python", type=Path, default=ROOT / ".venv-vllm" / "bin" / "python", help="the one that has vLLM"
    )
    parser.add_argument("--weights", type=Path, help="folder; default: what tools/vllm_weights.py makes")
    parser.add_argument("--kv-gib", type=int, default=1, help="KV cache of each engine")


def _weights(named: Path | None) -> Path:
    """Raises: PeerMissing saying what to do when there are none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "llm-inference" / "weights"
    found = [named] if named else [file.parent for file in cache.glob("*/config.json")]
    if not found or not found[0].is_dir():
        raise PeerMissing(
            "there are no weights for vLLM: run `make test-vllm` once, or name them with --weights"
        )
    return found[0]


def _bare(options: argparse.Namespace, weights: Path, setup: Setup) -> Server:
    port = free_port()
    flags = {
        "model": weights,
        "served-model-name": MODEL,
        "host": "127.0.0.1",
        "port": port,
        "generation-config": "vllm",
        "max-num-seqs": 16,
        "max-model-len": 2048,
        "kv-cache-memory-bytes": options.kv_gib << 30,
        "uvicorn-log-level": "warning",
    }
    command = [
        str(options.python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--disable-uvicorn-access-log",
    ]
    command += [f"--{name}={value}" for name, value in flags.items()]
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"VLLM_TARGET_DEVICE": "cpu", "PATH": f"{options.python.parent}:{os.environ['PATH']}"}
    return Server(
        BARE,
        command,
        port=port,
        environment=environment,
        folder=setup.out,
        log=setup.out / "logs" / "vllm-bare.log",
        priority=setup.priority,
    )


def _remote(bare: Server, setup: Setup) -> Server:
    settings = {"LLM_DEFAULT_BACKEND": "vllm", "LLM_VLLM_BASE_URL": f"{bare.url}/v1", **UNLIMITED}
    return our_service(settings=settings, out=setup.out / REMOTE, log="vllm-remote", priority=setup.priority)


def _local(options: argparse.Namespace, weights: Path, setup: Setup) -> Server:
    folder = setup.out / LOCAL
    folder.mkdir(parents=True, exist_ok=True)
    catalogue = folder / "catalogue.yaml"
    catalogue.write_text(_CATALOGUE.format(model=MODEL, weights=weights))
    settings = {
        "LLM_DEFAULT_BACKEND": "vllm",
        "LLM_CATALOGUE": str(catalogue),
        "LLM_ARGS__VLLM__PYTHON": str(options.python),
        "LLM_ARGS__VLLM__MAX_NUM_SEQS": "16",
        "LLM_ARGS__VLLM__MAX_MODEL_LEN": "2048",
        "LLM_ARGS__VLLM__KV_CACHE_SPACE_GIB": str(options.kv_gib),
        **UNLIMITED,
    }
    return our_service(settings=settings, out=folder, log="vllm-local", priority=setup.priority)


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    setup.out.mkdir(parents=True, exist_ok=True)
    if not options.python.is_file():
        raise PeerMissing(
            "vLLM is not installed: run `make test-vllm` once, or name a Python that has it with --python"
        )
    weights = _weights(options.weights)
    prompts = Prompts(setup.seed)
    points: list[dict[str, Any]] = []
    errors: list[str] = []
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        setup.say("starting vLLM's server (a first start compiles for about 90 s)")
        bare = await stack.enter_async_context(_bare(options, weights, setup))
        await bare.answers(session, "/health", timeout_s=ENGINE_START_S)
        sides = {BARE: bare, REMOTE: _remote(bare, setup), LOCAL: _local(options, weights, setup)}
        for name in (REMOTE, LOCAL):
            setup.say(f"starting our service, {name}")
            await stack.enter_async_context(sides[name])
            await sides[name].answers(session, "/health")
        await _load(session, sides[LOCAL])
        for server in sides.values():
            await _first_answer(session, server)
        order = list(sides)
        for streams in options.streams:
            point: dict[str, Any] = {"streams": streams, BARE: [], REMOTE: [], LOCAL: []}
            for turn in range(options.alternations):
                for name in order if turn % 2 == 0 else order[::-1]:
                    found, failed = await _window(
                        session,
                        sides[name],
                        bare,
                        prompts=prompts,
                        draw=lengths(setup.seed, streams, turn),
                        streams=streams,
                        seconds=options.seconds,
                    )
                    point[name].append(found)
                    errors += [f"{name}: {error}" for error in failed]
                    setup.say(
                        f"{streams:3} streams, alternation {turn + 1}, {name:6}: "
                        f"{number(found['tokens_per_s'])} tokens/s, TTFT p50 {number(found['ttft_p50_ms'], 0)} ms, "
                        f"ITL p50 {number(found['itl_p50_ms'])} ms, errors {len(failed)}"
                    )
            points.append(point)
        version = await _version(session, bare)
    return Findings(
        parameters={
            "max_num_seqs": 16,
            "max_model_len": 2048,
            "KV cache, GiB": options.kv_gib,
            "weights": weights.name,
            "seconds": options.seconds,
            "alternations": options.alternations,
            "prompt words": prompts.words,
            "output tokens": "32–128, uniform",
            "seed": setup.seed,
        },
        n=f"{options.alternations} windows of {options.seconds:g} s per side and point",
        data={"points": points},
        errors=errors,
        versions={"vllm": version},
    )


async def _load(session: aiohttp.ClientSession, server: Server) -> None:
    async with session.post(
        f"{server.url}/v1/models/load", json={"model": MODEL, "backend": "vllm"}
    ) as response:
        if response.status != 200:
            raise ServerFailed(f"{server.name}: {await response.text()}\n{server.last_words()}")


async def _first_answer(session: aiohttp.ClientSession, server: Server) -> None:
    answer = Answer()
    await ask(session, server.url, chat("Hello", 4, model=MODEL), answer)
    if answer.error is not None:
        raise ServerFailed(f"{server.name}: {answer.error}\n{server.last_words()}")
    await server.settle()


async def _version(session: aiohttp.ClientSession, server: Server) -> str:
    async with session.get(f"{server.url}/version") as response:
        return str((await response.json())["version"])


async def _window(
    session: aiohttp.ClientSession,
    server: Server,
    counter: Server,
    *,
    prompts: Prompts,
    draw: Iterator[int],
    streams: int,
    seconds: float,
) -> tuple[dict[str, float | None], list[str]]:
    """One side's turn; `counter` tells how many tokens a text has."""

    def bodies() -> Iterator[Body]:
        while True:
            yield chat(prompts.draw(), next(draw), model=MODEL)

    window = await closed_loop(
        session,
        server.url,
        warmup=[chat(prompts.draw(), length, model=MODEL) for length in warmup_lengths(streams)],
        bodies=bodies(),
        seconds=seconds,
    )
    server.check_alive()
    await server.settle()
    await counter.settle()
    sample: Sample = look_at(window)
    tokens = sum([await _count(session, counter, text) for text in sample.texts])
    return {**sample.summary(), "tokens_per_s": tokens / sample.seconds}, window.errors


async def _count(session: aiohttp.ClientSession, server: Server, text: str) -> int:
    asked = {"model": MODEL, "prompt": text, "add_special_tokens": False}
    async with session.post(f"{server.url}/tokenize", json=asked) as response:
        if response.status != 200:
            raise ServerFailed(f"{server.name} cannot tokenise: status {response.status}")
        return int((await response.json())["count"])


def table(data: Mapping[str, Any]) -> str:
    rows: list[list[str]] = []
    for point in data["points"]:
        for name, (words, digits, goal) in METRICS.items():
            values = {side: [window[name] for window in point[side]] for side in (BARE, REMOTE, LOCAL)}
            row = [f"{point['streams']} · {words}", shown(spread(values[BARE]), digits)]
            for side in (REMOTE, LOCAL):
                rate = ratio(values[side], values[BARE])
                row += [shown(spread(values[side]), digits), shown(rate, 3) if name != "requests" else ""]
                row.append(verdict(rate.median if rate else None, **goal) if goal else "")
            rows.append(row)
    head = ["Streams · what", "vLLM's server", "gateway before it", "÷ bare", "goal"]
    return markdown([*head, "runner and own engine", "÷ bare", "goal"], rows)


def ratios(data: Mapping[str, Any]) -> list[Ratio]:
    rows = []
    for side, route in ((REMOTE, "gateway before vLLM"), (LOCAL, "vLLM")):
        for point in data["points"]:
            for name, (words, digits, goal) in METRICS.items():
                if name == "requests":
                    continue
                ours, theirs = ([window[name] for window in point[which]] for which in (side, BARE))
                rows.append(
                    Ratio.of(
                        ours,
                        theirs,
                        route=route,
                        peer="vLLM's server",
                        what=f"{many(point['streams'], 'stream')}: {words.removesuffix(COUNTED)}",
                        is_more_better=name == "tokens_per_s",
                        digits=digits,
                        goal=goal,
                    )
                )
    return rows


def seconds(options: argparse.Namespace) -> float:
    windows = 3 * len(options.streams) * options.alternations
    return float(200 + windows * (options.seconds + WARM_S))


VLLM = Measurement(
    name="vllm",
    title="streams through the service against vLLM's own server",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    ratios=ratios,
    seconds=seconds,
    quick=["--streams", "1,4", "--alternations", "1", "--seconds", "4"],
)
