"""`litellm`: a cloud's answer through our gateway and LiteLLM runner, and through our gateway alone, against LiteLLM's
own proxy and its bare SDK.

nginx stands for the cloud: it answers every completion with the same bytes. The proxy has one worker and its documented
settings for speed (no debug log, no telemetry, no database). Ours has one gateway worker and one runner worker, with a
token, a rate limit that nobody reaches, access log and metrics on. The gateway alone speaks to nginx itself, as to any
server with OpenAI's API (`LLM_VLLM_BASE_URL`). The SDK is called in a loop of 32 tasks in a process of
its own: it is the most that anything built on it can reach.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from bench import upstream
from bench.client import open_session
from bench.measurement import Findings, Measurement, PeerMissing, Ratio, Setup
from bench.ours import ROOT, our_service
from bench.passthrough import CONNECTIONS, five_words, nginx
from bench.processes import Server, ServerFailed, free_port
from bench.relay import settings
from bench.result import markdown, shown, verdict
from bench.rounds import CLIENT, one_round
from bench.stats import ratio, spread

MODEL = "openai/static"
OURS, GATEWAY, PROXY, SDK = "ours", "gateway", "proxy", "sdk"
TURNS = (OURS, GATEWAY, PROXY)
MODELS = {OURS: MODEL, GATEWAY: upstream.MODEL, PROXY: MODEL}
PROXY_VENV = ROOT / ".venv-proxy"
_PROXY_CONFIG = """
model_list:
  - model_name: {model}
    litellm_params: {{model: {model}, api_base: "{url}/v1", api_key: none}}
general_settings: {{master_key: bench}}
litellm_settings: {{set_verbose: false, telemetry: false}}
"""
_SDK_LOOP = """
import asyncio, json, os, sys, time
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
litellm.telemetry = False
litellm.suppress_debug_info = True
url, count, tasks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

async def call():
    answer = await litellm.acompletion(
        model="openai/static", api_base=url + "/v1", api_key="none", max_tokens=5,
        messages=[{"role": "user", "content": "say five words"}],
    )
    assert answer.choices[0].message.content == "five words of static text"

