"""Who runs, who waits, and which tokens of whom a batch computes. No llama.cpp in here.

A sequence is *waiting* until it gets a slot, *running* while it has one, and waits again when it is preempted: its
cells go to an older one, and what it had is computed again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from backends.llamacpp.job import Job, Sequence
from backends.llamacpp.slots import NUM_RECOMPUTED, SlotTable, common_prefix_length

Part = tuple[Sequence, int]
"""A running sequence, and how many of its tokens a batch computes."""


class Scheduler:
    """The queue, the running sequences and their slots. For the engine's thread only, but for reading `running`.

    `prefill_chunk_tokens`: most prompt tokens of one batch while others decode. `max_length`: most tokens of one
    sequence. `min_shared_tokens`: a running prompt must promise this many more common tokens before a new one waits
    for it.
    """

    def __init__(
        self, slots: SlotTable, *, prefill_chunk_tokens: int, max_length: int, min_shared_tokens: int
    ) -> None:
        self.slots = slots
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._prefill_chunk_tokens = prefill_chunk_tokens
        self._max_length = max_length
        self._min_shared_tokens = min_shared_tokens

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting

    # -- admission to slots ------------------------------------------------------------------------------------

    def admit(self) -> list[Sequence]:
        """Give free slots to waiting sequences, and say who got one: first to the request with the fewest running ones,
        of equals to the one that came first. So a request of a thousand prompts has every slot while it is alone, and
        one that comes after it gets the next that is free.

        One that shares much of its beginning with a prompt that is being computed waits until that part is there and
        takes it then (so the choices of one request, and requests with one system prompt, compute it once); those
        behind it go ahead meanwhile, but not those of the same request, which may be a thousand to compare.
        """
        started: list[Sequence] = []
        deferred: set[Job] = set()
        while self.slots.has_free_slot:
            sequence = self._next_waiting(deferred)
            if sequence is None:
                break
            _, available = self.slots.longest_prefix(sequence.tokens, exact=sequence.job.must_repeat)
            if self._should_wait_for_prefix(sequence, available):
                deferred.add(sequence.job)
                continue
            needed = len(sequence.tokens) - available + len(self.running)
            if self.running and not self.slots.evict_idle_for(min(needed, self._max_length)):
                break
            self.waiting.remove(sequence)
            self._start(sequence)
            started.append(sequence)
        return started

    def _next_waiting(self, deferred: set[Job]) -> Sequence | None:
        num_running = Counter(sequence.job for sequence in self.running)
        seen = set(deferred)
        best: Sequence | None = None
        for sequence in self.waiting:
            job = sequence.job
            if job in seen:
                continue
            if job not in num_running:
                return sequence
            seen.add(job)
            if best is None or num_running[job] < num_running[best.job]:
                best = sequence
        return best

    def _should_wait_for_prefix(self, sequence: Sequence, available: int) -> bool:
        limit = len(sequence.tokens) - NUM_RECOMPUTED
        for other in self.running:
            assert other.slot is not None
            computed = len(other.slot.tokens)
            if computed >= other.num_prompt:
                continue
            promised = min(common_prefix_length(other.tokens[: other.num_prompt], sequence.tokens), limit)
            if promised > computed and promised >= available + self._min_shared_tokens:
                return True
        return False

    def _start(self, sequence: Sequence) -> None:
        sequence.slot, reused = self.slots.claim(sequence.tokens, exact=sequence.job.must_repeat)
        self.running.append(sequence)
        if sequence.counts_cache:
            sequence.job.cached_tokens += min(reused, sequence.num_prompt)
            sequence.counts_cache = False

    def leave(self, sequence: Sequence) -> None:
        """Take a running sequence out; what it computed stays in its slot as prefix cache."""
        self.running.remove(sequence)
        if sequence.slot is not None:
            self.slots.release(sequence.slot)
            sequence.slot = None
        sequence.close()

    def drop(self, job: Job) -> None:
        """Take every sequence of the job out, wherever it is."""
        for sequence in [s for s in self.waiting if s.job is job]:
            self.waiting.remove(sequence)
            sequence.close()
        for sequence in [s for s in self.running if s.job is job]:
            self.leave(sequence)

    # -- cells -------------------------------------------------------------------------------------------------

    def with_cells(self, parts: list[Part]) -> list[Part]:
        """The parts for which there are cells: idle prefixes go first, then the youngest sequence is preempted."""
        while not self.slots.evict_idle_for(sum(count for _, count in parts)) and self._preempt_youngest():
            parts = [part for part in parts if part[0].slot is not None]
        return parts if self.slots.is_unified else _in_passes(parts)

    def try_make_room(self) -> bool:
        """Free at least one cell more than are free. False: one sequence alone has them all."""
        return self.slots.evict_idle_for(self.slots.free_cells + 1) or self._preempt_youngest()

    def undo(self, parts: Iterable[Part]) -> None:
        """Drop what a failed pass may have left in the cache."""
        for sequence, _ in parts:
            if sequence.slot is not None:
                self.slots.truncate_to_known(sequence.slot)

    def preempt_all(self) -> None:
        """Everybody waits again, in the old order; the slots are about to be replaced, and are left as they are."""
        for sequence in reversed(self.running):
            sequence.slot = None
            self.waiting.appendleft(sequence)
        self.running.clear()

    def _preempt_youngest(self) -> bool:
        """Send the sequence that started last back to the head of the queue. False: only one is running."""
        if len(self.running) < 2:
            return False
        sequence = self.running.pop()
        assert sequence.slot is not None
        self.slots.evict(sequence.slot)
        sequence.slot = None
        self.waiting.appendleft(sequence)
        return True

    # -- what a batch computes ---------------------------------------------------------------------------------

    def decoding(self) -> list[Part]:
        """One token for every sequence whose prompt is behind it."""
        return [(sequence, 1) for sequence in self.running if sequence.num_pending == 1]

    def prompt_pieces(self, capacity: int) -> list[Part]:
        """Prompts in order of arrival, within the budget: a whole batch of `capacity` tokens when nobody
        decodes, else a chunk.

        What is left of the budget goes to the next prompt only if it saves that one a step; else it would make the
        first wait and bring the second nothing.
        """
        num_decoding = sum(sequence.num_pending == 1 for sequence in self.running)
        room = capacity
        if self.slots.is_unified:
            room -= num_decoding
        whole = budget = min(room, self._prefill_chunk_tokens) if num_decoding else room
        pieces: list[Part] = []
        for sequence in self.running:
            pending = sequence.num_pending
            if pending == 1:
                continue
            count = min(budget, pending)
            if pending - count == 1 and count > 2:
                # The rest would be one token, and a pass of one token is not exact.
                count -= 1
            if count < 1 or (budget < whole and -(-(pending - count) // whole) == -(-pending // whole)):
                continue
            pieces.append((sequence, count))
            budget -= count
        return pieces


def _in_passes(parts: list[Part]) -> list[Part]:
    """The parts in the order in which llama.cpp makes the passes that are wanted of them.

    With cells per slot one pass takes sequences whose slot ids follow each other, as far as they do in the batch, and
    equally many tokens of each. Decoding neighbours shall go together, and every piece of a prompt alone: beside a
    decoding sequence its first token would be a piece of one, which another attention kernel computes, and it would
    not be exact. So runs of decoding neighbours and single pieces are put in falling order: none follows its
    predecessor's id.
    """
    groups: list[list[Part]] = []
    for part in sorted(parts, key=lambda part: part[0].slot_id):
        previous = groups[-1][-1] if groups else None
        if (
            previous is not None
            and part[1] == previous[1] == 1
            and part[0].slot_id == previous[0].slot_id + 1
        ):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [part for group in reversed(groups) for part in group]
