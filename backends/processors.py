"""How many processor cores this process may really use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MEMBERSHIP: Final = Path("/proc/self/cgroup")
CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


def usable_cores(membership: Path = MEMBERSHIP, control_groups: Path = CONTROL_GROUPS) -> int:
    """At least 1: the cores that it may run on, or fewer where a control group has a quota of processor time. Parts of
    a core do not count: a thread that has no time left in a period keeps the others waiting until the next one.

    What a container merely requests (a weight, not a quota) limits nothing and is not seen here.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    quotas = [quota for line in lines for group in _groups(line, control_groups) for quota in _quota(group)]
    return max(1, int(min([cores, *quotas])))


def _groups(line: str, control_groups: Path) -> Iterator[Path]:
    """The group of one line of /proc/self/cgroup and those above it, each of which may have a quota."""
    _, controllers, path = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return
    top = control_groups / "cpu" if controllers else control_groups
    # A container of version 1 names the group as the host sees it; what it sees of it is the top.
    inner = Path(path.lstrip("/"))
    group = top if ".." in inner.parts or not (top / inner).is_dir() else top / inner
    while True:
        yield group
        if group == top:
            return
        group = group.parent


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
