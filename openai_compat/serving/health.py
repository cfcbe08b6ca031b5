"""What the backends say of themselves, remembered briefly so that a control route never waits for one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from backends.base import Backend
from backends.types import BackendHealth, ModelState

FRESH_S: Final = 0.2
"""An answer younger than this is taken as it is."""
PATIENCE_S: Final = 0.08
"""How long a route waits for a fresh answer before it takes the last one. Control routes stay below 100
ms."""
ANSWER_S: Final = 2.0
"""A backend that has not answered after this counts as unhealthy."""


_log = logging.getLogger("llm.wire")


class HealthCache:
    """The last `health()` of each backend. Used from one event loop."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = backends
        self._last: dict[str, tuple[float, BackendHealth]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._told: dict[str, bool] = {}
        """Whether the log says that a backend is healthy."""

    async def all(self) -> dict[str, BackendHealth]:
        """One entry per backend, none older than its last answer; never longer than `PATIENCE_S`."""
        now = asyncio.get_running_loop().time()
        waiting = [
            self._ask(kind)
            for kind in self._backends
            if kind not in self._last or now - self._last[kind][0] > FRESH_S
        ]
        if waiting:
            await asyncio.wait(waiting, timeout=PATIENCE_S)
        return {kind: self.last(kind) for kind in self._backends}

    def last(self, kind: str) -> BackendHealth:
        """The last answer, whatever its age."""
        found = self._last.get(kind)
        return found[1] if found else BackendHealth(healthy=False, message="No answer yet")

    async def state_of(self, kind: str, model: str) -> ModelState | None:
        """How far a model is on a backend; None if the backend does not say."""
        health = (await self.all())[kind]
        return next((status.state for status in health.models if status.id == model), None)

    def forget(self, kind: str) -> None:
        """The next reader asks again: something was loaded or unloaded."""
        self._last.pop(kind, None)
        asking = self._asking.pop(kind, None)
        if asking is not None:
            asking.cancel()

    async def aclose(self) -> None:
        """Stop whatever is still asking."""
        tasks = list(self._asking.values())
        self._asking.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ask(self, kind: str) -> asyncio.Task[None]:
        task = self._asking.get(kind)
        if task is None or task.done():
            task = self._asking[kind] = asyncio.create_task(self._answer(kind))
        return task

    async def _answer(self, kind: str) -> None:
        try:
            health = await asyncio.wait_for(self._backends[kind].health(), ANSWER_S)
        except TimeoutError:
            health = BackendHealth(healthy=False, message=f"No answer within {ANSWER_S:g} s")
        except Exception:
            if self._told.get(kind) is not False:
                _log.exception("asking backend %r for its health failed", kind)
            health = BackendHealth(healthy=False, message="The health check failed")
        self._tell(kind, health)
        self._last[kind] = (asyncio.get_running_loop().time(), health)

    def _tell(self, kind: str, health: BackendHealth) -> None:
        """Each change once: a runner that hangs shows nowhere else until its requests run out of time."""
        if self._told.get(kind) is not health.healthy:
            self._told[kind] = health.healthy
            if health.healthy:
                _log.info("backend %r is healthy", kind)
            else:
                _log.warning("backend %r is not healthy: %s", kind, health.message or "no reason given")


def overall(found: Mapping[str, BackendHealth]) -> str:
    """`healthy`: all backends are; `degraded`: some; `unhealthy`: none."""
    healthy = [health.healthy for health in found.values()]
    if healthy and all(healthy):
        return "healthy"
    return "degraded" if any(healthy) else "unhealthy"
