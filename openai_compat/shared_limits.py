"""Limits that several gateway workers of one host keep together, in files of the instance's folder.

`SharedSlots`: one byte of a file per slot, held by a POSIX record lock. The kernel drops the locks of a
process that ends, however it ends, so a worker that is killed gives its slots back without anybody noticing
its death.

`SharedOwnSlots`: the same for the slots that a single principal has.

`SharedBuckets`: a table of token buckets in a shared memory map, a set-associative cache: a key may stand in
any of the `WAYS` entries of its own set, so a lookup reads one set and there are no deletions to keep track
of.

Trap: closing *any* descriptor of a file drops all record locks that the process holds on it. Each file is
therefore opened once per process (`open`) and never closed.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import threading
from pathlib import Path
from typing import Final

from openai_compat.reserve import reserve

WAYS = 8
_SET = struct.Struct("<" + "16sd" * WAYS)
_ENTRY = struct.Struct("<16sd")
_LOCK_ATTEMPTS = 500
_EMPTY = bytes(16)
_SLACK_S = 1e-6

_open_slots: dict[Path, SharedSlots] = {}
_open_own_slots: dict[Path, SharedOwnSlots] = {}
_open_buckets: dict[Path, SharedBuckets] = {}
_opening = threading.Lock()


def take_token(full_at: float, now: float, interval_s: float, burst: int) -> tuple[float, float]:
    """Take one token of a bucket that is full at `full_at`; pure.

    `interval_s` refills one token, `burst` tokens make a full bucket. Returns when the bucket is full after
    this, and how long to wait: 0.0 means the token was there. A `full_at` farther off than an empty bucket
    needs (a file from before a reboot) counts as empty.
    """
    capacity_s = burst * interval_s
    full_at = min(max(full_at, now), now + capacity_s)
    wait_s = full_at + interval_s - (now + capacity_s)
    # The slack absorbs rounding, which at an uptime of months is about 1e-9 s; it is not carried on.
    if wait_s > _SLACK_S:
        return full_at, wait_s
    return full_at + interval_s, 0.0


class SharedSlots:
    """`size` slots shared by every process that opened `path`. Safe from one thread."""

    def __init__(self, path: Path, size: int) -> None:
        self._fd = _open_private(path, max(1, size))
        self._size = size
        self._held: set[int] = set()
        # Workers start at different places, so that they rarely try the same byte first.
        self._next = os.getpid() % size if size else 0

    @classmethod
    def open(cls, path: Path, size: int) -> SharedSlots:
        """The one object of this process for `path`."""
        with _opening:
            key = path.absolute()
            found = _open_slots.get(key)
            if found is None:
                found = _open_slots[key] = cls(path, size)
            return found

    def try_acquire(self) -> int | None:
        """A free slot's number, or None at once. About 1 µs a slot that is taken by somebody else."""
        for step in range(self._size):
            number = (self._next + step) % self._size
            if number in self._held:
                continue  # the kernel would grant a process its own lock again
            if _try_lock(self._fd, number):
                self._held.add(number)
                self._next = number
                return number
        return None

    def release(self, number: int) -> None:
        """Give the slot back. A number that is not held is ignored."""
        if number in self._held:
            self._held.discard(number)
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, number)


class SharedOwnSlots:
    """Slots of each principal, shared by every process that opened `path`. Safe from one thread.

    A lock may lie beyond the end of its file, so a principal's slots are bytes of an empty file whose place follows
    from his name; two names share a place in one case of 2^40.
    """

    MAX_LIMIT: Final = 1 << 14

    def __init__(self, path: Path) -> None:
        self._fd = _open_private(path, 0)
        self._held: set[int] = set()

    @classmethod
    def open(cls, path: Path) -> SharedOwnSlots:
        """The one object of this process for `path`."""
        with _opening:
            key = path.absolute()
            found = _open_own_slots.get(key)
            if found is None:
                found = _open_own_slots[key] = cls(path)
            return found

    def try_acquire(self, principal: str, limit: int) -> int | None:
        """The number of a free slot below `limit` (at most `MAX_LIMIT`), or None at once."""
        first = self._first(principal)
        for number in range(limit):
            if first + number not in self._held and _try_lock(self._fd, first + number):
                self._held.add(first + number)
                return number
        return None

    def release(self, principal: str, number: int) -> None:
        """Give it back. A number that is not held is ignored."""
        offset = self._first(principal) + number
        if offset in self._held:
            self._held.discard(offset)
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, offset)

    def _first(self, principal: str) -> int:
        digest = hashlib.blake2b(principal.encode("utf-8", "replace"), digest_size=5).digest()
        return int.from_bytes(digest, "little") * self.MAX_LIMIT


class SharedBuckets:
    """Token buckets shared by every process that opened `path`, room for at least `capacity` of them."""

    def __init__(self, path: Path, *, capacity: int) -> None:
        self.num_sets = max(1, -(-2 * capacity // WAYS))
        size = self.num_sets * _SET.size
        self._fd = _open_private(path, size)
        self._map = mmap.mmap(self._fd, size)

    @classmethod
    def open(cls, path: Path, *, capacity: int) -> SharedBuckets:
        """The one object of this process for `path`."""
        with _opening:
            key = path.absolute()
            found = _open_buckets.get(key)
            if found is None:
                found = _open_buckets[key] = cls(path, capacity=capacity)
            return found

    def take(self, key: str, now: float, interval_s: float, burst: int) -> float:
        """Take one token of `key`: 0.0 if there was one, else the seconds until there is. `now` is
        `time.monotonic()`, which is one clock for all processes of a host."""
        digest = hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=16).digest()
        number = int.from_bytes(digest[:8], "little") % self.num_sets
        locked = self._lock(number)
        try:
            return self._take(digest, number, now, interval_s, burst)
        finally:
            if locked:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, number)

    def _take(self, digest: bytes, number: int, now: float, interval_s: float, burst: int) -> float:
        base = number * _SET.size
        fields = _SET.unpack_from(self._map, base)
        names, times = fields[::2], fields[1::2]
        if digest in names:
            way = names.index(digest)
            full_at = times[way]
        else:
            # An unused entry, a full bucket (full is the same as never seen), else the fullest.
            way = names.index(_EMPTY) if _EMPTY in names else times.index(min(times))
            full_at = now
        full_at, wait_s = take_token(full_at, now, interval_s, burst)
        _ENTRY.pack_into(self._map, base + way * _ENTRY.size, digest, full_at)
        return wait_s

    def _lock(self, number: int) -> bool:
        """Hold the set's lock. The event loop must not block on a process that was stopped while it held the
        lock (held for about 5 µs otherwise), so after about 1 ms we go on without it: one update may be
        lost."""
        return any(_try_lock(self._fd, number) for _ in range(_LOCK_ATTEMPTS))


def _try_lock(fd: int, offset: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
    except (BlockingIOError, PermissionError):  # EAGAIN, or EACCES as POSIX also allows
        return False
    return True


def _open_private(path: Path, size: int) -> int:
    """Open or create `path` with at least `size` bytes, for this user only. Raises: OSError where there is no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if size:
        reserve(fd, size)
    return fd
