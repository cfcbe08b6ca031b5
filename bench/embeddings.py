"""`embeddings`: what batching brings to many clients, what it costs one, and what it does to a chat beside it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.client import chat, open_session
from bench.compare import first_answer
from bench.load import Body, look_at, streams_running
from bench.measurement import Findings, Measurement, Setup
from bench.ours import ROOT, UNLIMITED, our_service
from bench.processes import Server, ServerFailed
from bench.raw_http import ConnectionLost, connect, request
from bench.result import markdown, number, verdict
from bench.stats import percentile
from bench.workload import WORDS, Prompts

MODEL = "all-minilm-l6-v2"
MAX_ERRORS_KEPT = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20_000, help="of all clients, with batching")
    parser.add_argument("--unbatched-requests", type=int, default=4_000)
    parser.add_argument("--single-requests", type=int, default=500, help="of one client alone")
    parser.add_argument("--words", type=int, default=8, help="of a text")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--chat-seconds", type=float, default=30.0)
    parser.add_argument("--engine-seconds", type=float, default=5.0)
    parser.add_argument(
        "--threads", type=int, help="that embed (and prefill); default: as shipped, half of the cores"
    )


@dataclass(slots=True)
class Row:
    """What the clients of one load saw. `lost`: requests without a vector."""

    requests: int = 0
    lost: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        return (self.requests - self.lost) / self.seconds if self.seconds else 0.0


class Texts:
    """An endless row of texts, none of them twice in a row of clients."""

    def __init__(self, seed: int, words: int) -> None:
        self._source = random.Random(f"{seed}/texts")
        self._words = words

    def draw(self) -> str:
        return " ".join(self._source.choices(WORDS, k=self._words))

    def request(self) -> bytes:
        body = {"model": MODEL, "input": self.draw(), "encoding_format": "base64"}
        return request("POST", "/v1/embeddings", json.dumps(body).encode())


async def clients_ask(port: int, texts: Texts, *, clients: int, requests: int) -> Row:
    """`clients` connections ask one after the other until `requests` were sent in all."""
    row = Row()
    numbers = iter(range(requests))

    async def client() -> None:
        connection = await connect(port)
        for _ in numbers:
            row.requests += 1
            begin = time.perf_counter()
            try:
                status, body = await connection.ask(texts.request())
            except ConnectionLost as error:
                _lose(row, str(error))
                connection = await connect(port)
                continue
            row.latencies.append(time.perf_counter() - begin)
            if status != 200 or b'"embedding":"' not in body:
                _lose(row, f"status {status}: {body[:200]!r}")
        connection.close()

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    row.seconds = time.perf_counter() - begin
    return row


def _lose(row: Row, why: str) -> None:
    row.lost += 1
    if len(row.errors) < MAX_ERRORS_KEPT:
        row.errors.append(why)


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    texts = Texts(setup.seed, options.words)
    engine = await _engine_alone(options, setup, texts)
    setup.say(f"engine alone: {engine}")
    async with _service(options, setup, batch_size=options.batch_size) as server:
        await _warm(server, texts, setup)
        alone = await clients_ask(server.port, texts, clients=1, requests=options.single_requests)
        setup.say(f"one client: {alone.per_s:.0f}/s, p50 {_ms(alone, 0.5)} ms")
        many = await clients_ask(server.port, texts, clients=options.clients, requests=options.requests)
        setup.say(f"{options.clients} clients: {many.per_s:.0f}/s, lost {many.lost} of {many.requests}")
        after = await clients_ask(
            server.port, texts, clients=1, requests=max(20, options.single_requests // 4)
        )
        setup.say(f"one client right after them: p50 {_ms(after, 0.5)} ms")
        gaps = await _beside_a_chat(server, options, setup, texts)
    async with _service(options, setup, batch_size=1) as server:
        await _warm(server, texts, setup)
        unbatched = await clients_ask(
            server.port, texts, clients=options.clients, requests=options.unbatched_requests
        )
        setup.say(f"without batching: {unbatched.per_s:.0f}/s")
    rows = {"alone": alone, "many": many, "after": after, "unbatched": unbatched}
    return Findings(
        parameters={
            "clients": options.clients,
            "words": options.words,
            "tokens per text": f"{engine['tokens_per_text']:.1f}",
            "batch size": options.batch_size,
            "threads": _threads(options),
        },
        n=", ".join(f"{name} {row.requests}" for name, row in rows.items()) + " requests",
        data={
            "clients": options.clients,
            "engine": engine,
            "itl_alone_s": gaps[0],
            "itl_beside_s": gaps[1],
            "beside_per_s": gaps[2],
            **{
                name: {
                    "per_s": row.per_s,
                    "lost": row.lost,
                    "requests": row.requests,
                    "p50_s": percentile(row.latencies, 0.5),
                    "p99_s": percentile(row.latencies, 0.99),
                }
                for name, row in rows.items()
            },
        },
        errors=[error for row in rows.values() for error in row.errors],
        client="asyncio protocol on kept-alive connections for embeddings, aiohttp for the chat",
    )


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


async def _warm(server: Server, texts: Texts, setup: Setup) -> None:
    """The model is loaded, and the dispatcher past the calls with which it gets to know the engine."""
    setup.say(f"starting {server.name}")
    async with open_session() as session:
        await server.answers(session, "/health")
    row = await clients_ask(server.port, texts, clients=8, requests=100)
    if row.lost:
        raise ServerFailed(f"{server.name}: {row.errors[0]}")


async def _engine_alone(options: argparse.Namespace, setup: Setup, texts: Texts) -> dict[str, float]:
    setup.out.mkdir(parents=True, exist_ok=True)
    file = setup.out / "embedding-texts.json"
    file.write_text(json.dumps([texts.draw() for _ in range(options.clients)]))
    command = [
        sys.executable,
        str(Path(__file__).with_name("embedding_engine.py")),
        MODEL,
        str(_threads(options)),
    ]
    process = await asyncio.create_subprocess_exec(
        *command,
        str(file),
        str(options.engine_seconds),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    told, _ = await process.communicate()
    if process.returncode:
        raise ServerFailed(f"embedding_engine.py ended with {process.returncode}")
    found: dict[str, float] = json.loads(told)
    return found


async def _beside_a_chat(
    server: Server, options: argparse.Namespace, setup: Setup, texts: Texts
) -> tuple[float | None, float | None, float]:
    """The median gap of one stream without and with the clients beside it, and their rate meanwhile."""
    prompts = Prompts(setup.seed)

    def bodies() -> Iterator[Body]:
        while True:
            yield chat(prompts.draw(), 128)

    gaps: list[float | None] = []
    rate = 0.0
    async with open_session() as session:
        await first_answer(session, server)
        for is_loaded in (False, True):
            stop = asyncio.Event()
            load = (
                asyncio.create_task(_until(stop, server.port, texts, options.clients)) if is_loaded else None
            )
            async with streams_running(
                session, server.url, warmup=[chat(prompts.draw(), 32)], bodies=bodies()
            ) as window:
                await asyncio.sleep(options.chat_seconds)
                window.closed = time.perf_counter()
            stop.set()
            if load is not None:
                rate = await load
            gaps.append(percentile(look_at(window).gaps, 0.5))
            setup.say(f"chat {'beside the clients' if is_loaded else 'alone'}: ITL p50 {_shown(gaps[-1])} ms")
    return gaps[0], gaps[1], rate


async def _until(stop: asyncio.Event, port: int, texts: Texts, clients: int) -> float:
    done = 0

    async def client() -> None:
        nonlocal done
        connection = await connect(port)
        while not stop.is_set():
            await connection.ask(texts.request())
            done += 1
        connection.close()

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return done / (time.perf_counter() - begin)


def _ms(row: Row, share: float) -> str:
    return _shown(percentile(row.latencies, share))


def _shown(seconds: float | None) -> str:
    return number(None if seconds is None else seconds * 1000, 2)


def table(data: Mapping[str, Any]) -> str:
    engine, many, alone, after = data["engine"], data["many"], data["alone"], data["after"]
    unbatched = data["unbatched"]
    waits = [
        None if row["p50_s"] is None else (row["p50_s"] - engine["single_s"]) * 1000 for row in (alone, after)
    ]
    before, beside = data["itl_alone_s"], data["itl_beside_s"]
    slower = beside / before if before and beside else None
    of_engine, of_unbatched = many["per_s"] / engine["whole_per_s"], many["per_s"] / unbatched["per_s"]
    rows = [
        ["engine alone, calls of one, texts/s", number(engine["single_per_s"], 0), ""],
        [f"engine alone, calls of {data['clients']}, texts/s", number(engine["whole_per_s"], 0), ""],
        [f"{data['clients']} clients of one text each, requests/s", number(many["per_s"], 0), ""],
        [
            "… of the engine's rate in calls of as many",
            number(of_engine, 2),
            verdict(of_engine, at_least=0.7),
        ],
        ["the same clients without batching, requests/s", number(unbatched["per_s"], 0), ""],
        ["… times faster with batching", number(of_unbatched, 2), verdict(of_unbatched, at_least=3)],
        [f"lost of {many['requests']:,}", str(many["lost"]), verdict(many["lost"], at_most=0)],
        ["p50 / p99 of these clients, ms", f"{_shown(many['p50_s'])} / {_shown(many['p99_s'])}", ""],
        ["one client alone, p50, ms", _shown(alone["p50_s"]), ""],
        ["… longer than the engine needs, ms", number(waits[0], 2), verdict(waits[0], at_most=5)],
        ["one client right after the many, ms longer", number(waits[1], 2), verdict(waits[1], at_most=5)],
        ["a chat stream alone, ITL p50, ms", _shown(before), ""],
        [f"beside the clients ({number(data['beside_per_s'], 0)} requests/s), ms", _shown(beside), ""],
        ["… times as long", number(slower, 2), verdict(slower, at_most=1.5)],
    ]
    return markdown(["all-MiniLM-L6-v2 on llama.cpp", "", "goal"], rows)


EMBEDDINGS = Measurement(
    name="embeddings",
    title="many clients of one text each, one client alone, and a chat beside them",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=[
        *("--clients=8", "--requests=200", "--unbatched-requests=100", "--single-requests=20"),
        *("--chat-seconds=3", "--engine-seconds=0.5"),
    ],
)
