"""The catalogue: the shipped one, mistakes in it, and cards beside files and hub ids."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from models.card import FileSource, HubSource, ModelCard, SamplingDefaults
from models.catalogue import SHIPPED, Catalogue, CatalogueError, CatalogueFile, read_catalogue, schema_text
from tests.models.catalogues import BASE, file_card, ids, of, unknown
from tests.models.gguf_files import write_gguf

# The shipped file


def test_the_shipped_catalogue_offers_the_default_model() -> None:
    card = Catalogue.load(None).resolve("smollm2-135m-instruct")

    assert (card.backend, card.context_length, card.capabilities) == (
        "llamacpp",
        8192,
        ("chat", "completion"),
    )


def test_the_schema_beside_the_catalogue_is_current() -> None:
    assert SHIPPED.with_name("catalogue.schema.json").read_text("utf-8") == schema_text()


def commented_card() -> dict[str, object]:
    """The example with every option, with the marks taken off; an alternative has two."""
    example = SHIPPED.read_text("utf-8").split("a test reads it.\n#\n")[1]
    lines = [line[1:] for line in example.splitlines()]
    card = yaml.safe_load("models:\n" + "\n".join(lines))["models"][0]
    assert isinstance(card, dict)
    return card


def test_the_example_in_the_shipped_file_is_a_valid_card() -> None:
    assert CatalogueFile.model_validate({"models": [commented_card()]})


def test_every_option_of_a_card_stands_in_the_example_once() -> None:
    text = SHIPPED.read_text("utf-8")

    assert set(commented_card()) == set(ModelCard.model_fields)
    sampling = commented_card()["sampling"]
    assert isinstance(sampling, dict)
    assert set(sampling) == set(SamplingDefaults.model_fields)
    for option in ("path", "package", "resource", "version", "repo", "file", "revision", "name"):
        assert re.search(rf"^#[ #]+{option}:", text, re.MULTILINE), option


# The file's own mistakes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [", "not YAML"),
        ("\x00", "not YAML"),
        ("", "the whole file: should be options with their values"),
        ("[]", "the whole file: should be options with their values"),
        ("models: 5", "models: should be a list"),
        ("models: [a]", "model number 1: should be options with their values"),
        ("models: [{id: load, sources: {fake: {name: a}}}]", "'load' cannot be a model's name"),
        ("models: []\nextra: 1", "extra: is not an option"),
        ("models:\n- sources: {llamacpp: {path: m}}", "model number 1: id: field required"),
        (
            "models:\n- id: a\n  sources: {llamacpp: {path: m, paht: n}}",
            "model 'a': sources.llamacpp.paht: is not an",
        ),
        ("models:\n- id: a\n  id: b\n  sources: {llamacpp: {path: m}}", "'id' appears twice"),
        (
            "models:\n- id: a\n  sources: {llamacpp: {path: m}}\n  sampling: {temperature: 3}",
            "model 'a': sampling.temperature: input should be less than or equal to 2",
        ),
        (
            "models:\n- {id: a, sources: {fake: {name: a}}}\n- {id: b, aliases: [a], sources: {fake: {name: b}}}",
            "the name 'a' is used by 'a' and again by 'b'",
        ),
    ],
)
def test_a_mistake_in_the_catalogue_is_named_with_its_place(
    written: Callable[[str], Path], text: str, words: str
) -> None:
    with pytest.raises(CatalogueError, match=re.escape(words)):
        Catalogue.load(written(text))


def test_all_mistakes_are_named_at_once(written: Callable[[str], Path]) -> None:
    path = written("models:\n- {id: ../a, sources: {fake: {name: a}}}\n- {id: b, sources: {}}\n")

    with pytest.raises(CatalogueError) as caught:
        read_catalogue(path)

    assert len(str(caught.value).splitlines()) == 2


def test_a_missing_catalogue_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"absent\.yaml"):
        Catalogue.load(tmp_path / "absent.yaml")


# Cards and files together


def test_a_card_wins_over_a_file_of_the_same_name(models: Path) -> None:
    write_gguf(models / "m.gguf")
    card = ModelCard.model_validate({"id": "m", "sources": {"fake": {"name": "m"}}})
    catalogue = of(models, cards=[card])

    assert [listed.backend for listed in catalogue.cards()] == ["fake"]
    assert catalogue.resolve("m").backend == "fake"


def test_a_file_that_a_card_points_to_is_no_second_model(models: Path) -> None:
    write_gguf(models / "m.gguf")
    catalogue = of(models, cards=[file_card("mine", "m.gguf")])

    assert ids(catalogue) == ["mine"]
    assert catalogue.resolve("m").id == "mine"


def test_what_a_card_leaves_open_is_read_from_its_file(models: Path) -> None:
    write_gguf(models / "m.gguf", BASE)
    card = of(models, cards=[file_card("mine", "m.gguf")]).resolve("mine")

    assert (card.context_length, card.capabilities) == (512, ("completion",))


def test_what_a_card_says_wins_over_its_file(models: Path) -> None:
    write_gguf(models / "m.gguf")
    cards = [file_card("mine", "m.gguf", context_length=128, capabilities=["completion"])]
    card = of(models, cards=cards).resolve("mine")

    assert (card.context_length, card.capabilities) == (128, ("completion",))


def test_a_template_in_the_card_makes_a_base_model_chat(models: Path) -> None:
    write_gguf(models / "m.gguf", BASE)
    card = of(models, cards=[file_card("mine", "m.gguf", chat_template="{{ messages }}")]).resolve("mine")

    assert card.capabilities == ("chat", "completion")


def test_a_relative_path_is_looked_for_in_every_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = write_gguf(tmp_path / "b" / "m.gguf")
    catalogue = of(tmp_path / "a", tmp_path / "b", cards=[file_card("mine", "m.gguf")])

    assert catalogue.resolve("mine").sources["llamacpp"] == FileSource(path=str(path))


def test_a_card_whose_file_is_missing_is_still_listed(models: Path) -> None:
    assert ids(of(models, cards=[file_card("mine", "absent.gguf")])) == ["mine"]


def test_aliases_resolve_to_the_card() -> None:
    assert of(cards=[file_card("mine", "/m.gguf", aliases=["other"])]).resolve("other").id == "mine"


def test_only_cards_with_a_source_for_the_backend_are_listed_for_it(models: Path) -> None:
    write_gguf(models / "m.gguf")
    both = ModelCard.model_validate(
        {"id": "b", "sources": {"vllm": {"repo": "o/r"}, "litellm": {"name": "x/y"}}}
    )
    catalogue = of(models, cards=[both])

    assert [card.id for card in catalogue.cards("litellm")] == ["b"]
    assert [card.id for card in catalogue.cards("llamacpp")] == ["m"]
    assert catalogue.cards("nonsense") == ()


def test_an_unknown_name_is_answered_with_near_ones(models: Path) -> None:
    write_gguf(models / "qwen2-7b.gguf")

    assert unknown(of(models), "qwen2-7").near == ("qwen2-7b",)


# The hub


def test_no_hub_id_is_known_unless_allowed() -> None:
    assert unknown(of(), "meta-llama/Llama-2-7b-chat-hf")


def test_an_allowed_repository_is_for_vllm() -> None:
    card = of(hub_allow=("meta-llama/*",)).resolve("meta-llama/Llama-2-7b-chat-hf")

    assert card.sources == {"vllm": HubSource(repo="meta-llama/Llama-2-7b-chat-hf")}


def test_an_allowed_gguf_is_for_llamacpp() -> None:
    card = of(hub_allow=("*/*-GGUF/*",)).resolve("o/r-GGUF/m.Q4_K_M.gguf")

    assert card.sources == {"llamacpp": HubSource(repo="o/r-GGUF", file="m.Q4_K_M.gguf")}


def test_allowed_hub_ids_are_not_listed() -> None:
    catalogue = of(hub_allow=("*",))
    catalogue.resolve("o/r")

    assert catalogue.cards() == ()
