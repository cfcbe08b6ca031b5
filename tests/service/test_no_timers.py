"""BentoML's own time-out, which keeps a timer of every request, stands in front of none of the services."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conformance.conftest import ROOT

SCRIPT = """
import asyncio, json, service

async def asked(app, path):
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        if "status" in message:
            assert message["status"] == 200, message

    await app({
        "type": "http", "http_version": "1.1", "method": "GET", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [], "client": ("127.0.0.1", 1), "root_path": "",
    }, receive, send)

async def timers(made, path):
    app = made.to_asgi()
    for _ in range(300):
        await asked(app, path)
    return sum(not handle.cancelled() for handle in asyncio.get_running_loop()._scheduled)

found = {one.name: asyncio.run(timers(one, "/livez")) for one in service.RUNNERS.values()}
found["Gateway"] = asyncio.run(timers(service.Gateway, "/v1/backends"))
print(json.dumps(found))
"""


def test_requests_to_any_service_leave_no_timers(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LLM_", "BENTOML_"))
    }
    environment |= {
        "LLM_DEFAULT_BACKEND": "fake",
        "LLM_RATE_LIMIT_RPS": "0",
        "BENTOML_HOME": str(tmp_path),
        "BENTOML_DO_NOT_TRACK": "True",
    }

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"LlamaCppRunner": 0, "VLLMRunner": 0, "LiteLLMRunner": 0, "FakeRunner": 0, "Gateway": 1}
