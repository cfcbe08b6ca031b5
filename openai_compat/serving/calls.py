"""One admitted call that is answered whole: embeddings, ranks, scores.

They have slots of their own (`LLM_MAX_CONCURRENT_EMBEDDINGS`), so that neither they nor completions keep the others
out, and nobody waits for one: a batch takes tens of milliseconds, and a client that is refused may as well try again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from backends.errors import BackendTimeout, ModelNotReady
from backends.types import Prompt
from openai_compat.metrics import RequestTimer
from openai_compat.record import RequestRecord, record_of
from openai_compat.serving.books import Books
from openai_compat.serving.cost import estimate_inputs_usd, require_budget, require_price, usd_text
from openai_compat.serving.disconnect import client_left
from openai_compat.serving.gateway import Gateway, Target

T = TypeVar("T")

_LOADING: Final = frozenset({"unloaded", "loading", "unloading"})


class Call:
    """The request's side of such a call: its slot, its time, its books and its answer.

    `inputs`: what goes to the backend, for the price of a call whose answer nobody waited for.
    """

    def __init__(
        self,
        gateway: Gateway,
        target: Target,
        request: Request,
        inputs: Iterable[Prompt],
    ) -> None:
        self._gateway = gateway
        self._target = target
        self._request = request
        self._inputs = inputs
        self._was_asked = False
        self.waited_ms = 0.0
        """For the backend's answer."""
        self.record: RequestRecord = record_of(request.scope)
        self._books = Books(gateway, self.record)
        self._timer: RequestTimer = gateway.metrics.timer(
            self.record, model=target.card.id, backend=target.kind
        )

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives, which is cancelled when the client leaves or the time is over.

        Raises: QuotaExceeded, Overloaded, Draining, BackendTimeout, ModelNotReady, ClientDisconnect, and what `work`
        raises.
        """
        try:
            require_price(self._gateway, self._target)
            await require_budget(self._gateway, self.record.caller, self._target)
            async with self._gateway.embedding_admission.slot(self.record.principal or "") as slot:
                self._timer.admitted(slot.queue_ms)
                begun = time.monotonic()
                answer = await self._supervise(work)
                waited_s = time.monotonic() - begun
                self.waited_ms = waited_s * 1000
                self.record.waited(waited_s)
                return answer
        except (ClientDisconnect, asyncio.CancelledError):
            self._timer.cancel()
            raise
        except Exception:
            self._timer.fail()
            raise
        finally:
            self._pay_for_nothing()

    async def pay(self, cost_usd: float | None) -> None:
        """Book what the answer cost, before it goes out: the caller's next request is judged with it."""
        await self._books.pay(self._target, cost_usd)

    def _pay_for_nothing(self) -> None:
        """A call that was given up here may have been answered all the same; otherwise leaving would be free."""
        if not self._was_asked:
            return
        cost_usd = estimate_inputs_usd(self._gateway.catalogue, self._target, self._inputs)
        self._books.pay_soon(self._target, cost_usd)

    def answer(self, body: bytes, *, prompt_tokens: int) -> Response:
        """The response, and the end of the books."""
        self._timer.finish("whole", prompt_tokens=prompt_tokens, completion_tokens=0)
        overhead_ms = self.record.overhead_ms()
        response = Response(body, media_type="application/json")
        response.raw_headers += [
            (b"x-llm-backend", self._target.kind.encode()),
            (b"x-llm-queue-ms", b"0.0"),
            (b"x-llm-overhead-ms", b"%.1f" % overhead_ms),
        ]
        if self.record.cost_usd is not None:
            response.raw_headers.append((b"x-llm-cost-usd", usd_text(self.record.cost_usd).encode()))
        return response

    def usage(self, num_tokens: int) -> dict[str, float]:
        """The `usage` of the answer's document."""
        usage: dict[str, float] = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        if self.record.cost_usd is not None:
            usage["cost_usd"] = self.record.cost_usd
        return usage

    async def _supervise(self, work: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        config = self._gateway.config
        deadline = loop.time() + config.request_timeout_s
        look_at = loop.time() + config.load_wait_s
        working = asyncio.ensure_future(work())
        self._was_asked = True
        leaving = asyncio.create_task(client_left(self._request.receive))
        try:
            while True:
                wait_s = max(0.0, min(deadline, look_at) - loop.time())
                await asyncio.wait((working, leaving), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    self._was_asked = False
                    return working.result()
                if leaving.done():
                    raise ClientDisconnect
                if loop.time() >= deadline:
                    raise BackendTimeout(f"The request took longer than {config.request_timeout_s:g} s")
                if loop.time() >= look_at:
                    await self._check_loaded(config.load_wait_s)
                    look_at = loop.time() + 1.0
        finally:
            leaving.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
                if not working.cancelled():
                    working.exception()  # what it said on its way out is not the reason why it ended

    async def _check_loaded(self, waited_s: float) -> None:
        model = self._target.card.id
        if await self._gateway.health.state_of(self._target.kind, model) in _LOADING:
            raise ModelNotReady(f"The model {model!r} is still loading after {waited_s:g} s")
