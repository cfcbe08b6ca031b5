"""How many processor cores this process may really use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from backends.control_groups import ControlGroups


def usable_cores(control_groups: ControlGroups | None = None) -> int:
    """At least 1: the cores that it may run on, or fewer where a control group has a quota of processor time. Parts of
    a core do not count: a thread that has no time left in a period keeps the others waiting until the next one.

    What a container merely requests (a weight, not a quota) limits nothing and is not seen here.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    groups = (control_groups or ControlGroups()).of("cpu")
    return max(1, int(min([cores, *(quota for group in groups for quota in _quota(group))])))


def _quota(group: Path) -> Iterator[float]:
    """In cores; nothing where there is none. Version 2 writes `max` for that, version 1 -1."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        if int(quota) > 0:
            yield int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return
