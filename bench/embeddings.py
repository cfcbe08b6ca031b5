"""`embeddings`: what batching brings to many clients, what it costs one, and what it does to a chat beside it.

The same for texts of several lengths, because the engine's own gain depends on it: a forward pass costs a + b · tokens,
of which a batch saves the a (reading all weights) for all texts but one. So the table holds that gain, calls of many
texts over calls of one, beside the service's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from bench.client import chat, open_session
from bench.compare import first_answer
from bench.embedding_clients import Told, texts
from bench.load import Body, look_at, streams_running
from bench.measurement import Findings, Measurement, Setup, whole_numbers
from bench.ours import ROOT, UNLIMITED, our_service
from bench.processes import Server, ServerFailed
from bench.result import markdown, number, shown, verdict
from bench.stats import Spread, median, percentile, ratio, spread
from bench.workload import Prompts

MODEL = "all-minilm-l6-v2"
SHIPPED_BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument(
        "--requests", type=int, default=20_000, help="of all clients, with batching, for each length"
    )
    parser.add_argument("--unbatched-requests", type=int, default=2_000, help="for each length")
    parser.add_argument("--single-requests", type=int, default=300, help="of one client alone")
    parser.add_argument(
        "--words",
        type=whole_numbers,
        default=[3, 8],
        metavar="N,N,…",
        help="of a text; the last is asked beside the chat",
    )
    parser.add_argument("--batch-size", type=int, default=SHIPPED_BATCH, help="default: as shipped")
    parser.add_argument("--chat-seconds", type=float, default=15.0, help="of each turn")
    parser.add_argument(
        "--alternations", type=int, default=3, help="of the chat alone and beside the clients"
    )
    parser.add_argument("--engine-seconds", type=float, default=5.0)
    parser.add_argument(
        "--threads", type=int, help="that embed (and prefill); default: as shipped, half of the cores"
    )


def seconds(options: argparse.Namespace) -> float:
    """From 2 cores: 8 words take 4 ms a text in batches and 11 by themselves, 3 words a half of that."""
    each = options.requests / 350 + options.unbatched_requests / 120 + options.single_requests / 60
    lengths: float = len(options.words) * (each + 2 * options.engine_seconds + 10)
    turns: float = 2.4 * options.alternations * options.chat_seconds
    return 40 + lengths + turns


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    clients = _Clients(setup)
    rows: dict[int, dict[str, Any]] = {}
    for words in options.words:
        rows[words] = {"engine": await _engine_alone(options, setup, words)}
        setup.say(f"engine alone, {words} words: {rows[words]['engine']}")
    async with _service(options, setup, batch_size=options.batch_size) as server:
        await _warm(server, clients, setup)
        for words in options.words:
            row = rows[words]
            row["alone"] = await clients.ask(server, 1, options.single_requests, words)
            row["many"] = await clients.ask(server, options.clients, options.requests, words)
            row["after"] = await clients.ask(server, 1, max(20, options.single_requests // 4), words)
            setup.say(
                f"{words} words: " + ", ".join(f"{name} {_rate(row[name]):.0f}/s" for name in _ASKED[:3])
            )
        beside = await _beside_a_chat(server, options, setup, clients)
    async with _service(options, setup, batch_size=1) as server:
        await _warm(server, clients, setup)
        for words in options.words:
            told = await clients.ask(server, options.clients, options.unbatched_requests, words)
            rows[words]["unbatched"] = told
            setup.say(f"{words} words without batching: {_rate(told):.0f}/s")
    all_told = [(words, name, rows[words][name]) for words in options.words for name in _ASKED]
    return Findings(
        parameters={
            "clients": options.clients,
            "words": ", ".join(
                f"{words} ({rows[words]['engine']['tokens_per_text']:.1f} tokens)" for words in options.words
            ),
            "batch size": options.batch_size,
            "threads that embed": _threads(options),
            "alternations beside the chat": options.alternations,
        },
        n=", ".join(f"{words} words {name} {told['requests']}" for words, name, told in all_told)
        + " requests",
        data={
            "clients": options.clients,
            "lengths": [{"words": words, **row} for words, row in rows.items()],
            **beside,
        },
        errors=[error for _, _, told in all_told for error in told["errors"]],
        client="a program of its own with one loop over sockets for embeddings "
        f"({_client_cost(rows, options.words):.0f} µs CPU a request), aiohttp for the chat",
    )


_ASKED = ("alone", "many", "after", "unbatched")


def _rate(told: Told) -> float:
    return (told["requests"] - told["lost"]) / told["seconds"] if told["seconds"] else 0.0


def _client_cost(rows: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> float:
    many = [cast(Told, rows[words]["many"]) for words in lengths]
    return 1e6 * sum(told["cpu_s"] for told in many) / max(1, sum(told["requests"] for told in many))


class _Clients:
    """Starts `bench.embedding_clients`, each time with texts that nobody asked for before."""

    def __init__(self, setup: Setup) -> None:
        self._seed = setup.seed
        self._turn = 0

    async def ask(self, server: Server, number: int, amount: int | str, words: int) -> Told:
        """`amount`: requests, or seconds as `5s`. What was not even asked counts as lost."""
        self._turn += 1
        told = cast(
            Told,
            await _told_by(
                "-m",
                "bench.embedding_clients",
                *(str(server.port), str(number), str(amount), str(words), f"{self._seed}/{self._turn}"),
            ),
        )
        if isinstance(amount, int) and told["requests"] < amount:
            told["lost"] += amount - told["requests"]
            told["requests"] = amount
        return told


async def _told_by(*arguments: str) -> Any:
    """The JSON that a Python program of ours prints. It ends with whoever waits for it. Raises: ServerFailed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        told, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise ServerFailed(f"{' '.join(arguments[:2])} ended with {process.returncode}")
    return json.loads(told)


