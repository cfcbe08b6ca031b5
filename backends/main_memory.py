"""How much main memory models may still take."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil

CONTROL_GROUP: Final = Path("/sys/fs/cgroup")
"""Of this process, as a container sees it."""


def available_bytes(control_group: Path = CONTROL_GROUP) -> int:
    """What the machine has, or the control group where it has a limit and less is left of it. Files that the kernel
    keeps only because nobody needed their place yet count as free, as they do for the machine."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = int((control_group / "memory.max").read_text())
        used = int((control_group / "memory.current").read_text())
        idle_files = _stat(control_group / "memory.stat", "inactive_file")
    except (OSError, ValueError):  # no limit is written as `max`
        return available
    return min(available, max(0, limit - used + idle_files))


def _stat(path: Path, name: str) -> int:
    """0 where it is not told."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
