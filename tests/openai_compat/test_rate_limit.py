"""The token bucket, alone and shared by processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_compat.config import WireConfig
from openai_compat.errors import RateLimited
from openai_compat.principals import Principal
from openai_compat.rate_limit import BucketStore, LocalBuckets, RateLimiter
from openai_compat.shared_limits import WAYS, SharedBuckets, take_token

spawn = multiprocessing.get_context("spawn")


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def granted(limiter: RateLimiter, principal: str, times: int) -> int:
    """How many of `times` requests pass."""
    passed = 0
    for _ in range(times):
        try:
            limiter.spend(Principal(name=principal))
        except RateLimited:
            continue
        passed += 1
    return passed


@given(
    rate=st.floats(0.1, 1000),
    burst=st.integers(1, 50),
    start=st.floats(0, 1e7),
    gaps=st.lists(st.floats(0, 5), max_size=200),
)
def test_no_interval_grants_more_than_rate_times_length_plus_burst(
    rate: float, burst: int, start: float, gaps: list[float]
) -> None:
    full_at = now = start
    grants: list[float] = []
    for gap in gaps:
        now += gap
        full_at, wait_s = take_token(full_at, now, 1 / rate, burst)
        if wait_s == 0.0:
            grants.append(now)

    for i, begin in enumerate(grants):
        for j in range(i, len(grants)):
            assert j - i + 1 <= rate * (grants[j] - begin) + burst + 1e-3


@given(rate=st.floats(0.1, 1000), burst=st.integers(1, 50), start=st.floats(0, 1e7))
def test_the_wait_that_is_named_is_enough_and_not_too_long(rate: float, burst: int, start: float) -> None:
    full_at = start
    for _ in range(burst):
        full_at, wait_s = take_token(full_at, start, 1 / rate, burst)
        assert wait_s == 0.0
    _, wait_s = take_token(full_at, start, 1 / rate, burst)

    assert 0.0 < wait_s <= 1 / rate + 1e-6
    assert take_token(full_at, start + wait_s, 1 / rate, burst)[1] == 0.0


def test_a_bucket_from_before_a_reboot_is_no_worse_than_empty() -> None:
    full_at, wait_s = take_token(1e9, 5.0, 0.1, 20)

    assert wait_s == pytest.approx(0.1)
    assert full_at == pytest.approx(7.0)


def local(_: Path) -> BucketStore:
    return LocalBuckets(100)


def shared(folder: Path) -> BucketStore:
    return SharedBuckets.open(folder / "rate_limit", capacity=100)


@pytest.mark.parametrize("store", [local, shared])
def test_a_burst_passes_and_then_the_rate(store: Callable[[Path], BucketStore], tmp_path: Path) -> None:
    clock = Clock()
    limiter = RateLimiter(store(tmp_path), rate_per_s=10, burst=20, clock=clock)

    assert granted(limiter, "a", 60) == 20
    clock.now += 0.5
    assert granted(limiter, "a", 60) == 5
    clock.now += 100
    assert granted(limiter, "a", 60) == 20


@pytest.mark.parametrize("store", [local, shared])
def test_principals_do_not_share_a_bucket(store: Callable[[Path], BucketStore], tmp_path: Path) -> None:
    limiter = RateLimiter(store(tmp_path), rate_per_s=1, burst=1, clock=Clock())

    assert [granted(limiter, name, 2) for name in ("a", "b", "\ud800")] == [1, 1, 1]


def test_a_refusal_names_the_wait() -> None:
    limiter = RateLimiter(LocalBuckets(1), rate_per_s=0.5, burst=1, clock=Clock())
    limiter.spend(Principal(name="a"))

    with pytest.raises(RateLimited, match="Rate limit exceeded") as caught:
        limiter.spend(Principal(name="a"))
    assert caught.value.retry_after_s == pytest.approx(2.0)


def test_a_rate_of_zero_is_no_limit() -> None:
    assert granted(RateLimiter(LocalBuckets(1), rate_per_s=0, burst=1, clock=Clock()), "a", 1000) == 1000


def test_the_table_is_bounded_and_forgets_the_longest_untouched() -> None:
    store = LocalBuckets(3)
    limiter = RateLimiter(store, rate_per_s=1, burst=1, clock=Clock())
    for name in ("a", "b", "c"):
        limiter.spend(Principal(name=name))
    granted(limiter, "a", 1)
    limiter.spend(Principal(name="d"))

    assert len(store) == 3
    assert granted(limiter, "a", 1) == 0
    assert granted(limiter, "b", 1) == 1


def test_the_shared_table_is_bounded_and_keeps_the_emptiest(tmp_path: Path) -> None:
    clock = Clock()
    store = SharedBuckets(tmp_path / "table", capacity=1)  # one set
    size = os.path.getsize(tmp_path / "table")
    limiter = RateLimiter(store, rate_per_s=1, burst=5, clock=clock)
    granted(limiter, "greedy", 10)
    for number in range(10 * WAYS):
        limiter.spend(Principal(name=f"other {number}"))

    assert granted(limiter, "greedy", 1) == 0
    assert os.path.getsize(tmp_path / "table") == size


def test_one_worker_keeps_its_buckets_in_memory_and_several_in_a_file(tmp_path: Path) -> None:
    RateLimiter.from_config(WireConfig(default_backend="fake", shared_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []

    RateLimiter.from_config(WireConfig(default_backend="fake", shared_dir=tmp_path, num_workers=2))
    assert [file.name for file in tmp_path.iterdir()] == ["rate_limit"]


def test_several_workers_need_a_folder() -> None:
    with pytest.raises(ValueError, match="shared_dir"):
        WireConfig(default_backend="fake", num_workers=2)


def spend_at_a_standing_clock(folder: Path, times: int, answer: Connection) -> None:
    """In another process: how many of `times` requests pass."""
    limiter = RateLimiter(shared(folder), rate_per_s=10, burst=20, clock=Clock())
    answer.recv()
    answer.send(granted(limiter, "a", times))


def test_four_processes_together_get_one_burst(tmp_path: Path) -> None:
    workers = []
    for _ in range(4):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=spend_at_a_standing_clock, args=(tmp_path, 500, theirs))
        process.start()
        workers.append((process, ours))
    for _, pipe in workers:
        pipe.send("go")
    total = sum(pipe.recv() for _, pipe in workers)
    for process, _ in workers:
        process.join(20)

    assert total == 20


def hold_a_set(folder: Path, answer: Connection) -> None:
    """In another process: take every set's lock and stand still."""
    store = SharedBuckets.open(folder / "rate_limit", capacity=100)
    for number in range(store.num_sets):
        assert store._lock(number)
    answer.send(os.getpid())
    answer.poll(60)  # ends with the test, however that ends


def test_a_stopped_process_does_not_stop_the_others(tmp_path: Path) -> None:
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=hold_a_set, args=(tmp_path, theirs))
    process.start()
    ours.recv()
    limiter = RateLimiter(shared(tmp_path), rate_per_s=1, burst=3, clock=Clock())
    passed = granted(limiter, "a", 10)
    process.kill()
    process.join(20)

    assert passed == 3


def test_the_table_survives_a_process_that_ends(tmp_path: Path) -> None:
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=spend_at_a_standing_clock, args=(tmp_path, 15, theirs))
    process.start()
    ours.send("go")
    first = ours.recv()
    process.join(20)
    limiter = RateLimiter(shared(tmp_path), rate_per_s=10, burst=20, clock=Clock())

    assert [first, granted(limiter, "a", 15)] == [15, 5]
