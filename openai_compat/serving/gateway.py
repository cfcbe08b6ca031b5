"""What every route works with, and the rules that pick a model and a backend for a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from backends.base import Backend
from backends.errors import (
    BackendError,
    BackendNotAvailable,
    BackendUnavailable,
    Draining,
    UnsupportedParameter,
)
from backends.types import Feature
from models.card import Capability, ModelCard, RemoteSource
from models.catalogue import Catalogue, remote_card
from models.errors import UnknownModel
from openai_compat.admission import Admission
from openai_compat.budgets import Budgets
from openai_compat.config import WireConfig
from openai_compat.errors import ValidationFailed
from openai_compat.media.intake import Intake
from openai_compat.metrics import Metrics
from openai_compat.principals import Privacy
from openai_compat.record import record_of
from openai_compat.serving.health import HealthCache

ANY_NAME: Final = "litellm"
"""The backend whose models need no card: their provider knows them."""
CLOUDS: Final = frozenset({"litellm"})
"""The backends that hand what they are sent to somebody else, for money. A vLLM server elsewhere is the operator's
own: he names its address."""


ANY_MODEL_CALLS: Final = frozenset({"llamacpp"})
"""The backends that tell any chat model of tools, and hold it to their schemas."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes. `kind` is the backend's name on the wire."""

    card: ModelCard
    kind: str
    backend: Backend


@dataclass(frozen=True, slots=True)
class Gateway:
    """The composed parts. One per application."""

    backends: Mapping[str, Backend]
    catalogue: Catalogue
    config: WireConfig
    admission: Admission
    embedding_admission: Admission
    """The slots of embeddings, ranks and scores."""
    metrics: Metrics
    health: HealthCache
    budgets: Budgets
    media: Intake
    scrapes: tuple[Callable[[], Awaitable[bytes]], ...] = ()
    """One per runner that has metrics of its own."""

    def resolve(self, model: str, backend: str | None, privacy: Privacy = "any") -> Target:
        """The named backend decides; else the card's own; else any other backend the card has a source for, clouds
        left out where `privacy` says so. A name without a card goes to the backend that takes any, where it is the
        named or the default one.

        Raises: BackendNotAvailable, UnknownModel; UnsupportedParameter if only clouds have it and they must not.
        """
        if backend is not None:
            self.backend(backend)
        try:
            card = self.catalogue.resolve(model)
        except UnknownModel:
            asked = backend or self.config.default_backend
            if asked != ANY_NAME or asked not in self.backends:
                raise
            card = remote_card(model, ANY_NAME)
        kind = self._kind_for(card, backend, privacy)
        return Target(card, kind, self.backends[kind])

    def described(self, name: str) -> Target:
        """The target of a name that the catalogue itself knows. Raises: BackendNotAvailable, UnknownModel."""
        card = self.catalogue.resolve(name)
        kind = self._kind_for(card, None, "any")
        return Target(card, kind, self.backends[kind])

    def resolve_default(self, backend: str | None, privacy: Privacy = "any") -> Target:
        """The target of a request that names no model: the configured default, or the backend's first card.

        Raises: BackendNotAvailable; ValidationFailed if there is no such card; UnsupportedParameter as `resolve`.
        """
        if backend is not None:
            self.backend(backend)
        default = self.config.default_model
        if default is not None:
            card = self.catalogue.resolve(default)
            if backend is None or backend in card.backends:
                kind = self._kind_for(card, backend, privacy)
                return Target(card, kind, self.backends[kind])
        kind = backend or self.config.default_backend
        cards = self.catalogue.cards(kind)
        if kind == ANY_NAME:
            # What a cloud happens to offer first costs money, and nobody chose it.
            cards = tuple(card for card in cards if self.catalogue.offered(ANY_NAME, card.id) is not card)
        if not cards:
            msg = "Field required: this server has no default model"
            raise ValidationFailed.of(["body", "model"], msg, kind="missing")
        kind = self._kind_for(cards[0], kind, privacy)
        return Target(cards[0], kind, self.backend(kind))

    def backend(self, kind: str) -> Backend:
        """Raises: BackendNotAvailable if `kind` is unknown or not enabled here."""
        found = self.backends.get(kind)
        if found is None:
            raise BackendNotAvailable.named(kind)
        return found

    async def why_not_ready(self) -> BackendError | None:
        """The reason why a new completion would be refused, or None. The default backend decides."""
        if self.admission.draining:
            return Draining("The service is shutting down")
        kind = self.config.default_backend
        health = (await self.health.all()).get(kind)
        if health is None:
            return BackendUnavailable(f"Backend {kind!r} is not available")
        if not health.healthy:
            return BackendUnavailable(
                f"Backend {kind!r} is not healthy: {health.message or 'no reason given'}"
            )
        return None

    async def runner_metrics(self) -> list[bytes]:
        """The Prometheus texts of the runners that answer in time; a silent one costs its own series only."""
        asked = [read() for read in self.scrapes]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, bytes)]

    def kind_of(self, card: ModelCard, privacy: Privacy = "any") -> str | None:
        """The backend that serves a card when nobody names one: its own, else another enabled one it has a
        source for; None if there is none."""
        kinds = (kind for kind in (card.backend, *card.backends) if kind in self.backends)
        return next((kind for kind in kinds if may_go_to(kind, privacy)), None)

    def _kind_for(self, card: ModelCard, backend: str | None, privacy: Privacy) -> str:
        kind = self.kind_of(card)
        if backend is None:
            if kind is None:
                raise BackendNotAvailable.named(card.backend)
            kind = self.kind_of(card, privacy)
            if kind is None:
                raise _must_stay(card)
            return kind
        if backend in card.backends:
            if not may_go_to(backend, privacy):
                raise _must_stay(card)
            return backend
        hint = f"; it is served by {kind!r}" if kind else ""
        raise BackendNotAvailable(f"Backend {backend!r} does not serve the model {card.id!r}{hint}")


