"""What the wire between gateway and runner costs: echo-sized requests to the fake backend in a process of its own.

    python bench/runner_link.py                 our own connections
    python bench/runner_link.py --client aiohttp    the same requests through aiohttp, for comparison
    python bench/runner_link.py --stream        200 tokens streamed instead of one short answer

Prints requests per second, latency and the client's CPU per request at 1 and 32 connections. Runs under uvloop.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from backends import codec
from backends.runner import RunnerClient
from backends.types import ChatPrompt, EventBatch, GenerationRequest, SamplingParams

RUNNER = """
import sys, uvicorn
from backends.fake import FakeLoader
from backends.pool import PooledBackend
from backends.runner import create_runner_app
app = create_runner_app(PooledBackend(FakeLoader(), preload=("fake-echo",)), token=None)
uvicorn.run(app, uds=sys.argv[1], loop="uvloop", http="httptools", access_log=False, log_level="warning")
"""

Generate = Callable[[GenerationRequest], AsyncIterator[EventBatch]]


def a_request(i: int, stream: bool) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{i}",
        model="fake-echo",
        prompts=(ChatPrompt(messages=[{"role": "user", "content": "hello there friend"}]),),
        sampling=SamplingParams(max_tokens=200 if stream else 16, ignore_eos=stream),
        stream=stream,
    )


async def measure(generate: Generate, connections: int, count: int, stream: bool) -> None:
    latencies: list[float] = []
    numbers = iter(range(count))

    async def worker() -> None:
        for i in numbers:
            begin = time.perf_counter()
            async for _ in generate(a_request(i, stream)):
                pass
            latencies.append(time.perf_counter() - begin)

    cpu, begin = time.process_time(), time.perf_counter()
    await asyncio.gather(*[worker() for _ in range(connections)])
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    latencies.sort()
    p50, p99 = latencies[count // 2] * 1e3, latencies[int(count * 0.99)] * 1e3
    print(
        f"{connections:3} connections: {count / wall:6.0f} req/s, p50 {p50:.3f} ms, p99 {p99:.3f} ms, "
        f"client CPU {cpu / count * 1e6:.0f} us/request"
    )


async def with_aiohttp(
    session: aiohttp.ClientSession, request: GenerationRequest
) -> AsyncIterator[EventBatch]:
    splitter = codec.FrameSplitter()
    async with session.post("/generate", data=codec.encode_body(request)) as response:
        async for data in response.content.iter_any():
            for _, payload in splitter.feed(data):
                yield codec.decode_events(payload)


async def run(path: str, client: str, stream: bool) -> None:
    runner = RunnerClient("fake", f"file://{path}")
    async with asyncio.timeout(30):
        while not (await runner.health()).healthy:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    connector = aiohttp.UnixConnector(path=path, limit=0, keepalive_timeout=4)
    async with aiohttp.ClientSession("http://runner", connector=connector) as session:
        generate: Generate = runner.generate if client == "own" else lambda r: with_aiohttp(session, r)
        await measure(generate, 8, 500, stream)  # warm-up, printed so that its difference shows
        for _ in range(3):
            await measure(generate, 1, 300 if stream else 3000, stream)
            await measure(generate, 32, 600 if stream else 10000, stream)
    await runner.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--client", choices=("own", "aiohttp"), default="own")
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="link") as folder:
        path = f"{folder}/r.sock"
        root = Path(__file__).parents[1]
        process = subprocess.Popen([sys.executable, "-c", RUNNER, path], cwd=root)
        try:
            uvloop.run(run(path, options.client, options.stream))
        finally:
            process.terminate()
            process.wait(10)


if __name__ == "__main__":
    main()
