"""`litellm-soak`: ten minutes of everything that goes wrong between a client, us and a provider.

Requests come at a steady rate whatever becomes of them, most of them good, the others one of a provider's faults each,
or a client who leaves. Their order is drawn from the seed. Every answer has to be the one that its fault deserves.
At the end nothing may be left: no running request, no connection to the provider, no memory.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec
import psutil

from bench.aborts import RUNNING, WAITING, gauge_of
from bench.client import open_session
from bench.faulty_provider import Provider, faulty_provider
from bench.measurement import PORTION_OF_ERRORS, Findings, Measurement, Setup
from bench.ours import our_service
from bench.processes import Server, ServerFailed
from bench.result import markdown, number, verdict

MODELS_PER_FAULT: Final = 40
"""Names of models of one fault, so that none is left alone after its failures while its turn comes again."""
WINDOW_S: Final = 10.0
"""Memory is the median over so long."""
IDLE_S: Final = 65.0
"""The runner looks every 30 s for connections that were idle for 30 s; after this, one that is open is leaked."""
RUNNER: Final = "LiteLLMRunner"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request. `outcomes`: statuses it may end with; of a stream that fails inside, `200 CODE`."""

    behaviour: str
    share: int
    outcomes: frozenset[str]
    stream: bool = False
    prefix: str = "openai/"
    leaves_after_s: float | None = None
    path: str = "/v1/chat/completions"

    @property
    def name(self) -> str:
        what = "embedding" if self.path.endswith("embeddings") else self.behaviour.replace("_", " ")
        parts = [self.prefix.partition("/")[0], what]
        return ", ".join(
            [*parts, *(["streamed"] if self.stream else []), *(["leaves"] if self.leaves else [])]
        )

    @property
    def late_outcomes(self) -> frozenset[str]:
        """Of a stream that waits long for its first event: it is begun before anybody knows its status."""
        return frozenset(f"200 {outcome.partition(' ')[2]}" for outcome in self.outcomes if " " in outcome)

    @property
    def leaves(self) -> bool:
        return self.leaves_after_s is not None


def _kind(behaviour: str, share: int, *outcomes: str, **options: Any) -> Kind:
    return Kind(behaviour, share, frozenset(outcomes), **options)


