"""Servers under measurement."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from bench.llama_server import find_llama_server, flags, link_libraries
from bench.ours import UNLIMITED, llamacpp_settings, our_service
from bench.processes import Server, ServerFailed

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def a_server(code: str, folder: Path) -> Server:
    return Server(
        "a server",
        [sys.executable, "-c", code],
        port=1,
        environment=os.environ,
        folder=folder,
        log=folder / "log",
    )


async def said(server: Server, words: int) -> list[str]:
    """The first words of its output."""
    async with asyncio.timeout(20):
        while len(found := server.log.read_text().split()) < words:  # noqa: ASYNC110  another process writes it
            await asyncio.sleep(0.02)
    return found


def is_gone(pid: int) -> bool:
    """Whether a killed process ends; one that nobody has buried yet counts."""
    try:
        process = psutil.Process(pid)
        process.wait(1)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


async def test_stopping_ends_the_children_in_sessions_of_their_own(tmp_path: Path) -> None:
    async with a_server(PARENT, tmp_path) as server:
        child = int((await said(server, 1))[0])
        assert child in [process.pid for process in server.tree()]

    assert is_gone(child)


async def test_nothing_is_left_when_stopping_is_cancelled(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(0, flush=True)\n" + PARENT
    server = a_server(deaf, tmp_path)
    server.start()
    child = int((await said(server, 2))[1])
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0.05)

    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping

    assert is_gone(child)
    assert server.tree() == []


async def test_a_server_that_ended_is_told_with_its_last_words(tmp_path: Path) -> None:
    async with a_server("raise SystemExit('the port is taken')", tmp_path) as server:
        with pytest.raises(ServerFailed, match="the port is taken"):
            await server.settle()


async def test_an_idle_server_settles_and_a_busy_one_does_not(tmp_path: Path) -> None:
    async with a_server("import time; time.sleep(60)", tmp_path) as idle:
        assert await idle.settle() < 10
    async with a_server("while True: pass", tmp_path) as busy:
        with pytest.raises(ServerFailed, match="still busy"):
            await busy.settle(timeout_s=1)


def test_both_servers_get_the_same_slots_context_and_threads() -> None:
    ours = llamacpp_settings(slots=16, ctx_per_slot=1024, threads=2)
    theirs = " ".join(flags(slots=16, ctx_per_slot=1024, threads=2, more="--poll 0"))

    assert theirs == "-np 16 -c 16384 --threads 2 --threads-batch 2 --jinja --poll 0"
    assert ours == {
        "LLM_DEFAULT_BACKEND": "llamacpp",
        "LLM_ARGS__LLAMACPP__NUM_SLOTS": "16",
        "LLM_ARGS__LLAMACPP__N_CTX": "16384",
        "LLM_ARGS__LLAMACPP__N_THREADS": "2",
        "LLM_ARGS__LLAMACPP__N_THREADS_BATCH": "2",
        **UNLIMITED,
    }


def test_settings_of_the_caller_do_not_reach_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_API_TOKENS", "mine")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = our_service(settings={"LLM_DEFAULT_BACKEND": "fake"}, out=tmp_path).environment

    assert [name for name in environment if name.startswith("LLM_")] == ["LLM_DEFAULT_BACKEND"]
    assert "PYTHONDONTWRITEBYTECODE" not in environment


def test_libraries_get_every_name_they_are_asked_for(tmp_path: Path) -> None:
    installed = tmp_path / "bin"
    installed.mkdir()
    (installed / "llama-server").touch()
    (installed / "libx.so.0.1").write_text("x")
    (installed / "_symlinks.json").write_text('{"libx.so": "libx.so.0", "libx.so.0": "libx.so.0.1"}')

    for _ in range(2):  # a second run finds the links of the first
        libraries = link_libraries(installed / "llama-server", tmp_path / "links")

    assert (libraries / "libx.so").read_text() == "x"


def test_a_llama_server_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no file"):
        find_llama_server(tmp_path / "nothing")
