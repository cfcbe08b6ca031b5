"""A child that serves: it starts, is watched, and leaves nothing behind, however it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from backends.errors import BackendFailed, InsufficientMemory
from backends.vllm.options import GUARD, SERVER
from backends.vllm.process import EngineProcess
from models.errors import UnusableModel
from tests.backends.fake_vllm import make_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="vLLM runs on Linux")

Make = Callable[..., EngineProcess]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_python(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    return folder


@pytest.fixture
async def make(python: str, folder: Path) -> AsyncIterator[Make]:
    """`make("--fake-…")` gives an engine that is stopped at the end."""
    made: list[EngineProcess] = []

    def one(*arguments: str, stop_timeout_s: float = 5.0) -> EngineProcess:
        socket = folder / "api.sock"
        command = [
            python,
            str(GUARD),
            str(folder),
            SERVER,
            f"--uds={socket}",
            "--served-model-name=m",
            *arguments,
        ]
        engine = EngineProcess(
            "m",
            command,
            environment={"PATH": os.environ["PATH"]},
            folder=folder,
            probe=lambda: listens(socket),
            hidden={"/models/secret": "'m'"},
            stop_timeout_s=stop_timeout_s,
        )
        made.append(engine)
        return engine

    yield one
    for engine in made:
        await engine.stop()


async def listens(socket: Path) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_unix_connection(str(socket))
        writer.close()
        return True
    return False


def exists(folder: Path) -> bool:
    return folder.exists()


def group_of(engine: EngineProcess) -> list[psutil.Process]:
    assert engine.pid is not None
    return living(engine.pid)


def living(group: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def core_of(engine: EngineProcess) -> psutil.Process:
    return next(p for p in group_of(engine) if p.cmdline()[0].startswith("VLLM::"))


async def until(condition: Callable[[], bool], patience_s: float = 5.0) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.01)


async def test_a_started_engine_answers_and_has_a_group_of_its_own(make: Make):
    engine = make()
    await engine.start(20)

    assert engine.failure is None
    assert {"VLLM::EngineCore"} <= {process.cmdline()[0] for process in group_of(engine)}
    assert engine.pid != os.getpgrp()


async def test_a_stop_ends_all_its_processes_and_removes_its_folder(make: Make, folder: Path):
    engine = make()
    await engine.start(20)
    group = engine.pid
    assert group is not None
    await engine.stop()
    await engine.stop()

    assert living(group) == []
    assert not exists(folder)
    assert engine.failure is None


async def test_an_engine_that_does_not_hear_is_killed(make: Make):
    engine = make("--fake-deaf", stop_timeout_s=0.2)
    await engine.start(20)
    group = engine.pid
    assert group is not None
    await engine.stop()

    assert living(group) == []


@pytest.mark.parametrize("victim", ["leader", "core"])
async def test_the_death_of_either_process_is_noticed_within_a_second_and_ends_the_other(
    make: Make, victim: str
):
    engine = make()
    await engine.start(20)
    rung: list[str | None] = []
    engine.on_failure = lambda: rung.append(engine.failure)
    assert engine.pid is not None
    os.kill(engine.pid if victim == "leader" else core_of(engine).pid, signal.SIGKILL)

    assert await engine.fallen(1.0)
    await until(lambda: group_of(engine) == [])
    assert rung == [engine.failure]
    expected = "was ended by SIGKILL" if victim == "leader" else "lost one of its processes"
    assert engine.failure == f"The engine of 'm' {expected}"


async def test_nothing_is_left_when_the_supervisor_is_killed(python: str, tmp_path: Path):
    folder = tmp_path / "engine"
    folder.mkdir()
    command = [python, str(GUARD), str(folder), SERVER, f"--uds={folder / 'api.sock'}"]
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    supervisor = subprocess.Popen(  # noqa: ASYNC220 - it is killed, not waited for
        [sys.executable, "-c", code, *command], stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout is not None
    group = int(supervisor.stdout.readline())
    await until(lambda: any(p.cmdline()[:1] == ["VLLM::EngineCore"] for p in living(group)))
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()

    await until(lambda: living(group) == [])
    assert not exists(folder)


async def test_a_start_that_fails_says_why_in_one_sentence_and_leaves_nothing(make: Make, folder: Path):
    log = (
        r"Traceback (most recent call last):\n  File \"/x/core.py\", line 3, in f\n    g()\n"
        r"ValueError: Model architectures ['Nope'] of /models/secret are not supported for now. Supported: many"
    )
    engine = make(f"--fake-log={log}", "--fake-exit=1")

    with pytest.raises(UnusableModel) as refused:
        await engine.start(20)
    assert refused.value.message == (
        "vLLM cannot serve 'm': Model architectures ['Nope'] of 'm' are not supported for now"
    )
    assert not exists(folder)


async def test_a_start_that_takes_too_long_is_given_up(make: Make):
    engine = make("--fake-hang", stop_timeout_s=0.2)

    with pytest.raises(BackendFailed, match="'m' did not become ready in time"):
        await engine.start(0.8)
    assert group_of(engine) == []


async def test_a_start_that_is_killed_is_taken_for_a_lack_of_memory(make: Make):
    engine = make("--fake-hang")
    starting = asyncio.create_task(engine.start(20))
    await until(lambda: engine.pid is not None)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)

    with pytest.raises(InsufficientMemory, match="was killed while it started"):
        await starting


async def test_a_cancelled_start_leaves_nothing(make: Make, folder: Path):
    engine = make("--fake-hang", stop_timeout_s=0.2)
    starting = asyncio.create_task(engine.start(20))
    await until(lambda: engine.pid is not None)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert group_of(engine) == []
    assert not exists(folder)


async def test_a_program_that_cannot_be_run_is_a_failure_without_its_path(folder: Path):
    engine = EngineProcess(
        "m",
        ["/no/such/python"],
        environment={},
        folder=folder,
        probe=lambda: listens(folder),
        stop_timeout_s=1,
    )

    with pytest.raises(BackendFailed) as failed:
        await engine.start(5)
    assert "/no/such" not in failed.value.message


async def test_its_lines_become_ours_with_their_level(make: Make, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "llm.vllm")
    head = "(EngineCore pid=1) ERROR 11-30 21:40:01 [core.py:1]"
    engine = make(
        rf"--fake-log={head} first\r\n{head}   second\n 50%|###   | 1/2 [00:01<00:01, 1it/s]\nWARNING:  third"
    )
    await engine.start(20)
    await engine.stop()

    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("ERROR", "m: first | second") in said
    assert ("WARNING", "m: third") in said
    assert ("INFO", "m: bye") in said
    assert not any("50%" in text for _, text in said)


async def test_it_gets_the_environment_it_was_given_and_no_other(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LLM_API_TOKENS", "secret")
    caplog.set_level(logging.INFO, "llm.vllm")
    engine = make()
    await engine.start(20)
    await engine.stop()

    said = next(r.getMessage() for r in caplog.records if "environment: " in r.getMessage())
    names = json.loads(said.partition("environment: ")[2])
    assert "LLM_API_TOKENS" not in names
    assert "PATH" in names
