"""Series in files, one set per process, and the text that one scrape makes of all of them.

The files are those of prometheus_client's multiprocess mode, written through its own `MmapedDict` and merged
by its own collector, but without its `ValueClass`: that one is chosen by an environment variable when the
package is first imported, which other code in this process has usually done already.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.utils import floatToGoString
from typing_extensions import override

from openai_compat.reserve import reserve

_generation = itertools.count()
_MAX_DEAD = 8
_FIRST_BYTES: Final = 1 << 16
_ENTRY_BYTES: Final = 28
"""Of a number at the most, beside its key."""

_log = logging.getLogger(__name__)


class NumberFile(Protocol):
    """What we use of `MmapedDict`, which carries no types."""

    def read_value(self, key: str) -> tuple[float, float]:
        """(value, timestamp); makes the key with 0.0."""

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Replace both."""

    def close(self) -> None:
        """Close the file."""


class _Numbers(MmapedDict):
    """Has the disk's blocks before it writes into them. Where the disk has none left, the constructor and `read_value`
    of a new key raise OSError."""

    def __init__(self, path: Path) -> None:
        with path.open("ab") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                reserve(file.fileno(), max(_FIRST_BYTES, size))
            except OSError:
                if not size:
                    path.unlink()  # an empty file cannot be read by those who scrape
                raise
        super().__init__(str(path))  # type: ignore[no-untyped-call]

    @override
    def _init_value(self, key: str) -> None:
        needed = self._used + len(key.encode()) + _ENTRY_BYTES
        if needed > self._capacity:
            reserve(self._f.fileno(), 2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


class _Unwritten:
    """Numbers for which the disk has no room: they are counted, and no scrape shows them."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[float, float]] = {}

    def read_value(self, key: str) -> tuple[float, float]:
        return self._values.setdefault(key, (0.0, 0.0))

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        self._values[key] = (value, timestamp)

    def close(self) -> None: ...


class Cell:
    """One number of this process, in memory and in its file."""

    __slots__ = ("_file", "_key", "value")

    def __init__(self, file: NumberFile, key: str) -> None:
        self._file = file
        self._key = key
        self.value: float = file.read_value(key)[0]

    def add(self, amount: float) -> None:
        """Add to it."""
        self.value += amount
        self._file.write_value(self._key, self.value, 0.0)

    def set(self, value: float) -> None:
        """Replace it."""
        self.value = value
        self._file.write_value(self._key, value, 0.0)


class HistogramCells:
    """One histogram series. `bounds` are upper bounds in rising order, without +Inf."""

    __slots__ = ("_cells", "_sum", "bounds")

    def __init__(self, cells: Sequence[Cell], total: Cell, bounds: Sequence[float]) -> None:
        self._cells = cells
        self._sum = total
        self.bounds = bounds

    def observe(self, value: float) -> None:
        """Count one value."""
        self._cells[bisect_left(self.bounds, value)].add(1.0)
        self._sum.add(value)

    def observe_many(self, counts: Sequence[int], total: float) -> None:
        """Add values that were sorted into buckets before: one count per bound, then the one above all."""
        for cell, count in zip(self._cells, counts, strict=True):
            if count:
                cell.add(count)
        if total:
            self._sum.add(total)


class SeriesFiles:
    """The series of this process in `directory`. Used from one thread; `render` may run in another."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_full = False
        # The second part keeps two sets of one process apart; after a restart under the same pid (a
        # container) the files are found again and the counters go on.
        owner = f"{os.getpid()}-{next(_generation)}"
        self._counters = self._open(f"counter_{owner}.db")
        self._histograms = self._open(f"histogram_{owner}.db")
        self._gauges = self._open(f"gauge_livesum_{owner}.db")

    def counter(self, name: str, about: str, labels: dict[str, str]) -> Cell:
        """A counter; `name` ends in `_total`."""
        return self._cell(self._counters, _key(name.removesuffix("_total"), name, labels, about))

    def gauge(self, name: str, about: str, labels: dict[str, str]) -> Cell:
        """A gauge that starts at 0; a scrape shows the sum over the processes that live."""
        cell = self._cell(self._gauges, _key(name, name, labels, about))
        cell.set(0.0)
        return cell

    def histogram(
        self, name: str, about: str, labels: dict[str, str], bounds: Sequence[float]
    ) -> HistogramCells:
        """A histogram with these upper bounds."""
        cells = [
            self._cell(self._histograms, _key(name, name + "_bucket", labels | {"le": le}, about))
            for le in (*map(floatToGoString, bounds), "+Inf")
        ]
        total = self._cell(self._histograms, _key(name, name + "_sum", labels, about))
        return HistogramCells(cells, total, bounds)

    def render(self) -> bytes:
        """The text of every process that writes into the directory. One process at a time renders."""
        with (self._directory / "scrape.lock").open("wb") as lock:
            # flock, unlike a record lock, also keeps two threads of one process apart.
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._forget_the_dead()
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=str(self._directory))  # type: ignore[no-untyped-call]
            return generate_latest(registry)

    def close(self) -> None:
        """Close this process's files; they stay for the other processes' scrapes."""
        for file in (self._counters, self._histograms, self._gauges):
            file.close()

    def _open(self, name: str) -> NumberFile:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            return _open(self._directory / name)
        except OSError as error:
            self._note_full(error)
            return _Unwritten()

    def _cell(self, file: NumberFile, key: str) -> Cell:
        try:
            return Cell(file, key)
        except OSError as error:
            self._note_full(error)
            return Cell(_Unwritten(), key)

    def _note_full(self, error: OSError) -> None:
        if not self._is_full:
            self._is_full = True
            _log.error(
                "there is no room for metrics in %s (%s): new series are not shown",
                self._directory,
                error.strerror,
            )

    def _forget_the_dead(self) -> None:
        """A gauge of a process that is gone means nothing; its counters still do, so they go into the
        archive, lest a worker that keeps dying fills the folder and slows every scrape."""
        for file in self._dead("gauge_livesum"):
            file.unlink(missing_ok=True)
        for kind in ("counter", "histogram"):
            dead = self._dead(kind)
            if len(dead) > _MAX_DEAD:
                try:
                    self._archive(kind, dead)
                except OSError as error:  # the files stay as they are
                    self._note_full(error)

    def _dead(self, kind: str) -> list[Path]:
        """Files of this kind whose process is gone. The archive's owner is `0-0`, which is nobody's pid."""
        found = []
        for file in self._directory.glob(f"{kind}_*.db"):
            pid = file.stem.rpartition("_")[2].partition("-")[0]
            if pid.isdigit() and int(pid) and not _alive(int(pid)):
                found.append(file)
        return found

    def _archive(self, kind: str, dead: Sequence[Path]) -> None:
        """Add the dead files up into one. Killed between its last two steps it counts them twice."""
        archive = self._directory / f"{kind}_0-0.db"
        draft = self._directory / f"{kind}_0-0.draft"
        draft.unlink(missing_ok=True)
        totals: dict[str, float] = {}
        for file in (archive, *dead):
            if file.exists():
                for key, number in _read(file):
                    totals[key] = totals.get(key, 0.0) + number
        target = _open(draft)
        for key, number in totals.items():
            target.write_value(key, number, 0.0)
        target.close()
        draft.replace(archive)
        for file in dead:
            file.unlink(missing_ok=True)


