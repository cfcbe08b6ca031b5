"""Which sequence's tokens lie where in the KV cache, and what of them a new prompt can reuse. No engine in here.

A slot is a llama.cpp sequence id. Part of what it holds is *exact*: computed so that computing it again gives the same
bits. llama.cpp's CPU kernels give a token the same values whatever else is in the batch, unless it is the only one of
its sequence in a pass: then another attention kernel takes it. A request that must give the same text whether or not
its prefix was cached reuses exact tokens only (docs/decisions/same-text-from-a-cached-prefix.md).

What a finished sequence left in its slot stays as prefix cache until the place is
needed. With a unified cache all slots draw from one pool of cells and a shared prefix occupies its cells once; with
split streams every slot has a fixed share of its own, and a prefix is copied between slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

NUM_RECOMPUTED = 2
"""Tokens at the end of a prompt that are computed even when all of it is cached."""

MIN_RESCUED_TOKENS = 64
"""A cached conversation shorter than this is computed again rather than moved out of the way."""


class KvMemory(Protocol):
    """What the bookkeeping asks of the engine's memory. Positions are token indexes from 0."""

    def truncate(self, slot_id: int, length: int) -> bool:
        """Drop everything from position `length` on. False: this kind of memory can only be dropped whole."""

    def copy(self, source_id: int, target_id: int, length: int) -> bool:
        """Make the target hold the first `length` positions of the source, and nothing else. False: this kind of
        memory can only be copied whole, and what the target holds now must be dropped."""