_RETRIED: Final = ("502 upstream_error", "503 backend_unavailable")
"""A model that fails with every attempt is left alone after the fifth, in the middle of the second request for it."""
_ANTHROPIC: Final = "anthropic/"
_OPENROUTER: Final = "openrouter/soak/"
KINDS: Final = (
    _kind("answer", 200, "200"),
    _kind("answer", 150, "200", stream=True),
    _kind("answer", 80, "200", prefix=_OPENROUTER),
    _kind("answer", 60, "200", prefix=_OPENROUTER, stream=True),
    _kind("answer", 50, "200", prefix=_ANTHROPIC),
    _kind("answer", 40, "200", prefix=_ANTHROPIC, stream=True),
    _kind("answer", 30, "200", path="/v1/embeddings"),
    _kind("no_usage", 20, "200"),
    _kind("no_usage", 20, "200", stream=True),
    _kind("rate_limit", 20, "429 rate_limit_exceeded"),
    _kind("rate_limit", 20, "429 rate_limit_exceeded", prefix=_ANTHROPIC, stream=True),
    _kind("no_quota", 10, "429 insufficient_quota"),
    _kind("bad_key", 20, "502 upstream_auth"),
    _kind("bad_request", 10, "400 invalid_request"),
    _kind("overloaded", 20, "503 backend_unavailable", prefix=_ANTHROPIC),
    _kind("overloaded", 10, "503 backend_unavailable", stream=True),
    _kind("broken", 10, *_RETRIED),
    _kind("page", 20, *_RETRIED),
    _kind("page_200", 10, *_RETRIED),
    _kind("page_200", 10, *_RETRIED, prefix=_OPENROUTER, stream=True),
    _kind("half_json", 20, *_RETRIED),
    _kind("no_choices", 10, *_RETRIED),
    _kind("no_choices", 10, *_RETRIED, stream=True),
    _kind("half_stream", 20, "200 timeout", stream=True),
    _kind("cut_stream", 20, "200 upstream_error", stream=True),
    _kind("cut_stream", 10, "200 upstream_error", stream=True, prefix=_OPENROUTER),
    _kind("error_in_stream", 20, "200 upstream_error", stream=True),
    _kind("slow_stream", 40, "left", stream=True, leaves_after_s=0.5),
    _kind("silence", 20, "left", leaves_after_s=0.3),
    _kind("silence", 20, "left", stream=True, leaves_after_s=0.3, prefix=_OPENROUTER),
)
"""A stream that had begun keeps its 200; its error frame tells the code."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="over which they are spread")


def _ours(provider: Provider, setup: Setup) -> Server:
    url = f"http://127.0.0.1:{provider.port}"
    settings = {
        "LLM_DEFAULT_BACKEND": "litellm",
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENROUTER_API_KEY": "none",
        "OPENROUTER_API_BASE": f"{url}/api/v1",
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_API_BASE": url,
        "NO_PROXY": "127.0.0.1",
        "LLM_RATE_LIMIT_RPS": "0",
        "LLM_MAX_CONCURRENT_COMPLETIONS": "1024",
        "LLM_ARGS__GATEWAY__WORKERS": "1",
        "LLM_ARGS__LITELLM__WORKERS": "1",
        "LLM_ARGS__LITELLM__IDLE_TIMEOUT_S": "3",
    }
    return our_service(settings=settings, out=setup.out, log="service-litellm-soak", priority=setup.priority)


class Soak:
    """The requests of one run and what became of them."""

    def __init__(self, session: aiohttp.ClientSession, server: Server, seed: int) -> None:
        self._session = session
        self._server = server
        self._draw = random.Random(seed)
        self._numbers: Counter[str] = Counter()
        self.outcomes: dict[str, Counter[str]] = {kind.name: Counter() for kind in KINDS}
        self.errors: list[str] = []
        self.wrong = 0
        self.sent = 0
        self.longest_lag_s = 0.0

    async def run(self, requests: int, seconds: float) -> None:
        """Send them at a steady rate; returns when the last has its end."""
        begin = time.perf_counter()
        kinds = self._draw.choices(KINDS, [kind.share for kind in KINDS], k=requests)
        running: set[asyncio.Task[None]] = set()
        for position, kind in enumerate(kinds):
            due = begin + position * seconds / requests
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self.longest_lag_s = max(self.longest_lag_s, time.perf_counter() - due)
            self.sent += 1
            task = asyncio.create_task(self._one(kind))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _one(self, kind: Kind) -> None:
        self._numbers[kind.name] += 1
        turn = f"{'s' if kind.stream else 'w'}{self._numbers[kind.name] % MODELS_PER_FAULT}"
        model = f"{kind.prefix}soak-{kind.behaviour}-{turn}"
        body: dict[str, Any] = {"model": model}
        if kind.path.endswith("embeddings"):
            body["input"] = ["A river", "is water"]
        else:
            body |= {"messages": [{"role": "user", "content": "What is a river?"}], "max_tokens": 32}
            body["stream"] = kind.stream
        try:
            async with asyncio.timeout(kind.leaves_after_s or 120.0):
                outcome = await self._ask(kind, body)
        except TimeoutError:
            outcome = "left" if kind.leaves else "no answer in 120 s"
        except (aiohttp.ClientError, OSError) as error:
            outcome = f"{type(error).__name__}: {error}"
        self.outcomes[kind.name][outcome] += 1
        if outcome not in kind.outcomes and not (kind.stream and outcome in kind.late_outcomes):
            self.wrong += 1
            if len(self.errors) < PORTION_OF_ERRORS:
                self.errors.append(f"{kind.name}: {outcome}")

    async def _ask(self, kind: Kind, body: Mapping[str, Any]) -> str:
        async with self._session.post(
            self._server.url + kind.path,
            data=msgspec.json.encode(body),
            headers={"Content-Type": "application/json"},
        ) as response:
            received = await response.read()
            if response.status != 200:
                return f"{response.status} {msgspec.json.decode(received)['error']['code']}"
            if kind.path.endswith("embeddings"):
                return "200" if b'"embedding"' in received else "200 without vectors"
            return _of_stream(received) if kind.stream else _of_whole(received)


def _of_whole(received: bytes) -> str:
    answer = msgspec.json.decode(received)
    said = answer["choices"][0]["message"]["content"]
    return "200" if said == "A river is wäter on its way 🌊." else f"200 with {said!r}"


def _of_stream(received: bytes) -> str:
    said, finish, code = "", None, None
    events = [line[6:] for line in received.split(b"\n") if line.startswith(b"data: ")]
    for event in events:
        if event == b"[DONE]":
            continue
        chunk = msgspec.json.decode(event)
        if "error" in chunk:
            code = chunk["error"]["code"]
        for choice in chunk.get("choices", ()):
            said += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
    if not events or events[-1] != b"[DONE]":
        return "200 without an end"
    if code is not None:
        return f"200 {code}" if finish is None else f"200 {code} after a finish reason"
    if finish != "stop":
        return f"200 with the finish reason {finish}"
    return "200" if said == "A river is wäter on its way 🌊." else f"200 with {said!r}"


class Sizes:
    """Memory and open files of gateway and runner, once a second."""

    def __init__(self, server: Server) -> None:
        self._runner, self._gateway = _processes(server)
        self.rows: list[tuple[float, int, int, int]] = []

    async def watch(self) -> None:
        """Until it is cancelled, or the server ends."""
        begin = time.perf_counter()
        while self._runner.is_running() and self._gateway.is_running():
            now = time.perf_counter() - begin
            sizes = self._runner.memory_info().rss, self._gateway.memory_info().rss, self._runner.num_fds()
            self.rows.append((now, *sizes))
            await asyncio.sleep(1.0)

    def around(self, begin_s: float, end_s: float) -> dict[str, float]:
        rows = [row for row in self.rows if begin_s <= row[0] < end_s] or self.rows[-1:]
        names = ("runner_mib", "gateway_mib", "runner_fds")
        middle = [statistics.median(column) for column in list(zip(*rows, strict=True))[1:]]
        return dict(zip(names, [middle[0] / 2**20, middle[1] / 2**20, middle[2]], strict=True))


def _processes(server: Server) -> tuple[psutil.Process, psutil.Process]:
    """The runner's worker and the gateway's. Raises: ServerFailed."""
    workers: dict[bool, psutil.Process] = {}
    for process in server.tree():
        with suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            if "--worker-id" in command or "--worker-id=" in " ".join(command):
                workers[RUNNER in command] = process
    if len(workers) != 2:
        raise ServerFailed("the processes of gateway and runner were not found")
    return workers[True], workers[False]


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    async with faulty_provider() as provider, open_session() as session, _ours(provider, setup) as server:
        setup.say(f"starting {server.name}")
        await server.answers(session, "/ready")
        soak, sizes = Soak(session, server, setup.seed), Sizes(server)
        watching = asyncio.create_task(sizes.watch())
        telling = asyncio.create_task(_tell(soak, sizes, provider, setup))
        begin, used = time.perf_counter(), server.cpu_s()
        await soak.run(options.requests, options.seconds)
        took_s, used = time.perf_counter() - begin, server.cpu_s() - used
        ended_s = sizes.rows[-1][0]
        freed_s = await _until_free(session, server)
        busy, open_at_once = provider.busy, provider.open_connections
        await asyncio.sleep(IDLE_S)
        for task in (watching, telling):
            task.cancel()
        server.check_alive()
        left = provider.open_connections
        minute_s = min(60.0, options.seconds / 10)
        data = {
            "first": sizes.around(minute_s, minute_s + WINDOW_S),
            "last": sizes.around(ended_s - WINDOW_S, ended_s),
            "idle": sizes.around(sizes.rows[-1][0] - 3.0, sizes.rows[-1][0]),
            "freed_s": freed_s,
            "busy": busy,
            "open_at_once": open_at_once,
            "leaked": left,
            "connections": provider.connections,
            "exchanges": sum(provider.seen.values()),
            "requests": soak.sent,
            "wrong": soak.wrong,
            "seconds": took_s,
            "cpu_s": used,
            "longest_lag_s": soak.longest_lag_s,
            "outcomes": {name: dict(found) for name, found in soak.outcomes.items()},
            "series": [sizes.around(at, at + WINDOW_S) for at in range(0, int(ended_s), 30)],
        }
    return Findings(
        parameters={
            "workers": "one each: gateway, runner",
            "idle deadline of a stream": "3 s",
            "other deadlines": "as shipped",
            "names of models per fault": MODELS_PER_FAULT,
        },
        n=f"{soak.sent} requests in {took_s:.0f} s, of {len(KINDS)} kinds",
        data=data,
        errors=[*soak.errors, *([f"… {soak.wrong} in all"] if soak.wrong > len(soak.errors) else [])],
    )


async def _tell(soak: Soak, sizes: Sizes, provider: Provider, setup: Setup) -> None:
    while True:
        await asyncio.sleep(30.0)
        size = sizes.around(sizes.rows[-1][0] - WINDOW_S, sizes.rows[-1][0] + 1)
        setup.say(
            f"{soak.sent} sent, {soak.wrong} wrong; runner {size['runner_mib']:.1f} MiB, "
            f"{size['runner_fds']:.0f} files; {provider.open_connections} connections open, {provider.busy} busy"
        )


async def _until_free(session: aiohttp.ClientSession, server: Server) -> float | None:
    """Seconds until both gauges are at 0; None if they never are."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < 30:
        async with session.get(f"{server.url}/metrics") as response:
            text = await response.text()
        if gauge_of(text, RUNNING) == 0 and gauge_of(text, WAITING) == 0:
            return time.perf_counter() - begin
        await asyncio.sleep(0.1)
    return None


