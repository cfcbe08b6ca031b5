"""The machine that this runs on: what no number means anything without."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """CPU, cores, memory, system, and the load average of the minute before."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False) or 0,
        "threads": psutil.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 2),
    }


def gpus() -> list[str]:
    """Names and drivers, as NVIDIA's tool tells them; empty without it."""
    return said_by("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()


def said_by(*command: str) -> str:
    """What a command printed; nothing where it failed or is not there."""
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout if told.returncode == 0 else ""


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.M)):
        return found[1]
    return platform.processor() or platform.machine()