class Slot:
    """One place for a running sequence. `tokens[i]` is the token whose keys and values stand at position i."""

    __slots__ = ("cells", "id", "is_busy", "last_used", "num_exact", "tokens")

    def __init__(self, slot_id: int) -> None:
        self.id = slot_id
        self.tokens: list[int] = []
        self.cells: list[int] = []
        self.num_exact = 0
        """Leading tokens that are exact."""
        self.is_busy = False
        self.last_used = 0


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading items are equal. Halves the range with C-speed slice comparisons."""
    high = min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class SlotTable:
    """All slots of one context.

    `num_cells` is the whole cache in tokens. `is_unified` says whether the slots share it; otherwise each has its
    equal part. `min_copied_tokens`: a prefix shorter than this is computed again rather than copied.
    """

    def __init__(
        self, memory: KvMemory, *, num_slots: int, num_cells: int, is_unified: bool, min_copied_tokens: int
    ) -> None:
        self._memory = memory
        self.is_unified = is_unified
        self._min_copied_tokens = min_copied_tokens
        self._num_cells = num_cells
        self._owners: Counter[int] = Counter()
        self._next_cell = 0
        self._clock = 0
        self.slots = [Slot(i) for i in range(num_slots)]

    @property
    def has_free_slot(self) -> bool:
        return any(not slot.is_busy for slot in self.slots)

    @property
    def free_cells(self) -> int:
        """Cells nobody holds, cached prefixes counted as held. Without a unified cache there is nothing to run out
        of, since a sequence ends where its own share ends."""
        return self._num_cells - len(self._owners) if self.is_unified else self._num_cells

    def longest_prefix(self, tokens: Sequence[int], *, exact: bool) -> tuple[Slot | None, int]:
        """The slot, busy or not, that holds most of the beginning of `tokens`, and how much of it may be reused.

        The last two tokens never count: the last must be computed, or there would be no logits, and alone it would not
        be computed exactly.
        """
        best: Slot | None = None
        length = 0
        for slot in self.slots:
            if len(slot.tokens) > length:
                shared = self._shared(slot, tokens, exact=exact)
                if shared > length:
                    best, length = slot, shared
        return best, length

    @staticmethod
    def _shared(slot: Slot, tokens: Sequence[int], *, exact: bool) -> int:
        held = slot.num_exact if exact else len(slot.tokens)
        return max(0, min(common_prefix_length(slot.tokens, tokens), len(tokens) - NUM_RECOMPUTED, held))

    def claim(self, tokens: Sequence[int], *, exact: bool) -> tuple[Slot, int]:
        """Take a free slot for a sequence that begins with `tokens`; give the slot and how many of them it holds now.

        1. With split streams: the free slot that leaves the busy ones in the fewest runs of neighbouring ids. One
           pass of llama.cpp takes neighbours only, so eight sequences in every other slot would be eight passes.
        2. Of equals, the one that holds the longest prefix, unless most of what it holds would be lost; else the least
           recently used.
        3. Another's conversation that lies there moves to an older idle slot, if there is one.
        4. The prefix the slot happens to hold stays when another's is not much longer (prompts of one template all
           begin alike); else the longest is copied into it.

        There must be a free slot.
        """
        free = [slot for slot in self.slots if not slot.is_busy]
        source, length = self.longest_prefix(tokens, exact=exact)
        extends_source = source is not None and not source.is_busy and length * 2 >= len(source.tokens)

        def rank(slot: Slot) -> tuple[int, bool, bool, int]:
            return (
                self._added_runs(slot),
                not (extends_source and slot is source),
                bool(slot.tokens),
                slot.last_used,
            )

        seat = min(free, key=rank)
        own = length if seat is source else self._shared(seat, tokens, exact=exact)
        self._rescue(seat, own, [slot for slot in free if slot is not seat and slot is not source])
        if source is None or seat is source or length - own < self._min_copied_tokens:
            length = self._truncate(seat, own)
        else:
            self._forget(seat)
            if not self._copy(source, seat, length):
                length = 0
            elif extends_source:
                # The seat will hold all this and more: of the idle slots, that one is missed least.
                source.last_used = 0
        seat.is_busy = True
        self.touch(seat)
        return seat, length

    def _added_runs(self, slot: Slot) -> int:
        if self.is_unified:
            return 0
        neighbours = (slot.id - 1, slot.id + 1)
        return 1 - sum(0 <= i < len(self.slots) and self.slots[i].is_busy for i in neighbours)

    def _rescue(self, seat: Slot, num_kept: int, idle: list[Slot]) -> None:
        """Move what the seat holds beyond `num_kept` tokens to the slot among `idle` that is missed least."""
        if self.is_unified or len(seat.tokens) - num_kept < MIN_RESCUED_TOKENS:
            return
        older = [slot for slot in idle if not slot.tokens or slot.last_used < seat.last_used]
        if older:
            refuge = min(older, key=lambda slot: (bool(slot.tokens), slot.last_used))
            self._forget(refuge)
            if self._copy(seat, refuge, len(seat.tokens)):
                refuge.last_used = seat.last_used

    def _copy(self, source: Slot, target: Slot, length: int) -> bool:
        if not self._memory.copy(source.id, target.id, length):
            self._memory.truncate(target.id, 0)
            return False
        target.tokens = source.tokens[:length]
        target.num_exact = min(source.num_exact, length)
        if self.is_unified:
            target.cells = source.cells[:length]
            self._owners.update(target.cells)
        return True

    def extend(self, slot: Slot, tokens: Iterable[int], *, exact: bool) -> None:
        """Record that these tokens were computed at the end of the slot."""
        before = len(slot.tokens)
        slot.tokens.extend(tokens)
        if exact and slot.num_exact == before:
            slot.num_exact = len(slot.tokens)
        if self.is_unified:
            added = range(self._next_cell, self._next_cell + len(slot.tokens) - before)
            self._next_cell = added.stop
            slot.cells.extend(added)
            self._owners.update(added)

    def release(self, slot: Slot) -> None:
        """The sequence is over; what it computed stays for others."""
        slot.is_busy = False
        self.touch(slot)

    def evict(self, slot: Slot) -> None:
        """Give the slot and everything in it back."""
        self._forget(slot)
        slot.is_busy = False

    def evict_idle_for(self, num_cells: int) -> bool:
        """Drop cached prefixes of idle slots, oldest first, until `num_cells` are free. False: they are not. Slots that
        have cells of their own never need others'."""
        if not self.is_unified:
            return True
        while self.free_cells < num_cells:
            idle = [slot for slot in self.slots if not slot.is_busy and slot.tokens]
            if not idle:
                return False
            self._forget(min(idle, key=lambda slot: slot.last_used))
        return True

    def move_to(self, memory: KvMemory, *, num_cells: int) -> None:
        """The cache was replaced by a larger one that holds the same."""
        self._memory = memory
        self._num_cells = num_cells

    def forget(self, slot: Slot) -> None:
        """The slot's content is gone; who uses the slot goes on using it."""
        self._forget(slot)

    def forget_all(self) -> None:
        """Nothing that was computed can be trusted any more."""
        for slot in self.slots:
            self._forget(slot)

    def truncate_to_known(self, slot: Slot) -> None:
        """After a failed step: drop positions that were written but never recorded."""
        self._truncate(slot, len(slot.tokens))

    def touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

    def _truncate(self, slot: Slot, length: int) -> int:
        if not self._memory.truncate(slot.id, length):
            self._forget(slot)
            return 0
        self._drop_from(slot, length)
        return length

    def _forget(self, slot: Slot) -> None:
        self._memory.truncate(slot.id, 0)
        self._drop_from(slot, 0)

    def _drop_from(self, slot: Slot, length: int) -> None:
        if self.is_unified:
            for cell in slot.cells[length:]:
                if self._owners[cell] == 1:
                    del self._owners[cell]
                else:
                    self._owners[cell] -= 1
            del slot.cells[length:]
        del slot.tokens[length:]
        slot.num_exact = min(slot.num_exact, length)