def table(data: Mapping[str, Any]) -> str:
    first, last, idle = data["first"], data["last"], data["idle"]
    change = (last["runner_mib"] / first["runner_mib"] - 1) * 100
    rows = [
        ["requests", number(data["requests"], 0), ""],
        ["answers that were not what the fault deserves", number(data["wrong"], 0), "0"],
        ["requests that reached the provider, attempts included", number(data["exchanges"], 0), ""],
        ["connections to it, over all", number(data["connections"], 0), ""],
        ["runner's RSS after the first minute, MiB", number(first["runner_mib"]), ""],
        ["runner's RSS in the last seconds, MiB", number(last["runner_mib"]), ""],
        ["difference, %", f"{change:+.1f}", verdict(abs(change), at_most=5)],
        ["gateway's RSS, then and at the end, MiB", _pair(first, last, "gateway_mib"), ""],
        ["runner's open files: after a minute, at the end, idle", _files(first, last, idle), ""],
        ["exchanges under way once the gauges are at 0", number(data["busy"], 0), "0"],
        ["connections open at that moment, kept alive", number(data["open_at_once"], 0), ""],
        [f"connections open {IDLE_S:.0f} s later", number(data["leaked"], 0), "0"],
        [f"`{RUNNING}` and `{WAITING}` at 0 after, s", number(data["freed_s"], 2), "reached"],
        ["CPU of all our processes per request, ms", number(data["cpu_s"] / data["requests"] * 1000, 2), ""],
    ]
    kinds = [
        [name, ", ".join(f"{outcome}: {count}" for outcome, count in sorted(found.items()))]
        for name, found in data["outcomes"].items()
    ]
    return "\n\n".join([markdown(["", "measured", "goal"], rows), markdown(["kind", "outcomes"], kinds)])


def _pair(first: Mapping[str, float], last: Mapping[str, float], name: str) -> str:
    return f"{number(first[name])} → {number(last[name])}"


def _files(*sizes: Mapping[str, float]) -> str:
    return " → ".join(number(size["runner_fds"], 0) for size in sizes)


LITELLM_SOAK = Measurement(
    name="litellm-soak",
    title="ten minutes of a provider's faults: is anything left of them?",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=["--requests", "600", "--seconds", "15"],
)
