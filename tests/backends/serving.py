"""A backend behind the real wire: uvicorn on a Unix socket in this process, and the client for it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from backends.base import Backend
from backends.runner import RunnerClient, create_runner_app


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """The address of an ASGI app that runs as long as the block."""
    with tempfile.TemporaryDirectory(prefix="wire") as folder:
        path = str(Path(folder) / "r.sock")
        config = uvicorn.Config(
            app, uds=path, lifespan="on", log_level="critical", access_log=False, timeout_graceful_shutdown=2
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        try:
            while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.005)
            yield f"file://{path}"
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def served(backend: Backend, token: str | None = None) -> AsyncIterator[RunnerClient]:
    async with serving(create_runner_app(backend, token=token)) as url:
        client = RunnerClient(backend.kind, url, token)
        await client.start()
        try:
            yield client
        finally:
            await client.aclose()
