"""Which model serves a request that the one it named could not, and why it may.

    the error has no reason, or the card's `when` leaves it out     nobody: the error is the answer
    the caller named a backend                                      nobody: he asked for that one
    the request holds token ids                                     nobody: they mean other words elsewhere
    a model of the card's `fallbacks`, in their order, each once    the first that
        is known here, and may be given the prompt                  (privacy)
        honours every field of the request                          (features, capabilities)
        is paid for                                                 (budget)

What a fallback's own card says of fallbacks does not count: a request goes one list, not a graph.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from backends import errors as be
from backends.types import GenerationRequest, TokenPrompt
from models import errors as me
from models.card import FallbackReason, ModelCard
from openai_compat.principals import Principal, Privacy
from openai_compat.serving.cost import require_budget, require_price
from openai_compat.serving.gateway import Gateway
from openai_compat.serving.plan import Plan, Planner

_log = logging.getLogger("llm.wire")

REASONS: Final[Mapping[type[Exception], FallbackReason | None]] = {
    be.RequestError: None,
    be.ContextLengthExceeded: "context_length",
    be.BackendError: None,
    be.BackendFailed: "unavailable",
    be.BackendUnavailable: "unavailable",
    be.Draining: "unavailable",
    be.ModelNotReady: "unavailable",
    be.InsufficientMemory: "unavailable",
    be.BackendTimeout: "unavailable",
    be.UpstreamError: "unavailable",
    be.Overloaded: "overloaded",
    be.UpstreamRateLimited: "overloaded",
    be.UpstreamQuotaExceeded: "unavailable",
    me.UnknownModel: "unavailable",
    me.UnusableModel: "unavailable",
    me.SourceUnavailable: "unavailable",
}
"""What an error of a *backend* says of the model; None: another model would not help. A class that is not here counts
as its nearest ancestor."""


def reason_of(exc: BaseException) -> FallbackReason | None:
    """Why another model might succeed; None if it would not."""
    return next((REASONS[cls] for cls in type(exc).__mro__ if cls in REASONS), None)


def is_bound_to_vocabulary(request: GenerationRequest) -> bool:
    """Whether a request has token ids of one model in it."""
    sampling = request.sampling
    if sampling.logit_bias or sampling.stop_token_ids:
        return True
    return any(isinstance(prompt, TokenPrompt) for prompt in request.prompts)


class Fallbacks:
    """The other models of one request. Each is offered once."""

    def __init__(
        self, gateway: Gateway, card: ModelCard, make: Planner, *, privacy: Privacy, caller: Principal | None
    ) -> None:
        self._gateway = gateway
        self._card = card
        self._make = make
        self._privacy = privacy
        self._caller = caller
        self._left = list(card.fallbacks)
        self._tried = {card.id}

    def why_after(self, exc: BaseException) -> FallbackReason | None:
        """Why the request may go on to another model after this error of the one it named; None: it may not."""
        reason = reason_of(exc)
        return reason if reason in self._card.when else None

    async def next(self) -> Plan | None:
        """The next model that can serve this request, made ready; None when there is none left."""
        while self._left:
            name = self._left.pop(0)
            try:
                target = self._gateway.resolve(name, None, self._privacy)
                if target.card.id in self._tried:
                    continue
                self._tried.add(target.card.id)
                plan = self._make(target)
                require_price(self._gateway, target)
                await require_budget(self._gateway, self._caller, target)
            except (be.ServiceError, me.ModelError) as exc:
                _log.info("the fallback %r of %r is passed over: %s", name, self._card.id, exc)
                continue
            return plan
        return None
