"""The tokenizer of BERT models against the one that they were trained with."""

from __future__ import annotations

import pytest

pytest.importorskip("llama_cpp", reason="the engine is not installed")

from tokenizers import Tokenizer

from backends.llamacpp.wordpiece import MAX_CACHED_WORDS, WordPiece
from tests.backends.reference.sentences import WRITTEN, made
from tests.backends.shipped_embedder import folder, weights

pytestmark = pytest.mark.engine

CURIOUS = (
    "",
    "   ",
    "[CLS] [MASK] x [SEP]",
    "[cls] is not [CLS]",
    "a\0b\ufffdc\u200bd\u00ade",
    "line\u2028and\u2029paragraph\x85and\x7fmore",
    "a" * 100,
    "a" * 101,
    "я" * 101,
    "ΑΣ ΑΣΑ σ ς",
    "İ ı ẞ ß ﷺ ǅ",
    "x\u0301y\u0302 \u0e33 \u1161 ᄀᄋᄉ",
    "\ue000 \U000e0041 \u0378",
)


@pytest.fixture(scope="module")
def original() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@pytest.mark.parametrize("is_plain_allowed", [True, False])
async def test_a_thousand_sentences_of_many_scripts_have_the_original_tokens(
    original: Tokenizer, is_plain_allowed: bool
) -> None:
    async with weights() as model:
        ours = WordPiece.of(model)
        assert ours is not None
        if not is_plain_allowed:
            ours = WordPiece(words=ours._words, pieces=ours._pieces, specials=ours._specials)

        differing = [
            text
            for text in (*WRITTEN, *made(1000), *CURIOUS)
            if ours.encode(text) != original.encode(text).ids
        ]

    assert differing == []


async def test_a_text_that_llama_cpp_tokenises_itself_has_the_same_tokens() -> None:
    async with weights() as model:
        ours = WordPiece.of(model)
        assert ours is not None
        bare = WordPiece(words=ours._words, pieces=ours._pieces, specials=ours._specials)
        ascii_texts = [text for text in made(2000, seed=3) if text.isascii()]

        assert len(ascii_texts) > 100
        assert all(ours.encode(text) == bare.encode(text) for text in ascii_texts)


def test_the_words_that_are_remembered_are_bounded() -> None:
    tokenizer = WordPiece(words={"a": 5}, pieces={"b": 6}, specials={"[CLS]": 1, "[SEP]": 2, "[UNK]": 3})

    for number in range(MAX_CACHED_WORDS + 10):
        tokenizer.encode(f"é{number}")

    assert len(tokenizer._known) == MAX_CACHED_WORDS


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a", [1, 5, 2]),
        ("abb", [1, 5, 6, 6, 2]),
        ("ab ba", [1, 5, 6, 3, 2]),
        ("a.a", [1, 5, 3, 5, 2]),
        ("[SEP]a", [1, 2, 5, 2]),
    ],
)
def test_a_word_is_its_longest_known_pieces_or_unknown(text: str, ids: list[int]) -> None:
    tokenizer = WordPiece(words={"a": 5}, pieces={"b": 6}, specials={"[CLS]": 1, "[SEP]": 2, "[UNK]": 3})

    assert tokenizer.encode(text) == ids