def _service(options: argparse.Namespace, setup: Setup, *, batch_size: int) -> Server:
    settings = {
        "LLM_DEFAULT_BACKEND": "llamacpp",
        "LLM_ARGS__LLAMACPP__BATCH__MAX_BATCH_SIZE": str(batch_size),
        **({"LLM_ARGS__LLAMACPP__N_THREADS_BATCH": str(options.threads)} if options.threads else {}),
        **UNLIMITED,
    }
    log = f"embeddings-{batch_size}"
    return our_service(settings=settings, out=setup.out, log=log, priority=setup.priority)


def _threads(options: argparse.Namespace) -> int:
    """Those that the service takes when it is told nothing, or what it is told."""
    return options.threads or max(1, (os.cpu_count() or 2) // 2)


async def _warm(server: Server, clients: _Clients, setup: Setup) -> None:
    """The model is loaded, and the dispatcher past the calls with which it gets to know the engine."""
    setup.say(f"starting {server.name}")
    async with open_session() as session:
        await server.answers(session, "/health")
    told = await clients.ask(server, 8, 100, 8)
    if told["lost"]:
        raise ServerFailed(f"{server.name}: {told['errors'][0]}")


async def _engine_alone(options: argparse.Namespace, setup: Setup, words: int) -> dict[str, float]:
    setup.out.mkdir(parents=True, exist_ok=True)
    file = setup.out / "embedding-texts.json"
    file.write_text(json.dumps(texts(f"{setup.seed}/engine", words, options.clients)))
    found: dict[str, float] = await _told_by(
        "bench/embedding_engine.py",
        MODEL,
        str(_threads(options)),
        str(file),
        str(options.engine_seconds),
    )
    return found


async def _beside_a_chat(
    server: Server, options: argparse.Namespace, setup: Setup, clients: _Clients
) -> dict[str, Any]:
    """The median gaps of one stream without and with the clients beside it, turn by turn, and their rates meanwhile."""
    prompts = Prompts(setup.seed)

    def bodies() -> Iterator[Body]:
        while True:
            yield chat(prompts.draw(), 128)

    async def turn() -> float | None:
        async with streams_running(
            session, server.url, warmup=[chat(prompts.draw(), 32)], bodies=bodies()
        ) as window:
            await asyncio.sleep(options.chat_seconds)
            window.closed = time.perf_counter()
        return percentile(look_at(window).gaps, 0.5)

    alone: list[float | None] = []
    beside: list[float | None] = []
    rates: list[float] = []
    words = options.words[-1]
    async with open_session() as session:
        await first_answer(session, server)
        for _ in range(options.alternations):
            alone.append(await turn())
            # Longer than the stream's turn with its warm-up, so that they are there from its begin to its end.
            load = asyncio.create_task(
                clients.ask(server, options.clients, f"{options.chat_seconds + 4:g}s", words)
            )
            await asyncio.sleep(1)
            beside.append(await turn())
            told = await load
            rates.append(_rate(told))
            if told["lost"]:
                setup.say(f"lost beside the chat: {told['lost']}, {told['errors'][0]}")
            setup.say(f"chat alone {_shown(alone[-1])} ms, beside {_shown(beside[-1])} ms, {rates[-1]:.0f}/s")
    return {"itl_alone_s": alone, "itl_beside_s": beside, "beside_per_s": rates}


def _shown(value: float | None) -> str:
    return number(None if value is None else value * 1000, 2)


def _in_ms(values: Sequence[float | None]) -> Spread | None:
    return spread(None if value is None else value * 1000 for value in values)


def _each_in_ms(values: Sequence[float]) -> list[float]:
    return [1000 * value for value in values]


def _goals(values: Sequence[float | None], **goal: float) -> str:
    """One verdict where all lengths have the same, else one of each."""
    verdicts = [verdict(value, **goal) for value in values]
    if len(set(verdicts)) == 1:
        return verdicts[0]
    aim = verdicts[0].partition(":")[0]
    return f"{aim}: " + " / ".join(each.partition(": ")[2] for each in verdicts)


def table(data: Mapping[str, Any]) -> str:
    lengths = data["lengths"]
    count = data["clients"]

    def each(name: str, *keys: str) -> list[Any]:
        return [[row[name][key] for key in keys] if len(keys) > 1 else row[name][keys[0]] for row in lengths]

    single, whole = each("engine", "single_per_s"), each("engine", "whole_per_s")
    many = [_rate(row["many"]) for row in lengths]
    unbatched = [_rate(row["unbatched"]) for row in lengths]
    of_engine = [mine / engine for mine, engine in zip(many, whole, strict=True)]
    of_unbatched = [mine / other if other else None for mine, other in zip(many, unbatched, strict=True)]

    def waits(name: str, engine: str) -> list[float | None]:
        return [
            None if row[name]["p50_s"] is None else (row[name]["p50_s"] - row["engine"][engine]) * 1000
            for row in lengths
        ]

    def line(what: str, values: Sequence[float | None], digits: int, goal: str = "") -> list[str]:
        return [what, *(number(value, digits) for value in values), goal]

    lost = [row["many"]["lost"] + row["unbatched"]["lost"] for row in lengths]
    asked = sum(row["many"]["requests"] + row["unbatched"]["requests"] for row in lengths)
    rows = [
        line("engine alone, calls of one, texts/s", single, 0),
        line(f"engine alone, calls of {count}, texts/s", whole, 0),
        line("… times faster, by itself", [w / s for w, s in zip(whole, single, strict=True)], 2),
        line(f"{count} clients of one text each, requests/s", many, 0),
        line("… of the engine's rate in calls of as many", of_engine, 2, _goals(of_engine, at_least=0.7)),
        line("the same clients without batching, requests/s", unbatched, 0),
        line("… times faster with batching", of_unbatched, 2, _goals(of_unbatched, at_least=3)),
        line(f"lost of {asked:,}", lost, 0, _goals(lost, at_most=0)),
        [
            "p50 / p99 of these clients, ms",
            *(f"{_shown(p50)} / {_shown(p99)}" for p50, p99 in each("many", "p50_s", "p99_s")),
            "",
        ],
        line("one client alone, p50, ms", [1000 * (p50 or 0) for p50 in each("alone", "p50_s")], 2),
        line("engine, a call of one after a pause, p50, ms", _each_in_ms(each("engine", "paused_s")), 2),
        line(
            "… the client waits so much longer, ms",
            waits("alone", "paused_s"),
            2,
            _goals(waits("alone", "paused_s"), at_most=5),
        ),
        line(
            "… right after the many, ms",
            waits("after", "paused_s"),
            2,
            _goals(waits("after", "paused_s"), at_most=5),
        ),
        line(
            "engine, a call of one right after another, p50, ms", _each_in_ms(each("engine", "single_s")), 2
        ),
        line("… the client waits so much longer, ms", waits("alone", "single_s"), 2),
    ]
    head = ["all-MiniLM-L6-v2 on llama.cpp", *(_length(row) for row in lengths), "goal"]
    alone, beside = data["itl_alone_s"], data["itl_beside_s"]
    slower = ratio(beside, alone)
    rate = number(median(data["beside_per_s"]), 0)
    stream = [
        ["ITL p50 alone, ms", shown(_in_ms(alone), 2), ""],
        [
            f"beside {count} clients of {lengths[-1]['words']} words ({rate} requests/s), ms",
            shown(_in_ms(beside), 2),
            "",
        ],
        ["… times as long", shown(slower, 2), verdict(slower.median if slower else None, at_most=1.5)],
    ]
    return markdown(head, rows) + "\n\n" + markdown(["A chat stream", "", "goal"], stream)


def _length(row: Mapping[str, Any]) -> str:
    return f"{row['words']} words ({row['engine']['tokens_per_text']:.0f} tokens)"


EMBEDDINGS = Measurement(
    name="embeddings",
    title="many clients of one text each, one client alone, and a chat beside them",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=[
        *("--clients=8", "--requests=200", "--unbatched-requests=100", "--single-requests=20", "--words=8"),
        *("--chat-seconds=3", "--alternations=1", "--engine-seconds=0.5"),
    ],
    seconds=seconds,
)
