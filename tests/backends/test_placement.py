"""The placement policy: every branch of its tree, and what holds for any state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.placement import (
    Evict,
    Grown,
    Limits,
    Load,
    Reject,
    Resident,
    State,
    Tick,
    Wait,
    Want,
    decide,
    next_expiry,
)


def test_a_model_larger_than_the_budget_is_rejected_even_on_an_empty_machine():
    assert decide(Want("big", 11), State((), Limits(budget_bytes=10))) == Reject()


def test_a_model_of_exactly_the_free_bytes_is_loaded():
    state = State((Resident("a", 6),), Limits(budget_bytes=10))

    assert decide(Want("b", 4), state) == Load()


def test_without_limits_everything_is_loaded():
    state = State(tuple(Resident(f"m{i}", 1 << 40) for i in range(50)))

    assert decide(Want("b", 1 << 50), state) == Load()


def test_room_that_a_running_unload_will_give_is_waited_for_and_nothing_else_is_evicted():
    state = State((Resident("going", 6, "unloading"), Resident("idle", 4)), Limits(budget_bytes=10))

    assert decide(Want("b", 5), state) == Wait()


def test_the_model_used_longest_ago_goes_first():
    state = State(
        (Resident("new", 5, last_used=9.0), Resident("old", 5, last_used=1.0)), Limits(budget_bytes=10)
    )

    assert decide(Want("b", 5), state) == Evict(("old",))


def test_the_limit_on_the_number_of_models_evicts_too():
    state = State(
        (Resident("new", 0, last_used=9.0), Resident("old", 0, last_used=1.0)), Limits(max_loaded_models=2)
    )

    assert decide(Want("b", 0), state) == Evict(("old",))


def test_a_busy_model_is_waited_for_and_never_evicted():
    state = State((Resident("busy", 10, busy=1),), Limits(budget_bytes=10))

    assert decide(Want("b", 1), state) == Wait()


def test_nothing_is_evicted_while_even_that_would_not_make_room():
    state = State((Resident("busy", 8, busy=1), Resident("idle", 2)), Limits(budget_bytes=10))

    assert decide(Want("b", 5), state) == Wait()


def test_a_loading_model_is_not_evicted():
    state = State((Resident("coming", 10, "loading"),), Limits(budget_bytes=10))

    assert decide(Want("b", 1), state) == Wait()


def test_a_preloaded_model_outlives_one_that_was_used_later():
    state = State(
        (Resident("pinned", 5, last_used=1.0, preload=True), Resident("other", 5, last_used=9.0)),
        Limits(budget_bytes=10),
    )

    assert decide(Want("b", 5), state) == Evict(("other",))


def test_a_preloaded_model_goes_when_nothing_else_is_idle():
    state = State((Resident("pinned", 10, preload=True),), Limits(budget_bytes=10))

    assert decide(Want("b", 5), state) == Evict(("pinned",))


def test_a_small_model_stays_when_the_large_one_that_must_go_frees_enough():
    state = State(
        (Resident("small", 1, last_used=1.0), Resident("large", 9, last_used=2.0)), Limits(budget_bytes=10)
    )

    assert decide(Want("b", 9), state) == Evict(("large",))


def test_a_model_of_unknown_size_is_taken_to_fit():
    assert decide(Want("b", 0), State((Resident("a", 10),), Limits(budget_bytes=10))) == Load()


def test_a_model_that_grew_pushes_idle_others_out_but_not_itself():
    state = State((Resident("grown", 8), Resident("idle", 4)), Limits(budget_bytes=10))

    assert decide(Grown("grown"), state) == Evict(("idle",))


def test_a_model_that_grew_within_the_budget_evicts_nothing():
    state = State((Resident("grown", 6), Resident("idle", 4)), Limits(budget_bytes=10))

    assert decide(Grown("grown"), state) == Evict(())


def test_a_tick_evicts_exactly_the_idle_models_whose_time_is_over():
    state = State(
        (
            Resident("over", 1, last_used=0.0, idle_ttl_s=10.0),
            Resident("soon", 1, last_used=0.5, idle_ttl_s=10.0),
            Resident("busy", 1, last_used=0.0, idle_ttl_s=10.0, busy=1),
            Resident("forever", 1, last_used=0.0),
        )
    )

    assert decide(Tick(10.0), state) == Evict(("over",))


def test_the_next_expiry_is_the_earliest_of_the_idle_models():
    residents = (
        Resident("a", 1, last_used=5.0, idle_ttl_s=10.0),
        Resident("b", 1, last_used=1.0, idle_ttl_s=20.0),
        Resident("busy", 1, last_used=0.0, idle_ttl_s=1.0, busy=1),
    )

    assert next_expiry(residents) == 15.0
    assert next_expiry(residents[2:]) is None


@pytest.mark.parametrize("limits", [{"budget_bytes": 0}, {"max_loaded_models": 0}])
def test_limits_that_allow_nothing_are_refused(limits: dict[str, int]):
    with pytest.raises(ValueError, match="at least 1"):
        Limits(**limits)


residents = st.builds(
    Resident,
    id=st.just(""),
    size_bytes=st.integers(0, 40),
    state=st.sampled_from(["loading", "loaded", "unloading"]),
    busy=st.integers(0, 2),
    last_used=st.floats(0, 100),
    idle_ttl_s=st.none() | st.floats(0, 50),
    preload=st.booleans(),
)


@st.composite
def states(draw: st.DrawFn) -> State:
    limits = Limits(draw(st.none() | st.integers(1, 100)), draw(st.none() | st.integers(1, 5)))
    drawn = draw(st.lists(residents, max_size=6))
    return State(tuple(replace(r, id=f"m{i}") for i, r in enumerate(drawn)), limits)


def used(state: State) -> tuple[int, int]:
    return sum(r.size_bytes for r in state.residents), len(state.residents)


@given(states(), st.integers(0, 120), st.floats(0, 200))
def test_only_idle_loaded_models_are_ever_evicted(state: State, size: int, now: float):
    by_id = {r.id: r for r in state.residents}

    for event in (Want("new", size), Tick(now), *(Grown(r.id) for r in state.residents)):
        decision = decide(event, state)
        if isinstance(decision, Evict):
            assert all(by_id[i].state == "loaded" and by_id[i].busy == 0 for i in decision.ids)
            assert not (isinstance(event, Grown) and event.id in decision.ids)


@given(states(), st.integers(0, 120))
def test_a_load_is_decided_only_where_it_keeps_both_limits(state: State, size: int):
    decision = decide(Want("new", size), state)

    size_after, count_after = used(state)[0] + size, used(state)[1] + 1
    within = (state.limits.budget_bytes is None or size_after <= state.limits.budget_bytes) and (
        state.limits.max_loaded_models is None or count_after <= state.limits.max_loaded_models
    )
    assert (decision == Load()) == within


@given(states(), st.integers(0, 120))
def test_an_eviction_is_never_empty_makes_room_and_none_of_it_is_superfluous(state: State, size: int):
    decision = decide(Want("new", size), state)

    if isinstance(decision, Evict):
        staying = [r for r in state.residents if r.state != "unloading"]

        def after(kept_back: str | None) -> object:
            left = [r for r in staying if r.id not in decision.ids or r.id == kept_back]
            return decide(Want("new", size), State(tuple(left), state.limits))

        assert decision.ids
        assert after(None) == Load()
        assert all(after(victim) != Load() for victim in decision.ids)


@given(states(), st.integers(0, 120))
def test_performing_the_decisions_ends_in_a_load_or_a_rejection(state: State, size: int):
    """Evictions and unloads finish, loads and requests end: then at most three rounds are needed."""
    for _ in range(3):
        decision = decide(Want("new", size), state)
        if isinstance(decision, Load | Reject):
            break
        gone = decision.ids if isinstance(decision, Evict) else ()
        state = State(
            tuple(
                replace(r, state="loaded", busy=0)
                for r in state.residents
                if r.id not in gone and r.state != "unloading"
            ),
            state.limits,
        )
    assert isinstance(decision, Load | Reject)
    assert isinstance(decision, Reject) == (
        state.limits.budget_bytes is not None and size > state.limits.budget_bytes
    )
