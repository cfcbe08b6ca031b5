"""`relay`: what a stream costs on its way from an OpenAI-compatible server through the gateway to the client.

1. Pace: an upstream that writes a chunk every few milliseconds and puts the time into it. The client reads how old each
   is on arrival, once straight from the upstream and once through the gateway; the difference of the medians is ours.
   The time to the first chunk is taken from short streams, one after the other. A core that slept between two chunks
   takes a while to wake, once per process on the way; so the same is done with a process of the lowest priority on each
   core that keeps it awake, as other streams would.
2. Flood: an upstream that writes 64 streams as fast as they are taken. The CPU of all processes of the service over the
   number of chunks that arrived; beside it an ASGI app that streams the same chunks of its own. Chunks that arrive
   together are relayed together, so the same is done at a pace at which each arrives by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, nullcontext
from typing import Any

from typing_extensions import override

from bench.client import open_session
from bench.measurement import Findings, Measurement, Setup
from bench.ours import ROOT, our_service
from bench.processes import Server, free_port
from bench.raw_http import request
from bench.result import markdown, shown, verdict
from bench.stats import median, percentile, spread

STREAMS = 64
_STAMP = re.compile(rb'"content":"(\d+) "')
_TEXT = b'"content":"'
_END = b"data: [DONE]"


def settings(url: str, workers: int) -> dict[str, str]:
    """The service in front of one server, all middleware on, its limits out of the way."""
    return {
        "LLM_DEFAULT_BACKEND": "vllm",
        "LLM_VLLM_BASE_URL": f"{url}/v1",
        "LLM_API_TOKENS": "bench",
        "LLM_RATE_LIMIT_RPS": "1000000",
        "LLM_RATE_LIMIT_BURST": "1000000",
        "LLM_MAX_CONCURRENT_COMPLETIONS": "1024",
        "LLM_ARGS__GATEWAY__WORKERS": str(workers),
    }


def upstream(setup: Setup) -> Server:
    port = free_port()
    return _python("upstream", ["-m", "bench.upstream", str(port)], port, setup)


def _plain(setup: Setup) -> Server:
    port = free_port()
    command = ["-m", "uvicorn", "bench.upstream_app:app", "--host", "127.0.0.1", "--port", str(port)]
    return _python(
        "plain ASGI",
        [*command, "--no-access-log", "--log-level", "warning", "--lifespan", "off"],
        port,
        setup,
    )


def _python(name: str, command: list[str], port: int, setup: Setup) -> Server:
    return Server(
        name,
        [sys.executable, *command],
        port=port,
        environment=os.environ,
        folder=ROOT,
        log=setup.out / "logs" / f"{name.replace(' ', '-')}.log",
        priority=setup.priority,
    )


class Stream(asyncio.Protocol):
    """One streamed answer, read with as little work as there is."""

    def __init__(self) -> None:
        self.begun = 0
        self.first_at: int | None = None
        self.lags: list[int] = []
        """Age of each chunk on arrival, in ns."""
        self.chunks = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tail = b""
        self._stamped = False

    def ask(self, asked: bytes, *, stamped: bool) -> None:
        self._stamped = stamped
        self.begun = time.monotonic_ns()
        self._transport.write(asked)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    @override
    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self._tail + data
        cut = data.rfind(b"\n\n") + 2
        whole, self._tail = data[:cut], data[cut:]
        if self._stamped:
            for stamp in _STAMP.findall(whole):
                self.lags.append(now - int(stamp))
                if self.first_at is None:
                    self.first_at = now
            self.chunks = len(self.lags)
        else:
            self.chunks += whole.count(_TEXT)
        if _END in whole and not self.done.done():
            self.done.set_result(None)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(OSError("the connection was closed before the end of the stream"))


async def _streams(
    server: Server, count: int, script: Mapping[str, Any], *, stamped: bool = False
) -> tuple[list[Stream], list[str]]:
    """So many streams at once, each with its connection, to their ends. `stamped`: the chunks hold the time."""
    content = json.dumps(script)
    body = json.dumps(
        {"model": "static", "stream": True, "messages": [{"role": "user", "content": content}]}
    ).encode()
    asked = request("POST", "/v1/chat/completions", body, "bench")
    loop = asyncio.get_running_loop()
    made = await asyncio.gather(
        *(loop.create_connection(Stream, "127.0.0.1", server.port) for _ in range(count))
    )
    for _, stream in made:
        stream.ask(asked, stamped=stamped)
    ended = await asyncio.gather(*(stream.done for _, stream in made), return_exceptions=True)
    for transport, _ in made:
        transport.close()
    streams = [stream for _, stream in made]
    errors = [f"{server.name}: {end}" for end in ended if isinstance(end, BaseException)]
    errors += [
        f"{server.name}: {stream.chunks} chunks instead of {script['chunks']}"
        for stream in streams
        if stream.chunks != script["chunks"]
    ]
    return streams, errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--paced-chunks", type=int, default=300, help="of each paced stream")
    parser.add_argument("--gap-ms", type=float, default=5.0)
    parser.add_argument(
        "--first-chunks", type=int, default=30, help="short streams, for the time to the first chunk"
    )
    parser.add_argument(
        "--apart-chunks", type=int, default=150, help="of each of the 64 streams, 20 ms apart"
    )
    parser.add_argument("--flood-chunks", type=int, default=1000, help="of each of the 64 streams")


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    errors: list[str] = []
    pace: dict[str, list[dict[str, float | None]]] = {
        "direct": [],
        "ours": [],
        "direct_awake": [],
        "ours_awake": [],
    }
    flood: dict[str, list[float]] = {"plain": [], "one": [], "two": []}
    apart: dict[str, list[float]] = {"plain": [], "one": [], "two": []}
    streamed_for: dict[str, list[float]] = {"plain": [], "one": [], "two": []}
    script = {"chunks": options.paced_chunks, "first_ms": 20, "gap_ms": options.gap_ms}
    short = {"chunks": 2, "first_ms": 5, "gap_ms": 1}
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(upstream(setup))
        plain = await stack.enter_async_context(_plain(setup))
        ours = {
            name: our_service(
                settings=settings(source.url, workers),
                out=setup.out / name,
                log=f"service-{name}",
                priority=setup.priority,
            )
            for name, workers in (("one", 1), ("two", 2))
        }
        for server in ours.values():
            setup.say(f"starting {server.name}")
            await stack.enter_async_context(server)
        async with open_session() as session:
            for server in (source, *ours.values()):
                await server.answers(session, "/v1/models" if server is source else "/ready")
        sides = {"plain": plain, **ours}
        for server in (*sides.values(), source):
            await _streams(server, 8, {"chunks": 50})  # warm-up
        for turn in range(options.alternations):
            for awake in ("", "_awake"):
                with _cores_awake() if awake else nullcontext():
                    for name in ("direct", "ours") if turn % 2 == 0 else ("ours", "direct"):
                        server = source if name == "direct" else ours["one"]
                        found, failed = await _streams(server, 1, script, stamped=True)
                        firsts = []
                        for _ in range(options.first_chunks):
                            begun, failed_too = await _streams(server, 1, short, stamped=True)
                            firsts.append(begun[0])
                            failed += failed_too
                        pace[name + awake].append(_paced(found[0], firsts))
                        errors += failed
            for name in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
                server = sides[name]
                await server.settle()
                begin = time.perf_counter()
                cpu_us, failed = await _cpu_per_chunk(server, {"chunks": options.flood_chunks})
                streamed_for[name].append(time.perf_counter() - begin)
                flood[name].append(cpu_us)
                await server.settle()
                cpu_us, failed_too = await _cpu_per_chunk(
                    server, {"chunks": options.apart_chunks, "gap_ms": 20}
                )
                apart[name].append(cpu_us)
                errors += [*failed, *failed_too]
            setup.say(
                f"alternation {turn + 1}: a chunk is {pace['ours'][-1]['lag_ms']:.3f} ms old through the gateway, "
                f"{pace['direct'][-1]['lag_ms']:.3f} direct; flood "
                + ", ".join(f"{name} {flood[name][-1]:.1f}/{apart[name][-1]:.1f} µs" for name in flood)
            )
    return Findings(
        parameters={
            "streams of the flood": STREAMS,
            "gap of the paced stream, ms": options.gap_ms,
            "token, rate limit, access log, metrics": "on",
        },
        n=f"{options.alternations} paced streams of {options.paced_chunks} chunks per side, "
        f"{options.first_chunks} short ones each; {options.alternations} floods of {STREAMS} × "
        f"{options.flood_chunks} chunks and {options.alternations} times {STREAMS} × {options.apart_chunks} chunks "
        "20 ms apart per server",
        data={"pace": pace, "flood": flood, "flood_s": streamed_for, "apart": apart},
        errors=errors,
        client="asyncio protocol, counts and time stamps only",
    )


@contextmanager
def _cores_awake() -> Iterator[None]:
    """One process per core that does nothing, and gives way to everything."""
    idle = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", idle]) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.2)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


async def _cpu_per_chunk(server: Server, script: Mapping[str, Any]) -> tuple[float, list[str]]:
    """CPU of all the server's processes in µs over the chunks that arrived, and what went wrong."""
    before = server.cpu_s()
    found, failed = await _streams(server, STREAMS, script)
    return (server.cpu_s() - before) / max(sum(stream.chunks for stream in found), 1) * 1e6, failed


