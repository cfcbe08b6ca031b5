"""What a card accepts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from models.card import ModelCard, SamplingDefaults

FILE = {"path": "m.gguf"}
REMOTE = {"name": "openai/gpt-4o"}


def card(**fields: Any) -> ModelCard:
    return ModelCard.model_validate({"id": "m", "sources": {"llamacpp": FILE}, **fields})


def problems(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        card(**fields)
    return " ".join(
        f"{'.'.join(map(str, problem['loc']))} {problem['msg']}" for problem in caught.value.errors()
    )


def test_the_first_source_serves_where_no_backend_is_named() -> None:
    both = card(sources={"vllm": {"repo": "o/r"}, "llamacpp": FILE})

    assert both.backend == "vllm"
    assert both.backends == ("vllm", "llamacpp")


def test_a_named_backend_needs_a_source() -> None:
    assert "no source" in problems(backend="vllm")


def test_a_card_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        card().autoload = False  # type: ignore[misc]


@pytest.mark.parametrize("name", ["../m", "/m", "a\\b", "http://h/m", "", "x" * 257, "a\nb"])
def test_ids_and_aliases_that_no_request_may_carry_are_refused(name: str) -> None:
    assert problems(id=name)
    assert problems(aliases=[name])


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        ("litellm", FILE, "cannot be a file"),
        ("fake", {"repo": "o/r"}, "cannot be a hub repository"),
        ("llamacpp", REMOTE, "cannot be a remote name"),
        ("llamacpp", {"repo": "o/r"}, "needs 'file'"),
        ("llamacpp", {}, "needs one of the keys"),
        ("llamacpp", {"nome": "x"}, "needs one of the keys"),
        ("llamacpp", {"path": "../m.gguf"}, "'..'"),
        ("llamacpp", {"package": "a.b", "resource": "m.gguf"}, "pattern"),
        ("llamacpp", {"package": "a", "resource": "../m.gguf"}, "'..'"),
        ("llamacpp", {"package": "a", "resource": "/m.gguf"}, "inside the package"),
        ("llamacpp", {"repo": "o/r", "file": "../m.gguf"}, "inside the repository"),
        ("vllm", {"repo": "https://hub/o/r"}, "owner/name"),
        ("vllm", {"path": "x", "repo": "o/r"}, "Extra inputs"),
        ("llama", FILE, "Input should be"),
    ],
)
def test_a_source_that_its_backend_cannot_use_is_refused(
    kind: str, source: dict[str, str], words: str
) -> None:
    assert words in problems(sources={kind: source})


def test_a_remote_vllm_and_a_local_file_stand_in_one_card() -> None:
    assert card(sources={"llamacpp": FILE, "vllm": REMOTE}).backends == ("llamacpp", "vllm")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in (-0.1, 2.1, True, "0.7", float("nan"))),
        *(("top_p", value) for value in (-0.1, 1.1)),
        *(("top_k", value) for value in (-1, 1.5, True)),
        *(("presence_penalty", value) for value in (-2.1, 2.1)),
        *(("repetition_penalty", value) for value in (0, -1)),
        *(("max_tokens", value) for value in (0, 1_000_001)),
        *(("stop", value) for value in ([""], ["x"] * 17, "x")),
        ("temprature", 1),
    ],
)
def test_sampling_defaults_keep_the_ranges_of_requests(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        SamplingDefaults.model_validate({field: value})


def test_whole_numbers_are_accepted_where_fractions_are() -> None:
    assert card(sampling={"temperature": 0}).sampling.temperature == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"sha256": "ABC"},
        {"sha256": "A" * 64},
        {"context_length": 0},
        {"idle_ttl_s": 0},
        {"capabilities": ["sing"]},
        {"preload": True, "autoload": False},
        {"sources": {}},
        {"autoloads": True},
        {"created": -1},
        {"fallbacks": ["../x"]},
        {"fallbacks": [f"other{i}" for i in range(9)]},
        {"fallbacks": ["other"], "when": []},
        {"fallbacks": ["other"], "when": ["tired"]},
        {"max_price": {"prompt": 1}},
        {"max_price": {"prompt": -1, "completion": 1}},
    ],
)
def test_impossible_options_are_refused(fields: dict[str, object]) -> None:
    assert problems(**fields)


def test_cards_can_stand_in_a_set() -> None:
    assert len({card(), card(), card(id="other")}) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"fallbacks": ["other", "other"]}, "twice"),
        ({"fallbacks": ["again"], "aliases": ["again"]}, "the model itself"),
        ({"when": ["overloaded"]}, "when needs fallbacks"),
    ],
)
def test_fallbacks_that_make_no_sense_are_refused_with_the_reason(
    fields: dict[str, object], words: str
) -> None:
    assert words in problems(**fields)


def test_fallbacks_help_against_everything_they_can_unless_the_card_says_when() -> None:
    assert card(fallbacks=["other"]).when == ("unavailable", "overloaded", "context_length")
    assert card(fallbacks=["other"], when=["overloaded"]).when == ("overloaded",)


def test_a_fallback_is_named_as_a_model_is_asked_for() -> None:
    assert card(fallbacks=["openai/gpt-4o", "caf\u0065\u0301"]).fallbacks == ("openai/gpt-4o", "caf\u00e9")
