"""The gateway's end of a runner whose backend serves models without cards: what it offers becomes known to the
catalogue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from pydantic import ValidationError
from typing_extensions import override

from backends.errors import BackendError
from backends.link import PeerGone
from backends.runner.client import RunnerClient
from backends.types import Feature, OfferedModel, Offers
from models.card import BackendKind, ModelCard, Price, RemoteSource
from models.catalogue import Catalogue

SOON_S: Final = 0.5
"""Between questions until the runner has answered once."""
LATER_S: Final = 30.0
"""Afterwards: a runner that was restarted may have other keys."""

_log = logging.getLogger(__name__)
_decode_offers = msgspec.json.Decoder(Offers).decode


class OfferingClient(RunnerClient):
    """A RunnerClient that asks, in the background, what else the runner serves."""

    def __init__(
        self,
        kind: BackendKind,
        url: str | Callable[[], str],
        token: str | None = None,
        *,
        catalogue: Catalogue,
        features: frozenset[Feature] = frozenset(),
    ) -> None:
        super().__init__(kind, url, token, features=features)
        self._kind = kind
        self._catalogue = catalogue
        self._asking: asyncio.Task[None] | None = None

    @override
    async def start(self) -> None:
        await super().start()
        self._asking = asyncio.create_task(self._keep_asking())

    @override
    async def offers(self) -> Offers:
        """Raises: BackendError, PeerGone, TimeoutError, msgspec.DecodeError."""
        return _decode_offers(await self._text("/offers"))

    @override
    async def aclose(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking
        await super().aclose()

    async def _keep_asking(self) -> None:
        known: Offers | None = None
        while True:
            try:
                known = await self._taken_over(known)
            except (BackendError, PeerGone, TimeoutError, msgspec.DecodeError):
                pass  # its health says so
            except Exception:
                # Without it names and prices would stay as they are, and nobody would know why.
                _log.exception("what %s offers could not be taken over; it is asked again", self._kind)
            await asyncio.sleep(SOON_S if known is None else LATER_S)

    async def _taken_over(self, known: Offers | None) -> Offers:
        """What it offers, which is in the catalogue from then on."""
        offers = await self.offers()
        if offers != known:
            cards = list(cards_of(offers, self._kind))
            self._catalogue.offer(self._kind, cards, prefixes=offers.prefixes)
        return offers


def cards_of(offers: Offers, kind: BackendKind) -> Iterator[ModelCard]:
    """The offered models as cards. One that cannot be a card (its name is none here) is left out."""
    for model in offers.models:
        try:
            yield _card_of(model, kind)
        except ValidationError as error:
            _log.debug("%s offers what cannot be a card: %s", kind, error)


def _card_of(model: OfferedModel, kind: BackendKind) -> ModelCard:
    price = None
    if model.price is not None:
        price = Price(prompt=model.price[0], completion=model.price[1])
    return ModelCard.model_validate(
        {
            "id": model.id,
            "backend": kind,
            "sources": {kind: RemoteSource(name=model.id)},
            "context_length": model.context_length,
            "capabilities": model.capabilities,
            "owned_by": model.owned_by or kind,
            "price": price,
        }
    )
