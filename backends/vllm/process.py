"""One server of vLLM as a child process: started, watched, and gone for good when it is stopped.

The child is the leader of a process group of its own; the engine's processes (`VLLM::EngineCore`, its workers) are in
it. Five ways for it to end, and what is done:

- `stop`: SIGTERM to the leader, which tells the engine's processes; SIGKILL to the group for what remains.
- The leader ends by itself: the group is killed, `failure` is set, `on_failure` is called.
- One of the engine's processes ends: vLLM's server notices too but goes on listening for up to 5 s, so it is treated
  like the leader's end.
- It hangs, and whoever uses it says so (`give_up`): treated likewise.
- This process ends, however: the child sees its standard input close and kills its group (`backends.vllm.guard`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from backends.vllm.engine_log import EngineLog
from backends.vllm.exits import first_to_end
from backends.vllm.reasons import ending_of, why_it_died, why_not_started

log = logging.getLogger("llm.vllm")

LAST_WORDS_S: Final = 0.2
"""What a dying process wrote may still be in the pipe."""
QUIET_S: Final = 0.1
"""An event is over when nothing was added to it for so long."""
KILLED_WITHIN_S: Final = 5.0
TRACKER_S: Final = 2.0
"""How long Python's tracker of shared memory may take once the others are gone. vLLM's queues are files of 160 and 240
MB in /dev/shm; killing the tracker with them leaves those there for good."""
_FIRST_PROBE_S: Final = 0.1
_SLOWEST_PROBE_S: Final = 1.0
TRACKER: Final = "multiprocessing.resource_tracker"
_TITLE: Final = "VLLM::"
"""How the engine's own processes call themselves."""


class EngineProcess:
    """Made, then `start`ed once and `stop`ped once. Used from one event loop.

    `folder`: private to this engine, its working directory; removed by `stop`. `probe`: whether it answers requests.
    `hidden`: texts that no message may hold, with what stands for each.
    """

    def __init__(
        self,
        card_id: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        probe: Callable[[], Awaitable[bool]],
        hidden: dict[str, str] | None = None,
        stop_timeout_s: float = 10.0,
    ) -> None:
        self.failure: str | None = None
        """Why it serves no more, in one sentence."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called once, on the event loop, when `failure` is set."""
        self._card_id = card_id
        self._command = tuple(command)
        self._environment = dict(environment)
        self._folder = folder
        self._probe = probe
        self._hidden = {str(folder): "the engine's folder", **(hidden or {})}
        self._stop_timeout_s = stop_timeout_s
        self._log = EngineLog(lambda level, text: log.log(level, "%s: %s", card_id, text))
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._fallen = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the leader, and of its group."""
        return self._process.pid if self._process is not None else None

    async def start(self, timeout_s: float) -> None:
        """Start it and wait until it answers. A start that fails or is cancelled leaves no process.

        Raises: UnusableModel, InsufficientMemory, BackendFailed with the engine's own reason.
        """
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
            log.info("%s: engine started as process %d", self._card_id, self._process.pid)
            self._keep(self._read_log(self._process))
            await self._until_ready(self._process, timeout_s)
            self._keep(self._watch(self._process, self._engine_processes()))
        except OSError as error:
            log.error("%s: %s cannot be run: %s", self._card_id, self._command[0], error)  # noqa: TRY400 - an operator's mistake
            await self.stop()
            raise why_not_started(self._card_id, [], 127, {}) from None
        except BaseException:
            await self.stop()
            raise

    async def _until_ready(self, process: asyncio.subprocess.Process, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        pause_s = _FIRST_PROBE_S
        while loop.time() < deadline:
            if process.returncode is not None:
                await asyncio.sleep(LAST_WORDS_S)
                break
            if await self._probe():
                return
            await _ended(process, pause_s)
            pause_s = min(_SLOWEST_PROBE_S, pause_s * 1.3)
        self._log.flush()
        raise why_not_started(self._card_id, tuple(self._log.complaints), process.returncode, self._hidden)

    async def fallen(self, within_s: float) -> bool:
        """Whether it ended by itself, or does within that time: a broken connection is seen before its cause."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._fallen.wait()
        return self._fallen.is_set()

    async def give_up(self, ending: str) -> None:
        """Take it for dead although it runs. `ending`: what is wrong with it, as the rest of a sentence."""
        await self._fell(ending)

    async def stop(self) -> None:
        """End it and everything it started, and return when all of it is gone. May be called again, and by several."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        process = self._process
        if process is not None:
            if process.returncode is None and self.failure is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await _ended(process, self._stop_timeout_s)
            await self._kill_group(process.pid)
            await _ended(process, KILLED_WITHIN_S)
            if process.stdin is not None:
                process.stdin.close()
        tasks = tuple(self._tasks)
        if tasks:
            # The log's reader ends with the pipe.
            _, left = await asyncio.wait(tasks, timeout=LAST_WORDS_S)
            for task in left:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._log.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _kill_group(self, group: int) -> None:
        """SIGKILL to whatever is left, until nothing is: memory is free only then. Who cleans up after the others gets
        `TRACKER_S`."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while living := await asyncio.to_thread(lambda: list(_living(group))):
            late_s = loop.time() - begun
            if late_s > KILLED_WITHIN_S:
                log.error("%s: processes %s cannot be killed", self._card_id, [one.pid for one in living])
                return
            _kill(living, trackers=late_s > TRACKER_S)
            await asyncio.sleep(0.02)

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                async with asyncio.timeout(QUIET_S if self._log.is_waiting else None):
                    data = await process.stdout.read(1 << 16)
            except TimeoutError:
                self._log.flush()
                continue
            if not data:
                return
            self._log.feed(data)

    async def _watch(self, leader: asyncio.subprocess.Process, engine: Sequence[psutil.Process]) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            await first_to_end([psutil.Process(leader.pid), *engine])
        await _ended(leader, LAST_WORDS_S)
        lost = "lost one of its processes"
        await self._fell(lost if leader.returncode is None else ending_of(leader.returncode))

    def _engine_processes(self) -> list[psutil.Process]:
        """Those that compute. Helpers (compilers, a tracker of shared memory) come and go."""
        assert self._process is not None
        found = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "".join(child.cmdline()[:1]).startswith(_TITLE):
                        found.append(child)
        return found

    def _is_over(self) -> bool:
        return self._stopping is not None or self.failure is not None

    async def _fell(self, ending: str) -> None:
        if self._is_over():
            return
        await asyncio.sleep(LAST_WORDS_S)
        self._log.flush()
        if self._is_over():
            return
        self.failure = why_it_died(self._card_id, tuple(self._log.complaints), ending, self._hidden)
        log.error("%s", self.failure)
        assert self._process is not None
        _kill(_living(self._process.pid), trackers=False)
        self._fallen.set()
        self.on_failure()

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _ended(process: asyncio.subprocess.Process, within_s: float) -> bool:
    """Whether it ended, or does within that time. `Process.wait` would wait for everybody who holds its pipes too."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while process.returncode is None and loop.time() < deadline:  # noqa: ASYNC110 - there is no event for this
        await asyncio.sleep(min(0.02, within_s))
    return process.returncode is not None


def _living(group: int) -> Iterator[psutil.Process]:
    """The processes of a group that still run; a dead one whose parent has not noticed holds nothing."""
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue


def _kill(processes: Iterable[psutil.Process], *, trackers: bool) -> None:
    """SIGKILL to all of them; to those that remove the shared memory of the others only with `trackers`."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if trackers or TRACKER not in " ".join(process.cmdline()):
                process.kill()
