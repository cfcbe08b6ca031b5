"""An engine that has requests and gets nothing done is noticed, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from backends.vllm.pulse import LOOKS, signs_in, until_stuck

IDLE = b'vllm:prompt_tokens_total{engine="0"} 7.0\nvllm:request_success_total{engine="0"} 1.0\n'


@dataclass
class Look:
    """What one look finds."""

    running: int = 1
    received: int = 5
    text: bytes = IDLE


class Engine:
    """Finds one thing after another, the last again and again."""

    def __init__(self, looks: Sequence[Look]) -> None:
        self._looks = list(looks)
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        if len(self.slept_s) > 200:
            raise TimeoutError
        if len(self.slept_s) > 1 and len(self._looks) > 1:
            self._looks.pop(0)

    @property
    def running(self) -> int:
        return self._looks[0].running

    @property
    def received(self) -> int:
        return self._looks[0].received

    async def metrics(self) -> bytes:
        return self._looks[0].text


async def looks_until_stuck(*looks: Look) -> int | None:
    """How many it took; None: for ever."""
    engine = Engine(looks)
    try:
        await until_stuck(engine, 30.0, engine.sleep)
    except TimeoutError:
        return None
    assert set(engine.slept_s) == {30.0 / LOOKS}
    return len(engine.slept_s)


async def test_nothing_but_waiting_requests_for_the_whole_time_is_a_hang():
    assert await looks_until_stuck(Look()) == LOOKS + 1


async def test_a_server_that_does_not_answer_is_one_too():
    assert await looks_until_stuck(Look(text=b"")) == LOOKS + 1


async def test_requests_that_come_and_leave_are_no_progress():
    more = IDLE.replace(b"1.0", b"2.0")

    assert await looks_until_stuck(*[Look(), Look(text=more)] * LOOKS, Look()) == LOOKS + 1


@pytest.mark.parametrize(
    "moved",
    [Look(received=6), Look(text=IDLE.replace(b"7.0", b"8.0")), Look(text=b"vllm:kv_cache_usage_perc{} 0.1")],
)
async def test_any_progress_begins_the_count_anew(moved: Look):
    assert await looks_until_stuck(*[Look()] * LOOKS, moved) == LOOKS + LOOKS + 1


async def test_without_requests_there_is_nothing_to_get_done():
    assert await looks_until_stuck(Look(running=0)) is None


async def test_pauses_between_requests_that_get_nothing_do_not_begin_the_count_anew():
    looks = [Look(), Look(running=0)] * (LOOKS + 1)

    assert await looks_until_stuck(*looks) == 2 * LOOKS + 1


async def test_an_engine_that_does_not_tell_is_not_judged():
    assert await looks_until_stuck(Look(text=b"vllm:x 1.0\n")) is None
    assert signs_in(b"python_info 1\n") is None