def _paced(stream: Stream, shorts: list[Stream]) -> dict[str, float | None]:
    lag, late = median(stream.lags), percentile(stream.lags, 0.99)
    first = median((each.first_at - each.begun) / 1e6 for each in shorts if each.first_at is not None)
    return {"ttft_ms": first, "lag_ms": lag and lag / 1e6, "lag_p99_ms": late and late / 1e6}


def table(data: Mapping[str, Any]) -> str:
    rows = []
    for name, words, goal in (
        ("ttft_ms", "TTFT of the paced stream, ms", 3.0),
        ("lag_ms", "age of a chunk on arrival, p50, ms", 0.2),
        ("lag_p99_ms", "age of a chunk on arrival, p99, ms", None),
    ):
        for awake, note in (("", ""), ("_awake", "; cores kept awake")):
            sides = (data["pace"][side + awake] for side in ("direct", "ours"))
            direct, ours = (spread(each[name] for each in side) for side in sides)
            added = ours.median - direct.median if ours and direct else None
            said = "–" if added is None else f"+{added:.3f}"
            goals = verdict(added, at_most=goal) if goal else ""
            rows.append([words + note, shown(direct, 3), shown(ours, 3), said, goals])
    first = markdown(["", "straight from the upstream", "through the gateway", "added", "goal"], rows)
    rows = [
        [
            words,
            shown(spread(data["flood_s"][name]), 2),
            shown(spread(data["flood"][name]), 1),
            _goal(data, "flood", name),
            shown(spread(data["apart"][name]), 1),
            _goal(data, "apart", name),
        ]
        for name, words in (
            ("plain", "an ASGI app, chunks of its own"),
            ("one", "ours, one worker"),
            ("two", "ours, two workers"),
        )
    ]
    head = [
        "64 streams",
        "at full speed, s",
        "CPU per chunk, µs",
        "goal",
        "chunks 20 ms apart: CPU per chunk, µs",
        "goal",
    ]
    return f"{first}\n\n{markdown(head, rows)}"


def _goal(data: Mapping[str, Any], what: str, name: str) -> str:
    found = spread(data[what][name])
    return verdict(found.median if found else None, at_most=83) if name != "plain" else ""


RELAY = Measurement(
    name="relay",
    title="what a stream costs on its way through the gateway",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=[
        "--alternations",
        "1",
        "--paced-chunks",
        "20",
        "--flood-chunks",
        "50",
        "--apart-chunks",
        "10",
        "--first-chunks",
        "3",
    ],
)
