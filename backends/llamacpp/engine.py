"""The engine loop: one thread, one context, over all running sequences at once.

Every step computes a bounded piece of the prompts that are not behind their sequences yet, so that a long prompt never
stalls the others for long, and then one token of each sequence that has its prompt behind it. Decoding is only a
prefill of one token: a sequence's `tokens` are its prompt and what it generated, its slot knows how many of them are
computed, and the logits of the last one give the next. So a preempted sequence needs no state of its own: it waits
again, and what it had is computed again.

    commands ─> waiting ─> running ─> finished           (see `Engine._admit`, `_step`, `_sample`)
                   ^          │
                   └ preempt ─┘
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from backends.errors import BackendFailed, InsufficientMemory, ServiceError
from backends.llamacpp.constraint import Constraint
from backends.llamacpp.context import Context, ContextConfig, NoRoomInCache
from backends.llamacpp.model import GgufModel
from backends.llamacpp.output import ChoiceOutput
from backends.llamacpp.sampler import Sampler, logprobs_of
from backends.llamacpp.slots import NUM_RECOMPUTED, Slot, SlotTable, common_prefix_length
from backends.types import Event, Finished, FinishReason, SamplingParams, Started, Usage

log = logging.getLogger("llm.llamacpp")


@dataclass(eq=False)
class Job:
    """One request inside the engine. Built by the caller's thread, afterwards touched by the engine's thread only.

    `must_repeat`: the same request must give the same text whether or not its prefix was cached (fixed seed, greedy).
    """

    params: SamplingParams
    prompts: list[list[int]]
    echoes: list[str]
    """Text before each prompt's choices, "" without echo."""
    n: int
    seed: int
    is_streaming: bool
    must_repeat: bool
    accepted_at: float
    receive: Callable[[list[Event], ServiceError | None], None]
    """Where its events go; called by whoever `deliver` hands the delivery to."""
    shown: Mapping[int, bytes] = field(default_factory=dict)
    """Control tokens that are text here, and what they say: the marks of tool calls, for example."""
    constraint: Constraint | None = None
    """What each of its answers has to look like."""
    started_at: float = 0.0
    first_token_at: float = 0.0
    cached_tokens: int = 0
    completion_tokens: int = 0
    num_unfinished: int = 0
    is_over: bool = False
    events: list[Event] = field(default_factory=list)
    """What this step brought; handed over at its end."""

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


Delivery = tuple[Job, list[Event], ServiceError | None]
"""Events of one job, in order; an error is its end."""


class Sequence:
    """One choice while it is computed."""

    __slots__ = (
        "counts_cache",
        "index",
        "job",
        "max_tokens",
        "num_prompt",
        "output",
        "sampler",
        "slot",
        "tokens",
    )

    def __init__(self, job: Job, prompt_index: int, i: int) -> None:
        prompt = job.prompts[prompt_index]
        self.job = job
        self.index = prompt_index * job.n + i
        self.tokens = list(prompt)
        self.num_prompt = len(prompt)
        self.max_tokens = job.params.max_tokens
        self.slot: Slot | None = None
        self.counts_cache = i == 0
        self.output = ChoiceOutput(
            self.index, job.params.stop, echo=job.echoes[prompt_index], min_tokens=job.params.min_tokens
        )
        self.sampler: Sampler | None = None
        """Made when it starts: a thousand waiting choices would be a thousand parsed grammars and arrays of the
        vocabulary's size, all made in one go before the next step."""

    def make_sampler(self, model: GgufModel) -> None:
        if self.sampler is None:
            job = self.job
            seed = job.seed + self.index % job.n
            matcher = job.constraint.matcher() if job.constraint is not None else None
            prompt = self.tokens[: self.num_prompt]
            self.sampler = Sampler(job.params, model, seed=seed, prompt=prompt, matcher=matcher)

    def close(self) -> None:
        """Free its sampler. Idempotent."""
        if self.sampler is not None:
            self.sampler.close()

    @property
    def num_pending(self) -> int:
        """Tokens that are not computed yet; 1 while it decodes."""
        assert self.slot is not None
        return len(self.tokens) - len(self.slot.tokens)

    @property
    def slot_id(self) -> int:
        """Of the slot it runs in; only a running sequence has one."""
        assert self.slot is not None
        return self.slot.id


