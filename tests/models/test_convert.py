"""A GGUF made of a folder of weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf", reason="the converter's package is not installed")

import gguf

from models.card import ModelCard
from models.convert import convert, converted_path, is_convertible
from models.errors import SourceUnavailable, UnusableModel
from models.gguf import read_header
from models.sources import local_path, materialise
from tests.models.bert_folder import CONFIG, TOKENIZER, VOCABULARY, bert_folder, tensors

MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


def fields_of(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_the_header_says_what_the_folder_says(tmp_path: Path) -> None:
    header = read_header(convert(bert_folder(tmp_path / "m", pooling=MEAN), cache=tmp_path))

    assert (header.architecture, header.name, header.pooling) == ("bert", "tiny", 1)
    assert (header.context_length, header.embedding_length, header.block_count) == (12, 8, 1)
    assert header.has_pooling
    assert not header.is_reranker


@pytest.mark.parametrize(
    ("pooling", "number"),
    [
        (MEAN, 1),
        ({"pooling_mode_cls_token": True}, 2),
        ({"pooling_mode_lasttoken": True}, 3),
        (None, 2),
    ],
)
def test_pooling_is_that_of_sentence_transformers(
    tmp_path: Path, pooling: dict[str, Any] | None, number: int
) -> None:
    header = read_header(convert(bert_folder(tmp_path / "m", pooling=pooling), cache=tmp_path))

    assert header.pooling == number


def test_words_are_marked_and_their_other_pieces_bare(tmp_path: Path) -> None:
    fields = fields_of(convert(bert_folder(tmp_path / "m"), cache=tmp_path))

    assert fields["tokenizer.ggml.tokens"] == [
        *VOCABULARY[:5],
        *("▁river", "s", "▁run", "ning", "▁##", "▁é"),
    ]
    assert fields["tokenizer.ggml.token_type"] == [3, 2, 3, 3, 3, *[1] * 6]
    assert fields["tokenizer.ggml.bos_token_id"] == 2
    assert fields["tokenizer.ggml.seperator_token_id"] == 3


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_every_tensor_is_there_in_full_but_those_without_use(tmp_path: Path, prefix: str) -> None:
    content = tensors(prefix)

    reader = gguf.GGUFReader(convert(bert_folder(tmp_path / "m", content=content), cache=tmp_path))

    found = {tensor.name: tensor.data for tensor in reader.tensors}
    assert len(found) == len(content) - 3
    query = content[f"{prefix}encoder.layer.0.attention.self.query.weight"]
    assert np.array_equal(found["blk.0.attn_q.weight"], query)


def test_a_second_call_takes_the_file_of_the_first(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "m")
    first = convert(folder, cache=tmp_path)
    stamp = first.stat().st_mtime_ns

    assert convert(folder, cache=tmp_path) == first
    assert first.stat().st_mtime_ns == stamp


def test_other_weights_make_another_file(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "m")
    before = converted_path(folder, tmp_path)

    bert_folder(folder, pooling=MEAN)

    assert converted_path(folder, tmp_path) != before


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {**CONFIG, "model_type": "llama"}},
        {"config": {key: value for key, value in CONFIG.items() if key != "hidden_size"}},
        {"tokenizer": {**TOKENIZER, "model": {**TOKENIZER["model"], "type": "BPE"}}},
        {"tokenizer": {**TOKENIZER, "normalizer": {"lowercase": False}}},
        {"tokenizer": {**TOKENIZER, "added_tokens": [], "model": {**TOKENIZER["model"], "vocab": {"a": 0}}}},
        {"pooling": {"pooling_mode_max_tokens": True}},
        {"content": {"embeddings.something_else.weight": np.zeros(4, dtype=np.float32)}},
    ],
)
def test_what_cannot_be_converted_is_unusable_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = bert_folder(tmp_path / "m", **changes)

    with pytest.raises(UnusableModel):
        convert(folder, cache=tmp_path / "cache")

    assert list((tmp_path / "cache").iterdir()) == []


def test_without_the_converters_package_the_model_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bert_folder(tmp_path / "m")
    monkeypatch.setitem(sys.modules, "gguf", None)

    with pytest.raises(SourceUnavailable, match="'gguf'"):
        convert(folder, cache=tmp_path)


def test_a_cache_that_cannot_be_written_is_told_without_its_path(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "m")
    (tmp_path / "cache").write_text("a file, not a folder")

    with pytest.raises(SourceUnavailable) as caught:
        convert(folder, cache=tmp_path / "cache")

    assert str(tmp_path) not in str(caught.value)


def test_a_card_that_names_the_folder_is_served_by_llama_cpp_from_the_made_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.convert._default_cache", lambda: tmp_path / "cache")
    folder = bert_folder(tmp_path / "m", pooling=MEAN)
    source = {"path": str(folder)}
    card = ModelCard.model_validate({"id": "tiny", "sources": {"llamacpp": source, "vllm": source}})
    steps: list[tuple[int, int]] = []

    before = local_path(card, "llamacpp")
    made = materialise(card, "llamacpp", on_progress=lambda *step: steps.append(step))

    assert before is None
    assert made == local_path(card, "llamacpp") == converted_path(folder)
    assert steps
    assert materialise(card, "vllm", on_progress=lambda *_: None) == folder


def test_a_folder_without_weights_is_not_taken_for_one(tmp_path: Path) -> None:
    assert not is_convertible(tmp_path)
