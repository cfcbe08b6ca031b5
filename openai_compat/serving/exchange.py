"""One admitted completion, from the slot to the last byte.

    worker task       budget -> slot -> attempts -> cost -> the end
        attempt       backend.generate -> chunks written, or choices collected
    this task         watches the client and the clock, and ends the worker, or its attempt

An attempt that fails before anything was written may be followed by one with another model (`fallback`): all of them
have one slot and one deadline, and the last one's error is not what the caller hears of, but the first one's.

Whatever ends a request (answer, error, deadline, the client leaving, shutdown) ends the worker, and the
worker's exit closes the generator, which aborts the engine's work, and gives the slot back once. Two tasks
instead of a time-out per event, because a time-out around `__anext__` would cancel the generator, and a task
per event costs more than encoding it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from backends.errors import BackendFailed, BackendTimeout, ModelNotReady
from backends.types import EventBatch, Finished
from openai_compat.errors import error_row, is_internal
from openai_compat.receipts.document import Done, Timing, receipt
from openai_compat.receipts.outputs import Outputs
from openai_compat.record import record_of
from openai_compat.serving.books import Books
from openai_compat.serving.clock import Clock
from openai_compat.serving.collect import Collected
from openai_compat.serving.cost import require_budget, require_price, usd_text
from openai_compat.serving.disconnect import client_left
from openai_compat.serving.fallback import Fallbacks, reason_of
from openai_compat.serving.gateway import Gateway, Target
from openai_compat.serving.http10 import whole_for_http10
from openai_compat.serving.plan import Plan
from openai_compat.serving.progress import Progress
from openai_compat.serving.stream import Headers, StreamWriter

_log = logging.getLogger("llm.wire")

_LOADING: Final = frozenset({"unloaded", "loading", "unloading"})


class Exchange(Response):
    """The response to one completion request. Nothing happens before it is called with the connection."""

    def __init__(self, gateway: Gateway, plan: Plan, fallbacks: Fallbacks | None = None) -> None:
        self.gateway = gateway
        self.status_code = 200
        self.background = None
        self._fallbacks = fallbacks
        self._interruption: Exception | None = None
        self._is_attempting = False
        self._slot_ms = 0.0
        self._asked_at = 0.0
        self._wrote_content = False
        self._tried: list[dict[str, str]] = []
        """The attempts that failed, for a receipt."""
        self._take_up(plan)

    def _take_up(self, plan: Plan) -> None:
        """Everything that belongs to one attempt, as it is before it."""
        self.target = plan.target
        self.request = plan.request
        self.answer = plan.answer
        self.ignored = plan.ignored
        self._was_asked = False
        self._progress = Progress(plan.answer.num_choices)
        self._receipt = plan.receipt
        self._outputs = Outputs(plan.answer.num_choices) if plan.receipt is not None else None

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._record = record_of(scope)
        self._record.ignored = self.ignored
        self._books = Books(self.gateway, self._record)
        self._clock = Clock(self.gateway.config, loop.time())
        self._timer = self.gateway.metrics.timer(
            self._record, model=self.target.card.id, backend=self.target.kind
        )
        writer = (
            StreamWriter(whole_for_http10(scope, send), self._own_headers) if self.request.stream else None
        )
        try:
            document = await self._supervise(receive, writer)
        except _ClientLeft:
            self._timer.cancel(completion_tokens=self._progress.num_tokens)
            return
        except asyncio.CancelledError:
            self._timer.cancel(completion_tokens=self._progress.num_tokens)
            raise
        except Exception as exc:
            self._timer.fail()
            if writer is None or not writer.started:
                raise
            self._record.error_code = error_row(exc).code
            if is_internal(exc):
                _log.exception("request %s failed after its headers", self._record.request_id)
            await writer.fail(exc)
            return
        if document is not None:
            headers = [(b"content-type", b"application/json"), *self._own_headers()]
            if self._record.cost_usd is not None:
                headers.append((b"x-llm-cost-usd", usd_text(self._record.cost_usd).encode()))
            headers.append((b"content-length", str(len(document)).encode()))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": document})

    # The watching task.

    async def _supervise(self, receive: Receive, writer: StreamWriter | None) -> bytes | None:
        work = asyncio.create_task(self._work(writer))
        leaving = asyncio.create_task(client_left(receive))
        both = {work, leaving}
        shortest_s = self._clock.shortest_limit_s(is_stream=self.request.stream)
        try:
            while not work.done():
                wait_s = self._clock.next_alarm(writer) - asyncio.get_running_loop().time()
                wait_s = max(0.0, min(wait_s, shortest_s))
                await asyncio.wait(both, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    break
                if leaving.done():
                    raise _ClientLeft
                await self._ring(writer, work)
            return work.result()
        finally:
            leaving.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
                if not work.cancelled():
                    work.exception()  # whatever it said on its way out is not the reason why it ended

    async def _ring(self, writer: StreamWriter | None, work: asyncio.Task[bytes | None]) -> None:
        """Do what is due now. Raises: BackendTimeout, ModelNotReady."""
        config, clock = self.gateway.config, self._clock
        now = asyncio.get_running_loop().time()
        if clock.is_over(now):
            raise BackendTimeout(f"The request took longer than {config.request_timeout_s:g} s")
        if clock.admitted_at is None:
            return
        if clock.is_load_due(now):
            clock.asked_state_at = now
            target = self.target
            is_loading = await self.gateway.health.state_of(target.kind, target.card.id) in _LOADING
            if is_loading and clock.started_at is None and self.target is target:
                message = f"The model {target.card.id!r} is still loading after {config.load_wait_s:g} s"
                self._end_attempt(ModelNotReady(message), writer, work)
                return
        if writer is None:
            return
        if now >= clock.token_deadline():
            what, limit_s = clock.token_limit()
            self._end_attempt(BackendTimeout(f"The {what} took longer than {limit_s:g} s"), writer, work)
            return
        if not writer.started:
            if now >= clock.admitted_at + config.header_hold_s:
                await writer.open()
        elif now >= writer.wrote_at + config.keep_alive_s:
            await writer.keep_alive()

    def _end_attempt(
        self, error: Exception, writer: StreamWriter | None, work: asyncio.Task[bytes | None]
    ) -> None:
        """End the attempt in hand, or the request where no other can follow. Raises: `error`."""
        if self._interruption is not None or not self._is_attempting:
            return
        if not self._may_try_again(writer):
            raise error
        self._interruption = error
        self._clock.begin_attempt(math.inf)
        work.cancel()

    # The working task.

    async def _work(self, writer: StreamWriter | None) -> bytes | None:
        caller = self._record.caller
        await require_budget(self.gateway, caller, self.target)
        name, limit = (caller.name, caller.max_concurrent) if caller is not None else ("", None)
        async with self.gateway.admission.slot(name, limit) as slot:
            self._admit(slot.queue_ms)
            collected, last = await self._serve(writer)
        # The end goes out once the slot is free: whoever reads it may send the next request.
        if collected is not None:
            self._record.waited(time.monotonic() - self._asked_at)
        finished = self._finish()
        usage = finished.usage
        self._was_asked = False
        await self._books.pay(self.target, usage.cost_usd)
        proof = self._receipt_of(finished)
        if writer is None:
            assert collected is not None
            return self.answer.document(collected, proof)
        await writer.close(last + self.answer.ending(usage, proof))
        return None

    async def _serve(self, writer: StreamWriter | None) -> tuple[Collected | None, bytes]:
        """The first attempt that succeeds. Raises: the first one's error."""
        try:
            return await self._attempt(writer)
        except (Exception, asyncio.CancelledError) as exc:
            error = self._error_of(exc)
            if self._fallbacks is None or not self._may_try_again(writer):
                raise error from None
            reason = self._fallbacks.why_after(error)
            if reason is None:
                raise error from None
        first, timer, why = self.target, self._timer, error
        while (plan := await self._next_plan(self._fallbacks, writer)) is not None:
            if self._record.fallback is None:
                self._record.fallback = reason
                self.gateway.metrics.fallback(model=first.card.id, backend=first.kind, reason=reason)
            self._tried.append(_failed(self.target, why))
            names = first.card.id, plan.target.card.id
            _log.info("request %s goes from %r on to %r: %s", self._record.request_id, *names, error)
            self._turn_to(plan)
            try:
                return await self._attempt(writer)
            except (Exception, asyncio.CancelledError) as exc:
                why = later = self._error_of(exc)
                if writer is not None and writer.started:
                    raise later from None
                if is_internal(later):
                    _log.exception("request %s failed on a fallback", self._record.request_id)
        self._timer = timer
        self._record.model, self._record.backend = first.card.id, first.kind
        raise error

    async def _next_plan(self, fallbacks: Fallbacks, writer: StreamWriter | None) -> Plan | None:
        plan = await fallbacks.next()
        # The headers may have gone out meanwhile.
        return plan if self._may_try_again(writer) else None

    def _may_try_again(self, writer: StreamWriter | None) -> bool:
        """Whether nothing has been written yet, which names the model that answers."""
        return self._fallbacks is not None and (writer is None or not writer.started)

    def _error_of(self, exc: BaseException) -> Exception:
        """Why an attempt ended. Raises: CancelledError when it is the whole request that ends."""
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            task = asyncio.current_task()
            assert task is not None
            if task.uncancel() > 0:
                raise asyncio.CancelledError  # the request ends as well
            return interruption
        if isinstance(exc, Exception):
            return exc
        raise exc

    def _turn_to(self, plan: Plan) -> None:
        """Begin anew with another model: its own events, times and measurements."""
        self._take_up(plan)
        self._record.ignored = plan.ignored
        self._clock.begin_attempt(asyncio.get_running_loop().time())
        self._timer = self.gateway.metrics.timer(
            self._record, model=plan.target.card.id, backend=plan.target.kind
        )
        self._timer.admitted(self._slot_ms)

    async def _attempt(self, writer: StreamWriter | None) -> tuple[Collected | None, bytes]:
        """Run the request on the current target: what was collected, or the frames that are held for the end."""
        require_price(self.gateway, self.target)
        self._is_attempting = self._was_asked = True
        try:
            if writer is None:
                collected, last = await self._collect(), b""
            else:
                collected, last = None, await self._stream(writer)
            if not self._progress.is_whole:
                raise BackendFailed("The backend ended the answer before it was complete")
        except BaseException as exc:
            if self._was_asked:
                self._was_asked = False
                ended_here = self._interruption is not None or not isinstance(exc, Exception)
                self._books.pay_for_part(self.target, self.request, self._progress, ended_here=ended_here)
            raise
        finally:
            self._is_attempting = False
            self._clock.begin_attempt(math.inf)  # nothing is due until another one begins
        return collected, last

    async def _collect(self) -> Collected:
        collected = Collected(self.answer.num_choices)
        events = self.target.backend.generate(self.request)
        try:
            async for batch in events:
                self._note(batch)
                collected.add(batch)
        finally:
            await events.aclose()
        return collected

    async def _stream(self, writer: StreamWriter) -> bytes:
        last = b""
        chunks = self.answer.chunks
        events = self.target.backend.generate(self.request)
        try:
            async for batch in events:
                shows_content = self._note(batch)
                frames = chunks(batch)
                if self._progress.finished is not None:
                    last += frames
                elif frames:
                    if shows_content:
                        self._count_gap()
                    await writer.write(frames)
        finally:
            await events.aclose()
        return last

    def _admit(self, queue_ms: float) -> None:
        self._clock.admit(asyncio.get_running_loop().time())
        self._slot_ms = queue_ms
        self._record.waited(queue_ms / 1000.0)
        self._timer.admitted(queue_ms)
        self._asked_at = time.monotonic()

    def _note(self, batch: EventBatch) -> bool:
        """Take down what the clock, the log and the metrics want to know; whether the batch has content."""
        has_content = self._progress.note(batch)
        if self._outputs is not None:
            self._outputs.add(batch)
        self._clock.heard(asyncio.get_running_loop().time(), has_content=has_content)
        return has_content

    def _count_gap(self) -> None:
        if self._wrote_content:
            self._timer.token_gap()
        else:
            self._wrote_content = True
            self._timer.first_token()

    def _finish(self) -> Finished:
        """Book the end of a whole answer."""
        finished = self._progress.finished
        assert finished is not None
        usage = finished.usage
        self._timer.finish(
            self._progress.reason,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )
        return finished

    # The answer's edges.

    def _receipt_of(self, finished: Finished) -> bytes | None:
        """Of the answer that is whole now, if one is wanted."""
        if self._receipt is None or self._outputs is None:
            return None
        done = Done(
            id=self.answer.id,
            request_id=self._record.request_id,
            created=self.answer.created,
            model=self.target.card.id,
            backend=self.target.kind,
            provenance=finished.provenance,
            usage=finished.usage,
            output=self._outputs.entries(),
            sampling=self.request.sampling,
            timing=Timing(self._queue_ms, finished.prefill_ms, finished.decode_ms),
            fallbacks=self._tried,
            cost_usd=self._record.cost_usd,
        )
        return receipt(self._receipt, done)

    @property
    def _queue_ms(self) -> float:
        """For a completion slot, and in the backend."""
        return self._slot_ms + self._progress.queue_ms

    def _own_headers(self) -> Headers:
        """The completion's own headers, as far as they are known when they go out."""
        if self.request.stream and self._asked_at:
            self._record.waited(time.monotonic() - self._asked_at)
        overhead_ms = self._record.overhead_ms()
        self.gateway.metrics.overhead(overhead_ms / 1000.0)
        headers: Headers = [
            (b"x-llm-backend", self.target.kind.encode()),
            (b"x-llm-queue-ms", b"%.1f" % self._queue_ms),
            (b"x-llm-overhead-ms", b"%.1f" % overhead_ms),
        ]
        if self._record.fallback is not None:
            headers.append((b"x-llm-fallback-reason", self._record.fallback.encode()))
        return headers


def _failed(target: Target, error: Exception) -> dict[str, str]:
    reason = reason_of(error) or error_row(error).code or "failed"
    return {"model": target.card.id, "backend": target.kind, "reason": reason}


class _ClientLeft(Exception):
    """The client closed the connection: there is nobody to answer."""