Part = tuple[Sequence, int]
"""A running sequence, and how many of its tokens a batch computes."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """`prefill_chunk_tokens`: most prompt tokens of one step while other sequences decode."""

    context: ContextConfig
    """As the engine ends up; a split cache begins smaller (`initial_tokens`) and grows when a sequence needs it."""
    prefill_chunk_tokens: int
    context_length: int
    """Most tokens of one sequence, prompt and answer together."""
    cell_bytes: int
    initial_tokens: int = 1024
    spare_bytes: Callable[[], int] = lambda: 1 << 62
    """Memory that a growing cache may still take."""
    min_shared_tokens: int = 16
    """A running prompt must promise this many more common tokens before a new one waits for it."""


class Engine:
    """Starts its thread at once. `deliver` is called from that thread, once per step, and must not block.

    Raises: InsufficientMemory from the constructor when the context cannot be made.
    """

    def __init__(
        self, model: GgufModel, config: EngineConfig, deliver: Callable[[list[Delivery]], None]
    ) -> None:
        self._model = model
        self._config = config
        self._deliver = deliver
        first = config.context
        if not first.kv_unified:
            first = replace(first, tokens_per_sequence=min(first.tokens_per_sequence, config.initial_tokens))
        self._context = Context(model, first)
        self._slots = self._new_slots()
        self._max_length = config.context_length
        self._commands: queue.SimpleQueue[tuple[str, Job | None]] = queue.SimpleQueue()
        self._jobs: set[Job] = set()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._touched: list[Job] = []
        self.failure: str | None = None
        """Why the loop ended by itself; None while it runs."""
        self._end_reason: str | None = None
        """Set before the last look at the commands: whoever puts one later answers it himself."""
        self._thread = threading.Thread(target=self._run, name="llamacpp-engine", daemon=True)
        self._thread.start()

    def _new_slots(self) -> SlotTable:
        context = self._context.config
        return SlotTable(
            self._context,
            num_slots=context.num_slots,
            num_cells=context.num_cells,
            is_unified=context.kv_unified,
            min_copied_tokens=self._config.min_shared_tokens,
        )

    @property
    def is_exact(self) -> bool:
        """A greedy or seeded request gets the same tokens each time: nothing of the model runs elsewhere than on the
        CPU, and every slot has cells of its own. May be read from any thread."""
        context = self._context.config
        return context.flash_attention is False and not context.kv_unified

    @property
    def num_running(self) -> int:
        """Requests with a sequence in a slot. May be read from any thread; a step old at most."""
        return len({id(sequence.job) for sequence in list(self._running)})

    @property
    def num_waiting(self) -> int:
        """Requests none of whose sequences has a slot."""
        return max(0, len(self._jobs) - self.num_running)

    def submit(self, job: Job) -> None:
        """Queue a request. Every submitted job ends with `Finished` or an error, unless it is aborted. Thread-safe."""
        self._commands.put(("accept", job))
        if self._end_reason is not None:
            self._refuse_late(self._end_reason)

    def abort(self, job: Job) -> None:
        """Stop a request wherever it is, after the step in hand. It gets an error as its end; one that is over is left
        alone. Thread-safe."""
        self._commands.put(("abort", job))

    def close(self) -> None:
        """End every job with an error, stop the thread, free the context. Blocks for the step in hand. Idempotent."""
        self._commands.put(("close", None))
        self._thread.join()
        self._context.close()

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._admit()
                if self._running:
                    self._step()
        except Exception:
            # The loop's own bug, or memory that llama.cpp could not get: this engine is over, the process is not.
            log.exception("the engine loop failed")
            self.failure = "The engine stopped after an internal error"
        self._end_everything(self.failure or "The model was unloaded before the request was complete")

    # -- commands ----------------------------------------------------------------------------------------------

    def _take_commands(self) -> bool:
        """Apply what came in, waiting for it when there is nothing else to do. False: close."""
        is_idle = not self._running and not self._waiting
        while True:
            try:
                command, job = self._commands.get(block=is_idle)
            except queue.Empty:
                return True
            is_idle = False
            if job is None:
                return False
            if command == "accept":
                self._accept(job)
            elif job in self._jobs:
                self._end_job(job, BackendFailed("The request was aborted"))
            if not self._running and not self._waiting and self._commands.empty():
                self._hand_over()
                is_idle = True

    def _accept(self, job: Job) -> None:
        self._jobs.add(job)
        sequences = [
            Sequence(job, prompt_index, i) for prompt_index in range(len(job.prompts)) for i in range(job.n)
        ]
        job.num_unfinished = len(sequences)
        self._waiting.extend(sequences)

    def _end_job(self, job: Job, error: ServiceError) -> None:
        """Take every sequence of the job out, keep what they computed as prefix cache, and report the error."""
        for sequence in [s for s in self._waiting if s.job is job]:
            self._waiting.remove(sequence)
            sequence.close()
        for sequence in [s for s in self._running if s.job is job]:
            self._leave(sequence)
        self._jobs.discard(job)
        job.is_over = True
        events, job.events = job.events, []
        self._deliver([(job, events, error)])

    def _end_everything(self, reason: str) -> None:
        for job in list(self._jobs):
            self._end_job(job, BackendFailed(reason))
        self._end_reason = reason
        self._refuse_late(reason)

    def _refuse_late(self, reason: str) -> None:
        """End the jobs that came after the loop had ended. Thread-safe."""
        while True:
            try:
                command, late = self._commands.get_nowait()
            except queue.Empty:
                return
            if command == "accept" and late is not None:
                self._deliver([(late, [], BackendFailed(reason))])

    # -- admission to slots ------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give free slots to waiting sequences: first to the request with the fewest running ones, of equals to the one
        that came first. So a request of a thousand prompts has every slot while it is alone, and one that comes after
        it gets the next that is free.

        One that shares much of its beginning with a prompt that is being computed waits until that part is there and
        takes it then (so the choices of one request, and requests with one system prompt, compute it once); those
        behind it go ahead meanwhile, but not those of the same request, which may be a thousand to compare.
        """
        deferred: set[Job] = set()
        while self._slots.has_free_slot:
            sequence = self._next_waiting(deferred)
            if sequence is None:
                return
            _, available = self._slots.longest_prefix(sequence.tokens, exact=sequence.job.must_repeat)
            if self._should_wait_for_prefix(sequence, available):
                deferred.add(sequence.job)
                continue
            needed = len(sequence.tokens) - available + len(self._running)
            if self._running and not self._slots.evict_idle_for(min(needed, self._max_length)):
                return
            self._waiting.remove(sequence)
            self._start(sequence)

    def _next_waiting(self, deferred: set[Job]) -> Sequence | None:
        num_running = Counter(sequence.job for sequence in self._running)
        seen = set(deferred)
        best: Sequence | None = None
        for sequence in self._waiting:
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
        for other in self._running:
            assert other.slot is not None
            computed = len(other.slot.tokens)
            if computed >= other.num_prompt:
                continue
            promised = min(common_prefix_length(other.tokens[: other.num_prompt], sequence.tokens), limit)
            if promised > computed and promised >= available + self._config.min_shared_tokens:
                return True
        return False

    def _start(self, sequence: Sequence) -> None:
        job = sequence.job
        slot, reused = self._slots.claim(sequence.tokens, exact=job.must_repeat)
        sequence.slot = slot
        sequence.make_sampler(self._model)
        self._running.append(sequence)
        if sequence.counts_cache:
            job.cached_tokens += min(reused, sequence.num_prompt)
            sequence.counts_cache = False
        if not job.started_at:
            job.started_at = time.monotonic()
            self._emit(job, Started((job.started_at - job.accepted_at) * 1000, job.prompt_tokens))

    # -- one step ----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Prompts first: their first tokens go out while the others are computed, and join them.

        With cells per slot they would be passes of their own in one batch as well (`_in_passes`), and everybody's
        tokens came with the last of them. Cells that all share make one pass of both, which reads the weights once.
        """
        self._make_sequences_fit()
        if self._context.config.kv_unified:
            self._compute(self._decoding() + self._prompt_pieces())
        elif not (pieces := self._prompt_pieces()) or self._compute(pieces):
            self._compute(self._decoding())

    def _compute(self, parts: list[Part]) -> bool:
        """Run one batch and take in what it brings. False: nothing was computed, and what runs may have changed."""
        parts = self._with_cells(parts)
        if not parts:
            return False
        self._fill(parts)
        try:
            rows = self._context.decode()
        except NoRoomInCache:
            # The count of cells and llama.cpp's own disagree (it may need them in one piece): make room the hard way.
            self._undo(parts)
            self._make_room()
            return False
        except BackendFailed as error:
            self._undo(parts)
            for job in {part[0].job for part in parts}:
                self._end_job(job, error)
            self._slots.forget_all()
            return False
        for sequence, count in parts:
            slot = sequence.slot
            assert slot is not None
            done = len(slot.tokens)
            self._slots.extend(slot, sequence.tokens[done : done + count], exact=count > 1)
        self._sample(
            [s for s, _ in parts if s.slot is not None and len(s.slot.tokens) == len(s.tokens)], rows
        )
        self._hand_over()
        return True

    def _decoding(self) -> list[Part]:
        """One token for every sequence whose prompt is behind it."""
        return [(sequence, 1) for sequence in self._running if sequence.num_pending == 1]

    def _prompt_pieces(self) -> list[Part]:
        """Prompts in order of arrival, within the budget: a whole batch when nobody decodes, else a chunk.

        What is left of the budget goes to the next prompt only if it saves that one a step; else it would make the
        first wait and bring the second nothing.
        """
        num_decoding = sum(sequence.num_pending == 1 for sequence in self._running)
        room = self._context.batch.capacity
        if self._context.config.kv_unified:
            room -= num_decoding
        whole = budget = min(room, self._config.prefill_chunk_tokens) if num_decoding else room
        pieces: list[Part] = []
        for sequence in self._running:
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

    def _with_cells(self, parts: list[Part]) -> list[Part]:
        """The parts for which there are cells: idle prefixes go first, then the youngest sequence is preempted."""
        while not self._slots.evict_idle_for(sum(count for _, count in parts)) and self._preempt_youngest():
            parts = [part for part in parts if part[0].slot is not None]
        return parts if self._context.config.kv_unified else _in_passes(parts)

    def _fill(self, parts: list[Part]) -> None:
        batch = self._context.batch
        batch.clear()
        for sequence, count in parts:
            assert sequence.slot is not None
            start = len(sequence.slot.tokens)
            end = start + count
            batch.add(
                sequence.tokens[start:end],
                start=start,
                slot_id=sequence.slot.id,
                wants_logits=end == len(sequence.tokens),
            )

    def _make_sequences_fit(self) -> None:
        """Let the cache grow when a sequence is about to need more than a slot has: twice the size until it fits, with
        what the slots hold. Where that memory is not to be had, all slots share one cache of a single sequence's size,
        and everything is computed again."""
        have = self._context.config
        longest = max(len(sequence.tokens) for sequence in self._running)
        if longest <= have.tokens_per_sequence:
            return
        most = self._config.context.tokens_per_sequence
        size = have.tokens_per_sequence
        while size < longest:
            size = min(size * 2, most)
        wanted = replace(have, tokens_per_sequence=size)
        old = self._context
        if wanted.num_cells * self._config.cell_bytes < self._config.spare_bytes():
            try:
                self._context = Context(self._model, wanted)
            except InsufficientMemory:
                log.warning(
                    "no memory for %d KV cells; the slots share %d from now on", wanted.num_cells, most
                )
            else:
                self._slots.move_to(self._context, num_cells=wanted.num_cells)
                for slot in self._slots.slots:
                    if slot.tokens and not self._context.take_over(old, slot.id):
                        self._slots.forget(slot)
                old.close()
                return
        for sequence in reversed(self._running):
            sequence.slot = None
            self._waiting.appendleft(sequence)
        self._running.clear()
        old.close()
        self._context = Context(self._model, replace(have, tokens_per_sequence=most, kv_unified=True))
        self._slots = self._new_slots()

    def _undo(self, parts: Iterable[Part]) -> None:
        for sequence, _ in parts:
            if sequence.slot is not None:
                self._slots.truncate_to_known(sequence.slot)

    def _make_room(self) -> None:
        if self._slots.evict_idle_for(self._slots.free_cells + 1) or self._preempt_youngest():
            return
        error = BackendFailed("The engine has no room in its KV cache for the request")
        for job in {sequence.job for sequence in self._running}:
            self._end_job(job, error)
        self._slots.forget_all()

    def _preempt_youngest(self) -> bool:
        """Send the sequence that started last back to the head of the queue. False: only one is running."""
        if len(self._running) < 2:
            return False
        sequence = self._running.pop()
        assert sequence.slot is not None
        self._slots.evict(sequence.slot)
        sequence.slot = None
        self._waiting.appendleft(sequence)
        return True

    # -- tokens ------------------------------------------------------------------------------------------------

    def _sample(self, sequences: list[Sequence], rows: Iterable) -> None:  # type: ignore[type-arg]
        now = time.monotonic()
        end_of_generation = self._model.end_of_generation
        for sequence, row in zip(sequences, rows, strict=True):
            job, output, params = sequence.job, sequence.output, sequence.job.params
            sampler = sequence.sampler
            assert sampler is not None
            if job.is_over:
                continue  # another sequence of it failed in this step
            if not job.first_token_at:
                job.first_token_at = now
            raw = row.copy() if params.logprobs is not None else row
            try:
                sampler.prepare(row, output.num_generated)
                token = sampler.choose(row)
            except BackendFailed as error:
                # Its constraint cannot be followed any further: it ends here rather than without one.
                self._end_job(job, error)
                continue
            output.count()
            if token in end_of_generation:
                self._finish(sequence, "stop", None, now)
                continue
            if token in params.stop_token_ids:
                self._finish(sequence, "stop", token, now)
                continue
            sequence.tokens.append(token)
            entry = (
                logprobs_of(raw, token, params.logprobs, self._model) if params.logprobs is not None else None
            )
            if output.accept(job.shown.get(token) or self._model.piece(token), entry) or sampler.is_over:
                self._finish(sequence, "stop", None, now)
            elif output.num_generated == sequence.max_tokens or len(sequence.tokens) >= self._max_length:
                self._finish(sequence, "length", None, now)
            elif job.is_streaming:
                delta = output.take_delta()
                if delta is not None:
                    self._emit(job, delta)

    def _finish(self, sequence: Sequence, reason: FinishReason, stop_reason: int | None, now: float) -> None:
        job = sequence.job
        for event in sequence.output.finish(reason, stop_reason):
            self._emit(job, event)
        job.completion_tokens += sequence.output.num_generated
        self._leave(sequence)
        job.num_unfinished -= 1
        if job.num_unfinished:
            return
        usage = Usage(job.prompt_tokens, job.completion_tokens, job.cached_tokens)
        self._emit(
            job,
            Finished(
                usage,
                queue_ms=(job.started_at - job.accepted_at) * 1000,
                prefill_ms=(job.first_token_at - job.started_at) * 1000,
                decode_ms=(now - job.first_token_at) * 1000,
            ),
        )
        job.is_over = True
        self._jobs.discard(job)

    def _leave(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        if sequence.slot is not None:
            self._slots.release(sequence.slot)
            sequence.slot = None
        sequence.close()

    def _emit(self, job: Job, event: Event) -> None:
        if not job.events:
            self._touched.append(job)
        job.events.append(event)

    def _hand_over(self) -> None:
        if not self._touched:
            return
        deliveries: list[Delivery] = []
        for job in self._touched:
            if job.events:
                deliveries.append((job, job.events, None))
                job.events = []
        self._touched.clear()
        self._deliver(deliveries)


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
