"""GGUF files in the model folders, found by themselves and looked at again only when something changed.

A scan that finds nothing changed costs one `stat` per known folder and file. Four rules come from how file
systems behave:

1. A folder's time stamp has the grain of the kernel's tick, so a file that is created right after a scan can
   leave it as it was. A folder that changed within the last second is therefore read again.
2. A file that is still being copied does not touch its folder, so every known file is compared by size, times
   and inode. Until it is whole it counts as broken.
3. A link may be changed at any time, so where it leads is checked whenever its target differs from the last
scan.
4. A file that is still being copied changes between any two scans, and a scan belongs to a request. The header of one
that was broken is therefore read once a second at most, and until then it stays broken."""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from models import names
from models.errors import UnusableModel
from models.gguf import GgufHeader, read_header, shard_of, shard_paths

MAX_DEPTH: Final = 8
"""Folders below a model folder."""
MAX_FILES: Final = 10_000
"""Entries looked at in one scan, over all folders."""

_SETTLED_AFTER_NS: Final = 1_000_000_000
_BROKEN_FOR_NS: Final = 1_000_000_000
_SUFFIX: Final = ".gguf"

_log = logging.getLogger(__name__)

Stamp = tuple[int, ...] | None
"""Identity of a file or folder at one moment; None if it cannot be reached."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a file's header said when it was last read. `header` or `problem` is None."""

    stamps: tuple[Stamp, ...]
    header: GgufHeader | None
    problem: str | None
    read_at_ns: int


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One model in a folder. `header` is None and `problem` a sentence where it cannot be served."""

    id: str
    """Path relative to its folder, without `.gguf` and without a shard's numbering."""
    path: Path
    """Absolute; of a sharded model the first shard."""
    created: int
    """Unix seconds of the file's last change."""
    header: GgufHeader | None
    problem: str | None


class ModelFolders:
    """The files below `folders`, in their order; of two files with one id the first is taken. Thread-safe.

    Hidden files and folders, linked folders, links that lead out of their folder and names that
    `models.names` refuses are passed over. A folder that does not exist (any more) counts as empty."""

    def __init__(self, folders: Sequence[Path], *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.folders: Final = tuple(Path(os.path.abspath(folder)) for folder in folders)
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._seen: dict[Path, Stamp] = {}
        self._unsettled = True
        self._headers: dict[Path, _Reading] = {}
        self._found: Mapping[str, FoundFile] = MappingProxyType({})
        self._reported: set[str] = set()
        self._broken: set[Path] = set()

    def scan(self) -> Mapping[str, FoundFile]:
        """Id -> file. Gives the same object as before while nothing changed. Reads headers of new and changed
        files (20-150 ms each), so call it once before serving."""
        with self._lock:
            if self._unsettled or any(stamp_of(path) != stamp for path, stamp in self._seen.items()):
                found = self._walk_all()
                if found != self._found:
                    self._found = MappingProxyType(found)
            return self._found

    def relative(self, path: str) -> str | None:
        """`path` without the model folder that it lies in, decided on the text alone; None if it lies in
        none."""
        for folder in self.folders:
            for spelling in (folder, Path(os.path.realpath(folder))):
                prefix = f"{spelling}/"
                if path.startswith(prefix):
                    return path.removeprefix(prefix)
        return None

    def _walk_all(self) -> dict[str, FoundFile]:
        self._seen = {}
        self._unsettled = False
        found: dict[str, FoundFile] = {}
        headers = self._headers
        self._headers = {}
        budget = iter(range(MAX_FILES))
        for folder in self.folders:
            root = Path(os.path.realpath(folder))
            for path in self._walk(root, root, MAX_DEPTH, budget):
                file = self._examine(root, path, headers)
                if file is not None:
                    found.setdefault(file.id, file)
        return found

    def _walk(self, root: Path, folder: Path, depth: int, budget: Iterator[int]) -> Iterator[Path]:
        stamp = stamp_of(folder)
        self._seen[folder] = stamp
        if stamp is None:
            self._report(f"model folder {folder} cannot be reached")
            return
        # Stamps ahead of our clock (a network file system's) never settle, which costs time but misses
        # nothing.
        self._unsettled |= self._now_ns() - max(stamp[-2:]) < _SETTLED_AFTER_NS
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self._report(f"model folder {folder} cannot be listed: {error.strerror}")
            return
        for entry in entries:
            if next(budget, None) is None:
                self._report(
                    f"the model folders hold more than {MAX_FILES} entries; the rest is not looked at"
                )
                return
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            if entry.is_symlink():
                if path.suffix.lower() == _SUFFIX:
                    yield path
            elif entry.is_dir(follow_symlinks=False):
                if depth > 0:
                    yield from self._walk(root, path, depth - 1, budget)
            elif path.suffix.lower() == _SUFFIX:
                yield path

    def _examine(self, root: Path, path: Path, known: Mapping[Path, _Reading]) -> FoundFile | None:
        shard = shard_of(path.name)
        parts = shard_paths(path)
        stamps = tuple(stamp_of(part) for part in parts)
        self._seen.update(zip(parts, stamps, strict=True))
        if shard is not None and shard[1] != 1:
            return None
        if any(
            stamp is not None and not _is_inside(root, part)
            for part, stamp in zip(parts, stamps, strict=True)
        ):
            self._report(f"{path} is a link that leaves its model folder and is ignored")
            return None
        stem = path.with_name(shard[0] if shard else path.name[: -len(_SUFFIX)])
        model_id = names.normalise(stem.relative_to(root).as_posix())
        if not names.is_safe(model_id):
            self._report(f"{os.fsencode(path)!r} has a name that no request could carry and is ignored")
            return None
        if stamps[0] is None or not stat.S_ISREG(stamps[0][0]):
            return None
        reading = self._headers[path] = self._read(path, stamps, known.get(path))
        return FoundFile(model_id, path, stamps[0][-2] // 1_000_000_000, reading.header, reading.problem)

    def _read(self, path: Path, stamps: tuple[Stamp, ...], last: _Reading | None) -> _Reading:
        """`last` while it may stand for the file."""
        now = self._now_ns()
        if last is not None:
            if last.stamps == stamps:
                return last
            if last.problem is not None and 0 <= now - last.read_at_ns < _BROKEN_FOR_NS:
                self._unsettled = True  # it may not change any more, and has to be read all the same
                return last
        header, problem = _try_header(path)
        self._note_health(path, problem)
        return _Reading(stamps, header, problem, now)

    def _note_health(self, path: Path, problem: str | None) -> None:
        """Once per file: one that is being copied is broken at every scan, each time at another length."""
        if problem is None:
            self._broken.discard(path)
        elif path not in self._broken:
            self._broken.add(path)
            _log.warning("model file %s is not listed: %s", path, problem)

    def _report(self, message: str) -> None:
        if message not in self._reported:
            self._reported.add(message)
            _log.warning("%s", message)


def stamp_of(path: Path) -> Stamp:
    """Identity of a file or folder now: mode, place, size and times."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    mode, times = status.st_mode, (status.st_mtime_ns, status.st_ctime_ns)
    return (mode, status.st_dev, status.st_ino, status.st_size, *times)


def _is_inside(root: Path, path: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(root)


def _try_header(path: Path) -> tuple[GgufHeader | None, str | None]:
    try:
        return read_header(path), None
    except UnusableModel as error:
        return None, error.message
