"""`passthrough`: what a whole answer costs on its way through the gateway, before a server that costs nothing.

nginx answers every completion with the same bytes. The gateway speaks to it as to any OpenAI-compatible server, with a
token, a rate limit that nobody reaches, access log and metrics on.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from bench.client import open_session
from bench.measurement import Findings, Measurement, PeerMissing, Setup
from bench.ours import our_service
from bench.processes import Server, free_port
from bench.raw_http import request
from bench.relay import settings
from bench.rounds import CLIENT, Asked, Metric, one_round, side_by_side
from bench.upstream import MODEL, MODELS, WHOLE

CONNECTIONS = 32
_CONF = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 100000000; client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{
        listen 127.0.0.1:{port}; default_type application/json;
        location = /health {{ return 200 '{{}}'; }}
        location = /v1/models {{ return 200 '{models}'; }}
        location = /v1/chat/completions {{ return 200 '{whole}'; }}
    }}
}}
"""


def nginx(setup: Setup) -> Server:
    """Raises: PeerMissing when it is not installed."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if binary is None:
        raise PeerMissing("nginx is not installed (on Debian: apt-get install nginx-light)")
    folder = setup.out / "nginx"
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    conf = Path(folder / "nginx.conf")
    conf.write_text(_CONF.format(folder=folder, port=port, models=MODELS.decode(), whole=WHOLE.decode()))
    return Server(
        "nginx",
        [binary, "-p", str(folder), "-c", str(conf), "-e", str(folder / "error.log")],
        port=port,
        environment=os.environ,
        folder=folder,
        log=setup.out / "logs" / "nginx.log",
        priority=setup.priority,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=5000, help="of each round, over 32 connections")
    parser.add_argument("--single-requests", type=int, default=1000, help="of each round, over one")


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    sides: dict[str, list[dict[str, float]]] = {"ours": [], "nginx": []}
    errors: list[str] = []
    async with AsyncExitStack() as stack:
        static = await stack.enter_async_context(nginx(setup))
        ours = our_service(
            settings=settings(static.url, 1), out=setup.out, log="service-remote", priority=setup.priority
        )
        setup.say("starting our service")
        await stack.enter_async_context(ours)
        async with open_session() as session:
            await static.answers(session, "/v1/models")
            await ours.answers(session, "/ready")
        for server in (ours, static):
            await one_round(server, five_words(MODEL, 500), CONNECTIONS)  # warm-up
        for turn in range(options.rounds):
            for name in ("ours", "nginx") if turn % 2 == 0 else ("nginx", "ours"):
                server = ours if name == "ours" else static
                one, failed = await one_round(server, five_words(MODEL, options.single_requests), 1)
                many, failed_too = await one_round(server, five_words(MODEL, options.requests), CONNECTIONS)
                sides[name].append({"one_p50_ms": one["p50_ms"], **many})
                errors += [f"{name}: {error}" for error in (*failed, *failed_too)]
            setup.say(
                f"round {turn + 1}: {sides['ours'][-1]['per_cpu_s']:.0f} requests per second of CPU, "
                f"{sides['ours'][-1]['per_s']:.0f} requests/s, p50 {sides['ours'][-1]['one_p50_ms']:.2f} ms at one"
            )
    return Findings(
        parameters={
            "connections": CONNECTIONS,
            "gateway workers": 1,
            "token, rate limit, access log, metrics": "on",
        },
        n=f"{options.rounds} rounds of {options.requests} requests at {CONNECTIONS} connections and "
        f"{options.single_requests} at one, per server",
        data=sides,
        errors=errors,
        client=CLIENT,
    )


def five_words(model: str, requests: int) -> list[Asked]:
    """So many equal requests, with what nginx answers."""
    body = {"model": model, "messages": [{"role": "user", "content": "say five words"}], "max_tokens": 5}
    asked = request("POST", "/v1/chat/completions", msgspec.json.encode(body), "bench")
    return [(asked, b"five words of static text")] * requests


METRICS = (
    Metric("per_cpu_s", "requests per second of the server's CPU", 0, {"at_least": 1500}),
    Metric("per_s", "requests/s at 32 connections", 0),
    Metric("one_p50_ms", "p50 at one connection, ms", 3),
    Metric("p50_ms", "p50 at 32 connections, ms", 2),
    Metric("p99_ms", "p99 at 32 connections, ms", 2),
)


def table(data: Mapping[str, Any]) -> str:
    return side_by_side(["ours, before nginx", "nginx itself"], METRICS, data["ours"], data["nginx"])


PASSTHROUGH = Measurement(
    name="passthrough",
    title="what a whole answer costs on its way through the gateway",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=["--rounds", "1", "--requests", "200", "--single-requests", "50"],
)
