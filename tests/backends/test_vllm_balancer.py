"""Which server gets a request, with the time and the chance in the test's hands."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from backends.vllm.balancer import (
    FAILURES_TO_EJECT,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    SLACK,
    Balancer,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_balancer(num_servers: int, clock: Clock | None = None, chance: float = 1.0) -> Balancer:
    return Balancer(num_servers, now=clock or Clock(), chance=lambda: chance)


def eject(balancer: Balancer, index: int) -> None:
    for _ in range(FAILURES_TO_EJECT):
        balancer.failed(index)


def test_the_least_busy_server_gets_a_request():
    assert a_balancer(3).pick(None, [2, 1, 3], range(3)) == 1


def test_equally_busy_servers_take_turns():
    balancer = a_balancer(3)

    assert {balancer.pick(None, [0, 0, 0], range(3)) for _ in range(3)} == {0, 1, 2}


def test_a_conversation_stays_with_its_server():
    balancer = a_balancer(4)
    picks = {balancer.pick(b"conversation", [1, 1, 1, 1], range(4)) for _ in range(20)}

    assert len(picks) == 1


def test_conversations_spread_over_the_servers():
    balancer = a_balancer(3)
    picks = [balancer.pick(b"%d" % i, [0, 0, 0], range(3)) for i in range(300)]

    assert min(picks.count(i) for i in range(3)) > 60


def test_a_conversation_leaves_a_server_that_is_much_busier():
    balancer = a_balancer(2)
    own = balancer.pick(b"c", [0, 0], range(2))
    assert own is not None
    running = [0, 0]

    running[own] = SLACK
    assert balancer.pick(b"c", running, range(2)) == own
    running[own] = SLACK + 1
    assert balancer.pick(b"c", running, range(2)) != own


def test_a_lost_server_moves_only_its_own_conversations():
    balancer = a_balancer(4)
    keys = [b"%d" % i for i in range(100)]
    before = {key: balancer.pick(key, [0] * 4, range(4)) for key in keys}
    after = {key: balancer.pick(key, [0] * 4, {0, 1, 3}) for key in keys}

    assert all(after[key] == before[key] for key in keys if before[key] != 2)


def test_failures_in_a_row_put_a_server_out():
    balancer = a_balancer(2)
    eject(balancer, 0)

    assert balancer.is_out(0)
    assert [balancer.pick(None, [0, 9], range(2)) for _ in range(5)] == [1] * 5


def test_failures_with_a_success_between_them_do_not():
    balancer = a_balancer(2)
    for _ in range(5):
        balancer.failed(0)
        balancer.failed(0)
        balancer.succeeded(0)

    assert not balancer.is_out(0)


def test_after_the_pause_one_request_tries_the_server():
    clock = Clock()
    balancer = a_balancer(2, clock)
    eject(balancer, 0)
    clock.now += FIRST_PAUSE_S

    assert balancer.pick(None, [0, 5], range(2)) == 0
    assert balancer.pick(None, [1, 5], range(2)) == 1


def test_a_success_brings_it_back_for_all():
    clock = Clock()
    balancer = a_balancer(2, clock)
    eject(balancer, 0)
    clock.now += FIRST_PAUSE_S
    balancer.pick(None, [0, 5], range(2))
    balancer.succeeded(0)

    assert [balancer.pick(None, [0, 5], range(2)) for _ in range(3)] == [0] * 3


def test_a_client_that_leaves_the_trial_leaves_it_to_the_next():
    clock = Clock()
    balancer = a_balancer(2, clock)
    eject(balancer, 0)
    clock.now += FIRST_PAUSE_S
    balancer.pick(None, [0, 5], range(2))
    balancer.left(0)

    assert balancer.pick(None, [0, 5], range(2)) == 0


def test_each_failed_trial_doubles_the_pause_up_to_the_longest():
    clock = Clock()
    balancer = a_balancer(2, clock)
    eject(balancer, 0)
    pauses = []
    for _ in range(9):
        begun = clock.now
        while balancer.pick(None, [0, 5], range(2)) != 0:
            clock.now += 0.25
        pauses.append(clock.now - begun)
        balancer.failed(0)

    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_chance_shortens_a_pause_by_up_to_half():
    clock = Clock()
    balancer = a_balancer(2, clock, chance=0.0)
    eject(balancer, 0)
    clock.now += FIRST_PAUSE_S / 2

    assert balancer.pick(None, [0, 5], range(2)) == 0


def test_a_sign_of_life_ends_the_pause():
    balancer = a_balancer(2)
    eject(balancer, 0)
    balancer.invite(0)

    assert balancer.pick(None, [0, 5], range(2)) == 0
    assert balancer.is_out(0)


def test_where_all_are_out_the_one_whose_pause_ends_first_is_tried():
    clock = Clock()
    balancer = a_balancer(2, clock)
    eject(balancer, 1)
    clock.now += 0.5
    eject(balancer, 0)

    assert balancer.pick(None, [0, 0], range(2)) == 1


def test_nobody_to_ask_is_nobody():
    assert a_balancer(2).pick(b"c", [0, 0], ()) is None


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 5),
    st.lists(
        st.tuples(st.sampled_from(["ok", "fail", "left", "wait", "invite"]), st.binary(max_size=2)),
        max_size=60,
    ),
)
def test_whatever_happens_somebody_who_may_be_asked_is_picked(num: int, steps: list[tuple[str, bytes]]):
    clock = Clock()
    balancer = a_balancer(num, clock)
    for what, key in steps:
        among = {key[0] % num} if key[:1] and key[0] < 40 else set(range(num))
        picked = balancer.pick(key or None, [0] * num, among)
        assert picked in among
        assert picked is not None
        if what == "wait":
            clock.now += 3.0
        if what == "invite":
            balancer.invite(picked)
        {"ok": balancer.succeeded, "fail": balancer.failed}.get(what, balancer.left)(picked)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 5), st.data())
def test_a_request_without_a_conversation_never_goes_to_a_busier_one(num: int, data: st.DataObject):
    running = data.draw(st.lists(st.integers(0, 50), min_size=num, max_size=num))
    balancer = a_balancer(num)
    picked = balancer.pick(None, running, range(num))
    assert picked is not None

    assert running[picked] == min(running)