def privacy_for(scope: Any, asked: Privacy) -> Privacy:
    """The stricter of what the request asks for and what its caller's rule is."""
    caller = record_of(scope).caller
    return caller.privacy if caller is not None and asked == "any" else asked


def may_go_to(kind: str, privacy: Privacy) -> bool:
    return privacy == "any" or kind not in CLOUDS


def _must_stay(card: ModelCard) -> UnsupportedParameter:
    return UnsupportedParameter(
        f"The model {card.id!r} is served by a cloud, and privacy is 'local' for this request",
        param="privacy",
    )


def require_capability(card: ModelCard, *any_of: Capability, what: str) -> None:
    """Raises: UnsupportedParameter if the model has none of these capabilities."""
    if not any(capability in card.capabilities for capability in any_of):
        has = ", ".join(card.capabilities) or "none"
        raise UnsupportedParameter(
            f"The model {card.id!r} does not do {what}; its capabilities: {has}", param="model"
        )


def refuse(fields: tuple[str, ...], card: ModelCard) -> None:
    """Raises: UnsupportedParameter for the first field that asks for what the model cannot do."""
    if fields:
        raise UnsupportedParameter(
            f"The model {card.id!r} does not support {fields[0]!r} with this value", param=fields[0]
        )


def require_features(needed: Mapping[str, Feature], target: Target) -> None:
    """`needed`: fields, and what a backend must have to honour them. Raises: UnsupportedParameter for the first that
    the target cannot."""
    refuse(tuple(name for name, feature in needed.items() if not has_feature(target, feature)), target.card)


_MADE_FOR: Final[Mapping[Feature, Capability]] = {"tools": "tools", "reasoning_effort": "reasoning"}


def has_feature(target: Target, feature: Feature) -> bool:
    """Whether a request for it is passed on. Whoever serves a remote model judges it himself; of a local one the card
    says whether it was made for tools, or for reasoning. Of pictures it always does."""
    if feature not in target.backend.features:
        return False
    if feature == "vision":
        return feature in target.card.capabilities
    if target.kind in ANY_MODEL_CALLS:
        return feature != "reasoning_effort" or "reasoning" in target.card.capabilities
    capability = _MADE_FOR.get(feature)
    if capability is None or capability in target.card.capabilities:
        return True
    sources = target.card.sources.items()
    return any(kind == target.kind and isinstance(source, RemoteSource) for kind, source in sources)