async def main():
    async def work(n):
        for _ in range(n):
            await call()
    await work(20)
    cpu, begin = time.process_time(), time.perf_counter()
    await asyncio.gather(*[work(count // tasks) for _ in range(tasks)])
    seconds, used = time.perf_counter() - begin, time.process_time() - cpu
    calls = count // tasks * tasks
    print(json.dumps({"per_s": calls / seconds, "per_cpu_s": calls / used}))

asyncio.run(main())
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=2000, help="of each round, over 32 connections")
    parser.add_argument("--single-requests", type=int, default=300, help="of each round, over one")
    parser.add_argument(
        "--proxy", type=Path, default=PROXY_VENV / "bin" / "litellm", help="LiteLLM's command, with its proxy"
    )


def _proxy(binary: Path, url: str, setup: Setup) -> Server:
    if not binary.is_file():
        raise PeerMissing("LiteLLM's proxy is not installed: run `make bench-setup`, or name it with --proxy")
    folder = setup.out / "proxy"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(_PROXY_CONFIG.format(model=MODEL, url=url))
    port = free_port()
    flags = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return Server(
        "LiteLLM's proxy",
        [str(binary), *flags],
        port=port,
        environment={
            **os.environ,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "NO_DOCS": "True",
        },
        folder=folder,
        log=setup.out / "logs" / "proxy.log",
        priority=setup.priority,
    )


def _ours(url: str, setup: Setup) -> Server:
    settings = {
        "LLM_DEFAULT_BACKEND": "litellm",
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{url}/v1",
        "LLM_API_TOKENS": "bench",
        "LLM_RATE_LIMIT_RPS": "1000000",
        "LLM_RATE_LIMIT_BURST": "1000000",
        "LLM_MAX_CONCURRENT_COMPLETIONS": "1024",
        "LLM_ARGS__GATEWAY__WORKERS": "1",
        "LLM_ARGS__LITELLM__WORKERS": "1",
    }
    return our_service(settings=settings, out=setup.out, log="service-litellm", priority=setup.priority)


def _sdk(url: str, requests: int) -> dict[str, float]:
    """Raises: ServerFailed with what the loop said."""
    done = subprocess.run(
        [sys.executable, "-c", _SDK_LOOP, url, str(requests), str(CONNECTIONS)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise ServerFailed(f"the SDK's loop failed:\n{done.stderr[-800:]}")
    found: dict[str, float] = msgspec.json.decode(done.stdout.strip().splitlines()[-1])
    return found


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    if importlib.util.find_spec("litellm") is None:
        raise PeerMissing("LiteLLM is not installed beside the service: run `make setup`")
    sides: dict[str, list[dict[str, float]]] = {name: [] for name in (*TURNS, SDK)}
    errors: list[str] = []
    async with AsyncExitStack() as stack:
        static = await stack.enter_async_context(nginx(setup))
        gateway = our_service(
            settings=settings(static.url, 1),
            out=setup.out / GATEWAY,
            log="service-gateway",
            priority=setup.priority,
        )
        servers = {
            OURS: _ours(static.url, setup),
            GATEWAY: gateway,
            PROXY: _proxy(options.proxy, static.url, setup),
        }
        async with open_session() as session:
            await static.answers(session, "/v1/models")
            for name, server in servers.items():
                setup.say(f"starting {server.name}")
                await stack.enter_async_context(server)
                await server.answers(session, "/health/liveliness" if name == PROXY else "/ready")
        for name, server in servers.items():
            _, failed = await one_round(server, five_words(MODELS[name], 200), CONNECTIONS)  # warm-up
            errors += failed
        for turn in range(options.rounds):
            for name in TURNS if turn % 2 == 0 else TURNS[::-1]:
                asked = MODELS[name]
                one, failed = await one_round(servers[name], five_words(asked, options.single_requests), 1)
                many, failed_too = await one_round(
                    servers[name], five_words(asked, options.requests), CONNECTIONS
                )
                sides[name].append({"one_p50_ms": one["p50_ms"], **many})
                errors += [f"{name}: {error}" for error in (*failed, *failed_too)]
            sides[SDK].append(_sdk(static.url, options.requests))
            setup.say(
                f"round {turn + 1}, requests per second of CPU: "
                + ", ".join(f"{name} {values[-1]['per_cpu_s']:.0f}" for name, values in sides.items())
                + f"; p50 at one connection: ours {sides[OURS][-1]['one_p50_ms']:.2f} ms, "
                f"gateway {sides[GATEWAY][-1]['one_p50_ms']:.2f} ms, proxy {sides[PROXY][-1]['one_p50_ms']:.2f} ms"
            )
    return Findings(
        parameters={
            "connections": CONNECTIONS,
            "workers": "one each: gateway, runner, proxy",
            "token, rate limit, access log, metrics (ours)": "on",
        },
        n=f"{options.rounds} rounds of {options.requests} requests at {CONNECTIONS} connections and "
        f"{options.single_requests} at one",
        data=sides,
        errors=errors,
        versions={
            "litellm": _version(Path(sys.executable)),
            "litellm proxy": _version(options.proxy.parent / "python"),
        },
        client=CLIENT,
    )


def _version(python: Path) -> str:
    told = subprocess.run(
        [str(python), "-c", "import importlib.metadata as m; print(m.version('litellm'))"],
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or "unknown"


METRICS: tuple[tuple[str, str, int, Mapping[str, float]], ...] = (
    ("per_cpu_s", "requests per second of CPU, all processes", 0, {"at_least": 4}),
    ("per_s", "requests/s at 32 connections", 0, {}),
    ("one_p50_ms", "p50 at one connection, ms", 2, {"at_most": 0.4}),
    ("p99_ms", "p99 at 32 connections, ms", 1, {}),
)
"""With the goal for ours over the proxy's."""


def table(data: Mapping[str, Any]) -> str:
    sides = [side for side in (*TURNS, SDK) if data.get(side)]
    rows = []
    for name, words, digits, goal in METRICS:
        values = {side: [each.get(name) for each in data[side]] for side in sides}
        to_proxy, to_sdk = ratio(values[OURS], values[PROXY]), ratio(values[OURS], values[SDK])
        goals = [f"proxy {verdict(to_proxy.median if to_proxy else None, **goal)}"] if goal else []
        if name == "per_cpu_s":
            goals.append(f"SDK {verdict(to_sdk.median if to_sdk else None, at_least=0.65)}")
        rows.append(
            [
                words,
                *(shown(spread(values[side]), digits) for side in sides),
                shown(to_proxy, 2),
                shown(to_sdk, 2),
                "; ".join(goals),
            ]
        )
    named = {OURS: "ours", GATEWAY: "our gateway alone", PROXY: "LiteLLM's proxy", SDK: "bare SDK"}
    return markdown(["", *(named[side] for side in sides), "ours ÷ proxy", "ours ÷ SDK", "goal"], rows)


def ratios(data: Mapping[str, Any]) -> list[Ratio]:
    rows = []
    for side, route in ((OURS, "LiteLLM"), (GATEWAY, "gateway before a server")):
        for name, words, digits, goal in METRICS if data.get(side) else ():
            ours, theirs = ([each[name] for each in data[which]] for which in (side, PROXY))
            rows.append(
                Ratio.of(
                    ours,
                    theirs,
                    route=route,
                    peer="LiteLLM's proxy",
                    what=words,
                    is_more_better=not name.endswith("_ms"),
                    digits=digits,
                    goal=goal if side == OURS else None,
                )
            )
    return rows


def seconds(options: argparse.Namespace) -> float:
    """Mostly the proxy's, at 70 requests/s."""
    return float(40 + options.rounds * (options.requests / 40 + options.single_requests / 50))


LITELLM = Measurement(
    name="litellm",
    title="a cloud's answer, against LiteLLM's own proxy and its SDK",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    ratios=ratios,
    seconds=seconds,
    quick=["--rounds", "1", "--requests", "200", "--single-requests", "30"],
)
