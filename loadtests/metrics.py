"""What the service counts itself, where it exports it: that nothing goes on after the load has ended."""

from __future__ import annotations

import re
import time

from loadtests.connection import Connection, TransportFailed
from loadtests.target import Target

_RUNNING = re.compile(r"^(?:llm|vllm):num_requests_running(?:\{[^}]*\})? (\S+)$", re.M)


def read_running(text: str) -> float | None:
    """The sum of the gauges of running requests in Prometheus text; None where there is none."""
    found = [float(value) for value in _RUNNING.findall(text)]
    return sum(found) if found else None


def running_requests(target: Target, *, patience_s: float) -> float | None:
    """Requests that run in the service, once there are none or `patience_s` has passed. None: it does not tell."""
    deadline = time.monotonic() + patience_s
    while True:
        running = _ask(target)
        if not running or time.monotonic() >= deadline:
            return running
        time.sleep(0.2)


def _ask(target: Target) -> float | None:
    connection = Connection(target.host, timeout_s=5)
    try:
        reply = connection.send("GET", "/metrics", body=None, headers=target.headers())
        body = reply.read()
    except TransportFailed:
        return None
    finally:
        connection.close()
    return read_running(body.decode("utf-8", "replace")) if reply.status == 200 else None
