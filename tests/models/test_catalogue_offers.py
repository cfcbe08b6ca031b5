"""Models that a backend serves of its own accord stand beside the cards and the files."""

from __future__ import annotations

import pytest

from models.card import FileSource, HubSource, ModelCard, RemoteSource
from models.catalogue import Catalogue
from models.errors import UnknownModel


def offered(name: str) -> ModelCard:
    return ModelCard(id=name, backend="vllm", sources={"vllm": RemoteSource(name=name)})


def test_an_offered_model_is_resolved_and_listed() -> None:
    catalogue = Catalogue([])
    catalogue.offer("vllm", [offered("a"), offered("b")])

    assert catalogue.resolve("a") == offered("a")
    assert [card.id for card in catalogue.cards("vllm")] == ["a", "b"]


def test_a_later_offer_takes_the_place_of_the_earlier_one() -> None:
    catalogue = Catalogue([])
    catalogue.offer("vllm", [offered("a")])
    catalogue.offer("vllm", [offered("b")])

    assert [card.id for card in catalogue.cards()] == ["b"]
    with pytest.raises(UnknownModel):
        catalogue.resolve("a")


def test_offers_of_different_backends_stand_beside_each_other() -> None:
    catalogue = Catalogue([])
    other = ModelCard(id="b", backend="litellm", sources={"litellm": RemoteSource(name="b")})
    catalogue.offer("vllm", [offered("a")])
    catalogue.offer("litellm", [other])

    assert [card.id for card in catalogue.cards()] == ["a", "b"]


def test_an_offer_under_a_known_name_is_one_more_source_of_that_model_under_all_its_names() -> None:
    card = ModelCard(
        id="a", aliases=("x",), backend="llamacpp", sources={"llamacpp": FileSource(path="a.gguf")}
    )
    catalogue = Catalogue([card])
    catalogue.offer("vllm", [offered("a")])

    assert catalogue.resolve("x").backends == ("llamacpp", "vllm")
    assert catalogue.resolve("a").backend == "llamacpp"
    assert len(catalogue.cards()) == 1


def test_a_cards_own_remote_name_wins_and_its_hub_source_does_not() -> None:
    named = ModelCard(id="a", backend="vllm", sources={"vllm": RemoteSource(name="other")})
    fetched = ModelCard(id="b", backend="vllm", sources={"vllm": HubSource(repo="x/b")})
    catalogue = Catalogue([named, fetched])
    catalogue.offer("vllm", [offered("a"), offered("b")])

    assert catalogue.resolve("a").sources["vllm"] == RemoteSource(name="other")
    assert catalogue.resolve("b").sources["vllm"] == RemoteSource(name="b")


def test_what_a_backend_says_of_a_model_is_found_with_and_without_its_provider() -> None:
    catalogue = Catalogue([])
    listed = offered("gpt-4o").model_copy(update={"owned_by": "openai"})
    catalogue.offer("vllm", [listed])

    assert catalogue.offered("vllm", "gpt-4o") == listed
    assert catalogue.offered("vllm", "openai/gpt-4o") == listed
    assert catalogue.offered("vllm", "azure/gpt-4o") is None
    assert catalogue.offered("litellm", "gpt-4o") is None
