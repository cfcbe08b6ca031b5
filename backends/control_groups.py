"""Which control groups this process is in: the kernel's limits for a container, a pod or a service's unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ControlGroups:
    """What the kernel tells; a test writes files of its own."""

    membership: Path = Path("/proc/self/cgroup")
    root: Path = Path("/sys/fs/cgroup")

    def of(self, controller: str) -> Iterator[Path]:
        """The group that `controller` (`cpu`, `memory`) has this process in, and those above it: each may have a limit.
        Nothing where the kernel has no control groups. A machine that mixes both versions gives those of both."""
        try:
            lines = self.membership.read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            # Version 2 has one tree for all and names none.
            if controllers and controller not in controllers.split(","):
                continue
            yield from _up(self.root / controller if controllers else self.root, Path(path.lstrip("/")))


def _up(top: Path, inner: Path) -> Iterator[Path]:
    """A container of version 1 names its group as the host sees it; all that it can see of it is the top."""
    group = top if ".." in inner.parts or not (top / inner).is_dir() else top / inner
    while group != top:
        yield group
        group = group.parent
    yield top
