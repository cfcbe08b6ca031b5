"""Catalogues over folders of small files, and what their tests ask of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from models.card import ModelCard
from models.catalogue import Catalogue
from models.errors import UnknownModel
from tests.models.gguf_files import LLAMA

BASE = {key: value for key, value in LLAMA.items() if key != "tokenizer.chat_template"}


def of(*folders_: Path, cards: list[ModelCard] | None = None, hub_allow: tuple[str, ...] = ()) -> Catalogue:
    return Catalogue(cards or [], model_dirs=folders_, hub_allow=hub_allow)


def ids(catalogue: Catalogue) -> list[str]:
    return [card.id for card in catalogue.cards()]


def unknown(catalogue: Catalogue, name: str) -> UnknownModel:
    with pytest.raises(UnknownModel) as caught:
        catalogue.resolve(name)
    return caught.value


def file_card(card_id: str, path: str, **fields: object) -> ModelCard:
    return ModelCard.model_validate({"id": card_id, "sources": {"llamacpp": {"path": path}}, **fields})


def settle(catalogue: Catalogue) -> None:
    """Let the folders count as unchanged for long enough, as they are a second later."""
    catalogue._folders._now_ns = lambda: time.time_ns() + 10**12
    catalogue.cards()