def merge_texts(texts: Iterable[bytes]) -> bytes:
    """Several texts as one: each family once, with the first HELP and TYPE and everybody's samples.

    Repeated families are what a scraper refuses, and runners of one kind, and engines of one runner, export the same
    ones.
    """
    heads: dict[bytes, dict[bytes, bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for text in texts:
        family = b""
        for line in text.splitlines():
            if line.startswith((b"# HELP ", b"# TYPE ")):
                kind, family = line.split(b" ", 3)[1:3]
                heads.setdefault(family, {}).setdefault(kind, line)
            elif line and not line.startswith(b"#"):
                samples.setdefault(family, []).append(line)
    lines = [*samples.pop(b"", [])]
    for family, head in heads.items():
        lines += head.values()
        lines += samples.get(family, [])
    return b"".join(line + b"\n" for line in lines)


def _open(path: Path) -> NumberFile:
    return cast(NumberFile, _Numbers(path))


def _read(path: Path) -> Iterable[tuple[str, float]]:
    for key, value, _, _ in MmapedDict.read_all_values_from_file(str(path)):  # type: ignore[no-untyped-call]
        yield key, value


def _key(metric: str, name: str, labels: dict[str, str], about: str) -> str:
    return mmap_key(metric, name, list(labels), list(labels.values()), about)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
