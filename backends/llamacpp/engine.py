"""The engine loop: one thread, one context, over all running sequences at once.

Every step computes a bounded piece of the prompts that are not behind their sequences yet, so that a long prompt never
stalls the others for long, and then one token of each sequence that has its prompt behind it. Decoding is only a
prefill of one token: a sequence's `tokens` are its prompt and what it generated, its slot knows how many of them are
computed, and the logits of the last one give the next. So a preempted sequence needs no state of its own.

    commands ─> waiting ─> running ─> finished      (see `Scheduler.admit`, `Engine._step`, `Engine._sample`)
                   ^          │
                   └ preempt ─┘
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from backends.errors import BackendFailed, InsufficientMemory, ServiceError
from backends.llamacpp.context import Context, ContextConfig, NoRoomInCache
from backends.llamacpp.job import Delivery, Job, Sequence
from backends.llamacpp.model import GgufModel
from backends.llamacpp.sampler import logprobs_of
from backends.llamacpp.scheduler import Part, Scheduler
from backends.llamacpp.slots import SlotTable
from backends.types import Event, Finished, FinishReason, Started, Usage

log = logging.getLogger("llm.llamacpp")


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
        self._scheduler = Scheduler(
            self._new_slots(),
            prefill_chunk_tokens=config.prefill_chunk_tokens,
            max_length=config.context_length,
            min_shared_tokens=config.min_shared_tokens,
        )
        self._max_length = config.context_length
        self._commands: queue.SimpleQueue[tuple[str, Job | None]] = queue.SimpleQueue()
        self._jobs: set[Job] = set()
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
        return len({id(sequence.job) for sequence in list(self._scheduler.running)})

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
                for sequence in self._scheduler.admit():
                    self._start(sequence)
                if self._scheduler.running:
                    self._step()
        except Exception:
            # The loop's own bug, or memory that llama.cpp could not get: this engine is over, the process is not.
            log.exception("the engine loop failed")
            self.failure = "The engine stopped after an internal error"
        self._end_everything(self.failure or "The model was unloaded before the request was complete")

    # -- commands ----------------------------------------------------------------------------------------------

    def _take_commands(self) -> bool:
        """Apply what came in, waiting for it when there is nothing else to do. False: close."""
        is_idle = self._scheduler.is_idle
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
            if self._scheduler.is_idle and self._commands.empty():
                self._hand_over()
                is_idle = True

    def _accept(self, job: Job) -> None:
        self._jobs.add(job)
        sequences = job.sequences()
        job.num_unfinished = len(sequences)
        self._scheduler.waiting.extend(sequences)

    def _end_job(self, job: Job, error: ServiceError) -> None:
        """Take every sequence of the job out, keep what they computed as prefix cache, and report the error."""
        self._scheduler.drop(job)
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

    def _start(self, sequence: Sequence) -> None:
        job = sequence.job
        sequence.make_sampler(self._model)
        if not job.started_at:
            job.started_at = time.monotonic()
            self._emit(job, Started((job.started_at - job.accepted_at) * 1000, job.prompt_tokens))

    # -- one step ----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Prompts first: their first tokens go out while the others are computed, and join them.

        With cells per slot they would be passes of their own in one batch as well (`Scheduler.with_cells`), and
        everybody's tokens came with the last of them. Cells that all share make one pass of both, which reads the
        weights once.
        """
        self._make_sequences_fit()
        scheduler = self._scheduler
        prompts = scheduler.prompt_pieces(self._context.batch.capacity)
        if self._context.config.kv_unified:
            self._compute(scheduler.decoding() + prompts)
        elif not prompts or self._compute(prompts):
            self._compute(scheduler.decoding())

    def _compute(self, parts: list[Part]) -> bool:
        """Run one batch and take in what it brings. False: nothing was computed, and what runs may have changed."""
        parts = self._scheduler.with_cells(parts)
        if not parts:
            return False
        self._fill(parts)
        try:
            rows = self._context.decode()
        except NoRoomInCache:
            # The count of cells and llama.cpp's own disagree (it may need them in one piece): make room the hard way.
            self._scheduler.undo(parts)
            self._make_room()
            return False
        except BackendFailed as error:
            self._scheduler.undo(parts)
            for job in {part[0].job for part in parts}:
                self._end_job(job, error)
            self._scheduler.slots.forget_all()
            return False
        extend = self._scheduler.slots.extend
        for sequence, count in parts:
            slot = sequence.slot
            assert slot is not None
            done = len(slot.tokens)
            extend(slot, sequence.tokens[done : done + count], exact=count > 1)
        self._sample(
            [s for s, _ in parts if s.slot is not None and len(s.slot.tokens) == len(s.tokens)], rows
        )
        self._hand_over()
        return True

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
        longest = max(len(sequence.tokens) for sequence in self._scheduler.running)
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
                table = self._scheduler.slots
                table.move_to(self._context, num_cells=wanted.num_cells)
                for slot in table.slots:
                    if slot.tokens and not self._context.take_over(old, slot.id):
                        table.forget(slot)
                old.close()
                return
        self._scheduler.preempt_all()
        old.close()
        self._context = Context(self._model, replace(have, tokens_per_sequence=most, kv_unified=True))
        self._scheduler.slots = self._new_slots()

    def _make_room(self) -> None:
        if self._scheduler.try_make_room():
            return
        error = BackendFailed("The engine has no room in its KV cache for the request")
        for job in {sequence.job for sequence in self._scheduler.running}:
            self._end_job(job, error)
        self._scheduler.slots.forget_all()

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
        self._scheduler.leave(sequence)
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
