"""Ranks of a GGUF that scores pairs of texts: the shipped embedding model with made-up weights for a score on top."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="the engine is not installed")
pytest.importorskip("gguf", reason="the converter's package is not installed")

import gguf
import numpy as np

from backends.embedding import RerankRequest
from backends.errors import ContextLengthExceeded, UnsupportedParameter
from backends.llamacpp.embedding import EmbeddingConfig, EmbeddingContext
from backends.llamacpp.model import GgufModel
from backends.llamacpp.pairs import PairFrame
from backends.pool import PooledBackend
from backends.types import TextPrompt
from models.catalogue import Catalogue
from models.convert import convert
from models.gguf import read_header
from tests.backends.embedding_contract import embedded, wanted
from tests.backends.shipped_embedder import folder
from tests.backends.shipped_model import a_loader

pytestmark = pytest.mark.engine

DIMENSIONS = 384


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ranker.gguf` in a model folder."""
    path = tmp_path_factory.mktemp("models") / "ranker.gguf"
    source = gguf.GGUFReader(convert(folder()))
    writer = gguf.GGUFWriter(path, "bert")
    for name, field in source.fields.items():
        value, kind = field.contents(), field.types[0]
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == "bert.pooling_type":
            writer.add_pooling_type(gguf.PoolingType.RANK)
        elif kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, kind)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.add_tensor("cls.output.weight", score_weights()[None])
    writer.add_tensor("cls.output.bias", np.array([0.25], dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def score_weights() -> np.ndarray:
    return (np.random.default_rng(5).standard_normal(DIMENSIONS) / 40).astype(np.float32)


def a_backend(reranker: Path) -> PooledBackend:
    return PooledBackend(a_loader(model_dirs=(reranker.parent,)))


def asked(*documents: str, query: str = "where do rivers end", top_n: int | None = None) -> RerankRequest:
    return RerankRequest(request_id="r", model="ranker", query=query, documents=documents, top_n=top_n)


def test_the_catalogue_sees_that_it_ranks(reranker: Path) -> None:
    (card,) = [
        c for c in Catalogue.load(None, model_dirs=(reranker.parent,)).cards("llamacpp") if c.id == "ranker"
    ]

    assert card.capabilities == ("rerank",)
    assert read_header(reranker).is_reranker


async def test_each_document_gets_the_score_of_its_pair_and_the_best_come_first(reranker: Path) -> None:
    documents = ("In the sea.", "A stone is hard.", "Bread is baked at night in the village.")
    backend = a_backend(reranker)

    found = await backend.rerank(asked(*documents))
    alone = [(await backend.rerank(asked(document))).scores[0].score for document in documents]
    await backend.aclose()

    scores = {score.index: score.score for score in found.scores}
    assert [scores[i] for i in range(3)] == pytest.approx(alone, abs=1e-3)
    assert [s.score for s in found.scores] == sorted(scores.values(), reverse=True)
    assert all(0 < score < 1 for score in alone)
    assert len(set(alone)) == 3


async def test_top_n_keeps_the_best(reranker: Path) -> None:
    backend = a_backend(reranker)

    whole = await backend.rerank(asked("a river", "the sea", "stone"))
    best = await backend.rerank(asked("a river", "the sea", "stone", top_n=2))
    await backend.aclose()

    assert [s.index for s in best.scores] == [s.index for s in whole.scores][:2]
    assert best.prompt_tokens == whole.prompt_tokens


async def test_a_pair_that_is_too_long_is_refused_with_both_numbers(reranker: Path) -> None:
    backend = a_backend(reranker)

    with pytest.raises(ContextLengthExceeded) as caught:
        await backend.rerank(asked("short", "word " * 600))
    await backend.aclose()

    assert caught.value.param == "documents"
    assert caught.value.prompt_tokens > caught.value.context_length


async def test_a_model_that_ranks_makes_no_vectors(reranker: Path) -> None:
    backend = a_backend(reranker)

    with pytest.raises(UnsupportedParameter):
        await embedded(backend, wanted("ranker", "a"))
    assert await backend.count_tokens("ranker", TextPrompt(text="hello world")) == 4
    await backend.aclose()


def test_the_score_is_what_the_weights_make_of_the_first_token(reranker: Path, tmp_path: Path) -> None:
    model, plain = GgufModel(reranker), GgufModel(_with_first_token(tmp_path))
    config = EmbeddingConfig(max_tokens=256, max_sequences=2, n_threads=1)
    ranking, pooling = EmbeddingContext(model, config), EmbeddingContext(plain, config)
    frame = PairFrame.of(model)
    pair = frame.join(
        model.tokenize("rivers", add_special=False, parse_special=True),
        model.tokenize("the sea", add_special=False, parse_special=True),
    )

    score = float(ranking.compute([pair])[0][0])
    state = pooling.compute([pair])[0]

    for context in (ranking, pooling):
        context.close()
    for weights in (model, plain):
        weights.close()
    assert (pair[0], pair[-1], pair.count(102)) == (101, 102, 2)
    assert score == pytest.approx(float(state @ score_weights()) + 0.25, abs=2e-3)
    assert math.isfinite(score)


def _with_first_token(tmp_path: Path) -> Path:
    """The same weights, pooled to the state of the first token."""
    (tmp_path / "1_Pooling").mkdir()
    for file in folder().iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    return convert(tmp_path, cache=tmp_path)
