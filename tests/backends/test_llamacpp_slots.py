"""The bookkeeping of the KV cache against a memory that remembers what each position really holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backends.llamacpp.slots import NUM_RECOMPUTED, Slot, SlotTable, common_prefix_length


class FakeMemory:
    """A `KvMemory` that holds, per slot, the tokens whose keys and values would be there."""

    def __init__(self, *, can_truncate: bool = True) -> None:
        self.content: dict[int, list[int]] = {}
        self.can_truncate = can_truncate
        self.copies: list[tuple[int, int, int]] = []

    def truncate(self, slot_id: int, length: int) -> bool:
        held = self.content.setdefault(slot_id, [])
        if not self.can_truncate and 0 < length < len(held):
            return False
        del held[length:]
        return True

    def copy(self, source_id: int, target_id: int, length: int) -> bool:
        self.copies.append((source_id, target_id, length))
        self.content[target_id] = list(self.content[source_id])
        return self.truncate(target_id, length)

    def compute(self, slot_id: int, tokens: Sequence[int]) -> None:
        self.content.setdefault(slot_id, []).extend(tokens)


def a_table(memory: FakeMemory | None = None, **fields: Any) -> SlotTable:
    defaults: dict[str, Any] = {
        "num_slots": 4,
        "num_cells": 1000,
        "is_unified": False,
        "min_copied_tokens": 4,
    }
    return SlotTable(memory or FakeMemory(), **{**defaults, **fields})


def run(
    table: SlotTable, tokens: Sequence[int], *, exact: bool = True, keep: bool = False
) -> tuple[Slot, int]:
    """Claim, compute what is missing, and release unless `keep`."""
    slot, reused = table.claim(tokens, exact=exact)
    missing = list(tokens[reused:])
    memory = table._memory
    assert isinstance(memory, FakeMemory)
    memory.compute(slot.id, missing)
    table.extend(slot, missing, exact=exact)
    if not keep:
        table.release(slot)
    return slot, reused


def conversation(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [
        ([], [], 0),
        ([1], [], 0),
        ([1, 2], [1, 2], 2),
        ([1, 2, 3], [1, 2, 4, 5], 2),
        ([1], [2], 0),
        ([1], [1, 2], 1),
    ],
)
def test_a_common_prefix_is_measured(a: list[int], b: list[int], length: int):
    assert common_prefix_length(a, b) == length


def test_nothing_is_reused_from_an_empty_table():
    assert a_table().longest_prefix([1, 2, 3], exact=False) == (None, 0)


@pytest.mark.parametrize("is_busy", [True, False])
def test_the_longest_prefix_is_found_in_busy_and_idle_slots(is_busy: bool):
    table = a_table()
    run(table, conversation(0, 10), keep=True)
    longer, _ = run(table, [*conversation(0, 20), 99], keep=is_busy)

    assert table.longest_prefix(conversation(0, 50), exact=False) == (longer, 20)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 10])
def test_the_last_two_tokens_of_a_prompt_are_always_computed(num_tokens: int):
    table = a_table()
    tokens = conversation(0, num_tokens)
    run(table, tokens)

    assert table.longest_prefix(tokens, exact=False)[1] == max(0, num_tokens - NUM_RECOMPUTED)


def test_only_exact_tokens_are_reused_where_the_text_must_repeat():
    table = a_table()
    slot, _ = table.claim(conversation(0, 30), exact=True)
    table.extend(slot, conversation(0, 12), exact=True)
    table.extend(slot, conversation(12, 1), exact=False)
    table.extend(slot, conversation(13, 17), exact=True)

    assert table.longest_prefix(conversation(0, 40), exact=True) == (slot, 12)
    assert table.longest_prefix(conversation(0, 40), exact=False) == (slot, 30)


def test_what_is_cut_away_is_exact_no_more():
    table = a_table()
    run(table, conversation(0, 20))
    slot, reused = run(table, [*conversation(0, 12), 99, 98, 97], exact=False)

    assert reused == 12
    assert slot.num_exact == 12


def test_a_copy_is_as_exact_as_its_source():
    table = a_table()
    source, _ = table.claim(conversation(0, 30), exact=True)
    table.extend(source, conversation(0, 10), exact=True)
    table.extend(source, conversation(10, 20), exact=False)
    copy, reused = table.claim(conversation(0, 30), exact=False)

    assert reused == 28
    assert copy.num_exact == 10


def test_a_free_slot_that_holds_the_prefix_is_taken_as_it_is():
    memory = FakeMemory()
    table = a_table(memory)
    first, _ = run(table, conversation(0, 20))
    second, reused = run(table, conversation(0, 30))

    assert (second, reused) == (first, 20)
    assert memory.copies == []


def test_a_prefix_in_a_busy_slot_is_copied():
    memory = FakeMemory()
    table = a_table(memory)
    source, _ = run(table, conversation(0, 20), keep=True)
    target, reused = table.claim(conversation(0, 30), exact=True)

    assert reused == 20
    assert memory.copies == [(source.id, target.id, 20)]
    assert source.tokens == conversation(0, 20)


def test_a_short_common_prefix_does_not_destroy_a_long_conversation_while_a_slot_is_free():
    memory = FakeMemory()
    table = a_table(memory)
    long, _ = run(table, conversation(0, 100))
    other, reused = run(table, [*conversation(0, 10), 999, 998, 997])

    assert other is not long
    assert reused == 10
    assert long.tokens == conversation(0, 100)


def test_the_last_free_slot_is_cut_to_the_common_prefix():
    table = a_table(num_slots=1)
    long, _ = run(table, conversation(0, 100))
    slot, reused = run(table, [*conversation(0, 10), 999, 998, 997])

    assert (slot, reused) == (long, 10)


def test_a_prefix_too_short_to_pay_is_computed_again():
    memory = FakeMemory()
    table = a_table(memory)
    run(table, conversation(0, 20), keep=True)
    _, reused = table.claim([0, 1, 2, 99, 98, 97], exact=True)

    assert reused == 0
    assert memory.copies == []


def test_a_short_prefix_that_need_not_be_copied_is_reused():
    table = a_table()
    run(table, [0, 1, 2, 3])
    _, reused = table.claim([0, 1, 2, 99, 98], exact=True)

    assert reused == 3


def test_an_empty_slot_is_taken_before_any_cached_prefix():
    table = a_table()
    run(table, conversation(0, 20))
    slot, _ = run(table, conversation(100, 20))

    assert slot.id == 1


def test_the_slot_that_was_used_longest_ago_is_emptied_first():
    table = a_table()
    slots = [run(table, conversation(100 * i, 20))[0] for i in range(4)]
    run(table, conversation(0, 21))
    slot, _ = run(table, conversation(900, 20))

    assert slot is slots[1]


def test_a_claimed_slot_holds_the_prefix_and_nothing_else():
    memory = FakeMemory()
    table = a_table(memory)
    run(table, conversation(0, 20), keep=True)
    run(table, conversation(500, 30))
    slot, reused = table.claim(conversation(0, 40), exact=True)

    assert memory.content[slot.id] == slot.tokens == conversation(0, reused)


def test_a_busy_slot_is_never_claimed():
    table = a_table(num_slots=2)
    first, _ = run(table, conversation(0, 20), keep=True)
    second, _ = run(table, conversation(0, 20), keep=True)

    assert first is not second
    assert not table.has_free_slot


def test_memory_that_cannot_be_cut_is_computed_from_the_start():
    memory = FakeMemory(can_truncate=False)
    table = a_table(memory)
    run(table, conversation(0, 20))
    slot, reused = table.claim([*conversation(0, 15), 99, 98, 97], exact=True)

    assert reused == 0
    assert memory.content[slot.id] == slot.tokens == []


def test_memory_that_cannot_be_cut_is_reused_whole():
    table = a_table(FakeMemory(can_truncate=False))
    first, _ = run(table, conversation(0, 20))
    slot, reused = table.claim(conversation(0, 30), exact=True)

    assert (slot, reused) == (first, 20)


def test_memory_that_can_only_be_copied_whole_is_computed_from_the_start():
    memory = FakeMemory(can_truncate=False)
    table = a_table(memory)
    run(table, conversation(0, 20), keep=True)
    slot, reused = table.claim([*conversation(0, 15), 99, 98, 97], exact=True)

    assert reused == 0
    assert memory.content[slot.id] == slot.tokens == []


def test_split_slots_never_run_out_of_cells():
    table = a_table(num_cells=40, is_unified=False)
    for i in range(4):
        run(table, conversation(100 * i, 10), keep=True)

    assert table.free_cells == 40
    assert table.evict_idle_for(40)


def test_a_shared_prefix_occupies_its_cells_once():
    table = a_table(num_cells=100, is_unified=True)
    run(table, conversation(0, 40), keep=True)
    run(table, conversation(0, 42), keep=True)

    assert table.free_cells == 100 - 40 - 2


def test_cells_are_free_when_the_last_of_their_owners_goes():
    table = a_table(num_cells=100, is_unified=True)
    first, _ = run(table, conversation(0, 40), keep=True)
    second, _ = run(table, conversation(0, 42), keep=True)
    table.evict(first)
    after_one = table.free_cells
    table.evict(second)

    assert (after_one, table.free_cells) == (58, 100)


def test_cached_prefixes_go_in_the_order_of_their_last_use():
    table = a_table(num_cells=100, is_unified=True)
    slots = [run(table, conversation(100 * i, 25))[0] for i in range(3)]
    run(table, conversation(0, 27))

    assert table.evict_idle_for(30)
    assert [len(slot.tokens) for slot in slots] == [27, 0, 25]


def test_what_runs_is_not_evicted():
    table = a_table(num_cells=100, is_unified=True)
    busy, _ = run(table, conversation(0, 60), keep=True)
    run(table, conversation(500, 20))

    assert not table.evict_idle_for(41)
    assert len(busy.tokens) == 60
    assert table.free_cells == 40


def test_an_evicted_slot_can_be_claimed_again():
    table = a_table(num_slots=1)
    slot, _ = run(table, conversation(0, 20), keep=True)
    table.evict(slot)

    assert table.claim(conversation(0, 20), exact=True) == (slot, 0)


def test_after_a_failed_step_what_was_not_recorded_is_dropped():
    memory = FakeMemory()
    table = a_table(memory)
    slot, _ = run(table, conversation(0, 20), keep=True)
    memory.compute(slot.id, [99, 98])
    table.truncate_to_known(slot)

    assert memory.content[slot.id] == slot.tokens == conversation(0, 20)


def test_when_nothing_can_be_trusted_everything_is_forgotten_and_slots_stay_with_their_users():
    table = a_table(num_cells=100, is_unified=True)
    busy, _ = run(table, conversation(0, 20), keep=True)
    run(table, conversation(200, 20))
    table.forget_all()

    assert table.free_cells == 100
    assert all(not slot.tokens for slot in table.slots)
    assert busy.is_busy


def test_a_larger_memory_takes_the_place_of_the_old_one():
    table = a_table()
    slot, _ = run(table, conversation(0, 20))
    larger = FakeMemory()
    larger.content[slot.id] = conversation(0, 20)
    table.move_to(larger, num_cells=4000)
    again, reused = table.claim([*conversation(0, 15), 99, 98, 97], exact=True)

    assert (again, reused) == (slot, 15)
    assert larger.content[slot.id] == conversation(0, 15)
    assert table.free_cells == 4000


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=24)


class Slots(RuleBasedStateMachine):
    """Any order of what an engine may do. Few different tokens, so that prefixes are shared all the time."""

    @initialize(
        is_unified=st.booleans(),
        num_slots=st.integers(1, 4),
        min_copied_tokens=st.integers(0, 6),
        can_truncate=st.booleans(),
    )
    def begin(self, is_unified: bool, num_slots: int, min_copied_tokens: int, can_truncate: bool) -> None:
        self.is_unified = is_unified
        self.num_cells = 60
        self.memory = FakeMemory(can_truncate=can_truncate)
        self.table = a_table(
            self.memory,
            num_slots=num_slots,
            num_cells=self.num_cells,
            is_unified=is_unified,
            min_copied_tokens=min_copied_tokens,
        )
        self.wanted: dict[int, list[int]] = {}

    def compute(self, slot: Slot, count: int, *, exact: bool) -> None:
        done = len(slot.tokens)
        tokens = self.wanted[slot.id][done : done + count]
        if self.table.evict_idle_for(len(tokens)):
            self.memory.compute(slot.id, tokens)
            self.table.extend(slot, tokens, exact=exact)

    @precondition(lambda self: self.table.has_free_slot)
    @rule(tokens=TOKENS, exact=st.booleans())
    def claim(self, tokens: list[int], exact: bool) -> None:
        busy = {slot.id for slot in self.table.slots if slot.is_busy}
        slot, reused = self.table.claim(tokens, exact=exact)
        self.wanted[slot.id] = tokens
        assert slot.id not in busy
        assert slot.is_busy
        assert slot.tokens == tokens[:reused]
        assert reused <= max(0, len(tokens) - NUM_RECOMPUTED)
        assert not exact or slot.num_exact >= reused

    @rule(data=st.data(), count=st.integers(1, 12), exact=st.booleans())
    def step(self, data: st.DataObject, count: int, exact: bool) -> None:
        if busy := [slot for slot in self.table.slots if slot.is_busy]:
            self.compute(data.draw(st.sampled_from(busy)), count, exact=exact)

    @rule(data=st.data(), token=st.integers(0, 2))
    def generate(self, data: st.DataObject, token: int) -> None:
        if busy := [slot for slot in self.table.slots if slot.is_busy]:
            self.wanted[data.draw(st.sampled_from(busy)).id].append(token)

    @rule(data=st.data(), keeps=st.booleans())
    def end(self, data: st.DataObject, keeps: bool) -> None:
        if busy := [slot for slot in self.table.slots if slot.is_busy]:
            slot = data.draw(st.sampled_from(busy))
            (self.table.release if keeps else self.table.evict)(slot)

    @rule(count=st.integers(0, 60))
    def make_room(self, count: int) -> None:
        if self.table.evict_idle_for(count):
            assert self.table.free_cells >= count
        else:
            assert not any(slot.tokens for slot in self.table.slots if not slot.is_busy)

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.table.slots))
        self.memory.compute(slot.id, [7])
        self.table.truncate_to_known(slot)

    @rule()
    def forget_all(self) -> None:
        self.table.forget_all()

    @invariant()
    def the_table_says_what_the_memory_holds(self) -> None:
        for slot in self.table.slots:
            assert slot.tokens == self.memory.content.get(slot.id, [])
            assert 0 <= slot.num_exact <= len(slot.tokens)

    @invariant()
    def what_runs_holds_the_beginning_of_what_it_should(self) -> None:
        for slot in self.table.slots:
            if slot.is_busy:
                assert slot.tokens == self.wanted[slot.id][: len(slot.tokens)]

    @invariant()
    def cells_are_owned_by_whoever_holds_their_token(self) -> None:
        held = [cell for slot in self.table.slots for cell in slot.cells]
        if self.is_unified:
            assert all(len(slot.cells) == len(slot.tokens) for slot in self.table.slots)
            assert self.table.free_cells == self.num_cells - len(set(held))
            assert 0 <= self.table.free_cells <= self.num_cells
        else:
            assert held == []


TestSlotsInAnyOrder = Slots.TestCase
TestSlotsInAnyOrder.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def running(table: SlotTable) -> list[int]:
    return [slot.id for slot in table.slots if slot.is_busy]


def test_sequences_that_come_and_go_stay_side_by_side() -> None:
    table = a_table(FakeMemory(), num_slots=8, num_cells=800, is_unified=False, min_copied_tokens=4)
    slots = [table.claim([i] * 10, exact=False)[0] for i in range(4)]

    table.release(slots[1])
    table.claim([9] * 10, exact=False)

    assert running(table) == [0, 1, 2, 3]


def test_a_conversation_in_the_way_moves_to_an_idle_slot() -> None:
    memory = FakeMemory()
    table = a_table(memory, num_slots=4, num_cells=800, is_unified=False, min_copied_tokens=4)
    conversation = list(range(100))
    slots = [table.claim(tokens, exact=False)[0] for tokens in ([1] * 10, conversation, [2] * 10)]
    for slot, tokens in zip(slots, ([1] * 10, conversation, [2] * 10), strict=True):
        memory.compute(slot.id, tokens)
        table.extend(slot, tokens, exact=False)
    table.release(slots[1])

    taken, _ = table.claim([7] * 10, exact=False)
    kept, reused = table.longest_prefix([*conversation, 5, 5], exact=False)

    assert taken is slots[1]
    assert kept is not None
    assert kept is not taken
    assert reused == len(conversation)
