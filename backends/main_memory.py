"""How much main memory models may still take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from backends.control_groups import ControlGroups


def available_bytes(control_groups: ControlGroups | None = None) -> int:
    """What the machine has, or a control group where it has a limit and less is left of it. Files that the kernel keeps
    only because nobody needed their place yet count as free, as they do for the machine."""
    groups = (control_groups or ControlGroups()).of("memory")
    left = (bytes_ for group in groups for bytes_ in _left(group))
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def _left(group: Path) -> Iterator[int]:
    """Nothing where there is no limit: version 2 writes `max` for that, version 1 a number beyond any machine."""
    try:
        if (group / "memory.max").exists():
            limit, used = (group / "memory.max").read_text(), (group / "memory.current").read_text()
            idle_files = _stat(group / "memory.stat", "inactive_file")
        else:
            limit = (group / "memory.limit_in_bytes").read_text()
            used = (group / "memory.usage_in_bytes").read_text()
            idle_files = _stat(group / "memory.stat", "total_inactive_file")
        yield int(limit) - int(used) + idle_files
    except (OSError, ValueError):
        return


def _stat(path: Path, name: str) -> int:
    """0 where it is not told."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
