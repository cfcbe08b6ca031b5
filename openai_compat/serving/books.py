"""What a request cost, in its record, in the metrics and in its caller's budget."""

from __future__ import annotations

from backends.types import GenerationRequest
from openai_compat.record import RequestRecord
from openai_compat.serving.cost import estimate_usd
from openai_compat.serving.gateway import Gateway, Target
from openai_compat.serving.progress import Progress


class Books:
    """Of one request. An attempt that failed may have cost something too: everything is added up."""

    __slots__ = ("_gateway", "_record")

    def __init__(self, gateway: Gateway, record: RequestRecord) -> None:
        self._gateway = gateway
        self._record = record

    async def pay(self, target: Target, cost_usd: float | None) -> None:
        """Book what an answer cost, before its end goes out: the caller's next request is judged with it."""
        if cost_usd is not None:
            self._note(target, cost_usd)
            if self._record.caller is not None:
                await self._gateway.budgets.add(self._record.caller, cost_usd)

    def pay_soon(self, target: Target, cost_usd: float) -> None:
        """The same where nobody can wait for it."""
        if cost_usd > 0.0:
            self._note(target, cost_usd)
            if self._record.caller is not None:
                self._gateway.budgets.add_soon(self._record.caller, cost_usd)

    def pay_for_part(
        self, target: Target, request: GenerationRequest, progress: Progress, *, ended_here: bool
    ) -> None:
        """Book what an attempt cost whose answer nobody gets; otherwise leaving just before its end would be free. One
        that the backend itself ended without a sign of an answer costs nothing."""
        if progress.finished is not None:
            self.pay_soon(target, progress.finished.usage.cost_usd or 0.0)
        elif progress.num_batches or ended_here:
            self.pay_soon(target, estimate_usd(self._gateway.catalogue, target, request, progress.num_tokens))

    def _note(self, target: Target, cost_usd: float) -> None:
        self._record.cost_usd = (self._record.cost_usd or 0.0) + cost_usd
        self._gateway.metrics.cost(cost_usd, model=target.card.id, backend=target.kind)
