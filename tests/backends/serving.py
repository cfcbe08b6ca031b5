"""A backend behind the real wire: uvicorn's protocol on a Unix socket in this process, and the client for it.

`uvicorn.Server` itself would cost each test 0.2 s of its own ticking.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from backends.base import Backend
from backends.runner import RunnerClient, create_runner_app


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """The address of an app that runs, lifespan included, as long as the block."""
    config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off")
    config.load()
    state = ServerState()
    with tempfile.TemporaryDirectory(prefix="wire") as folder:
        path = str(Path(folder) / "r.sock")
        async with app.router.lifespan_context(app):
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: HttpToolsProtocol(config=config, server_state=state, app_state={}), path
            )
            try:
                yield f"file://{path}"
            finally:
                server.close()
                for connection in list(state.connections):
                    connection.shutdown()
                for task in list(state.tasks):
                    task.cancel()
                await asyncio.gather(*state.tasks, return_exceptions=True)


@asynccontextmanager
async def served(backend: Backend, token: str | None = None) -> AsyncIterator[RunnerClient]:
    async with serving(create_runner_app(backend, token=token)) as url:
        client = RunnerClient(backend.kind, url, token, features=backend.features)
        await client.start()
        try:
            yield client
        finally:
            await client.aclose()
