"""A server under measurement: started with its output in a file, watched, and stopped with all its children."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import psutil

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
QUIET = 0.1
"""Share of one core below which a server counts as idle."""

_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")  # guest time is part of user time


class ServerFailed(Exception):
    """The server did not start, or died. The message ends with what it said last."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def machine_cpu_s() -> float:
    """CPU seconds spent on the whole machine so far, by anybody, and those that its host took from it."""
    times: dict[str, float] = psutil.cpu_times()._asdict()
    return sum(value for name, value in times.items() if name in _BUSY)


class Server:
    """One server and its children. Use it as an asynchronous context: leaving it ends all of them.

    `priority`: run in the real-time class SCHED_FIFO at this level; None leaves it to the usual scheduler.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        port: int,
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        priority: int | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self._command = [*(("chrt", "-f", str(priority)) if priority else ()), *command]
        self.environment = dict(environment)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0

    async def __aenter__(self) -> Server:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Begin; returns at once."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.started_at = time.perf_counter()
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def stop(self) -> None:
        """End the process and what it started; nothing is left even if this is cancelled."""
        if self._process is None:
            return
        tree = self.tree()
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()
            self._process = None

    def tree(self) -> list[psutil.Process]:
        """The process and its living descendants."""
        if self._process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def check_alive(self) -> None:
        """Raises: ServerFailed when the process has ended."""
        if self._process is None or self._process.poll() is not None:
            raise ServerFailed(f"{self.name} ended; its log says:\n{self.last_words()}")

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def cpu_s(self) -> float:
        """CPU seconds used so far by the process and its living descendants."""
        total = 0.0
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    async def settle(self, timeout_s: float = 60.0) -> float:
        """Wait until the server uses next to no CPU, and give the seconds that took.

        Raises: ServerFailed when it does not come to rest.
        """
        begin = time.perf_counter()
        used, at, calm = self.cpu_s(), begin, 0
        while at - begin < timeout_s:
            await asyncio.sleep(0.1)
            self.check_alive()
            now_used, now = self.cpu_s(), time.perf_counter()
            calm = calm + 1 if (now_used - used) / (now - at) < QUIET else 0
            used, at = now_used, now
            if calm == 3:
                return now - begin
        raise ServerFailed(f"{self.name} is still busy {timeout_s:.0f} s after its last request")

    async def answers(
        self, session: aiohttp.ClientSession, path: str, *, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Wait until `path` answers 200.

        Raises: ServerFailed when the process ends or `timeout_s` passes.
        """
        deadline = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline:
            self.check_alive()
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.get(self.url + path) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.05)
        raise ServerFailed(f"{self.name} did not answer {path} in {timeout_s:.0f} s\n{self.last_words()}")
