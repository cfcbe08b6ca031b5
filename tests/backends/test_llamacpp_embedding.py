"""llama.cpp's embeddings: the contract, sentence-transformers' numbers, and one forward pass for many texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="the engine is not installed")

import numpy as np

from backends.base import Backend
from backends.batching import BatchLimits, Compute, Piece, Unbatched
from backends.embedding import RerankRequest
from backends.errors import BackendFailed, ContextLengthExceeded, UnsupportedParameter
from backends.llamacpp import embedding_pace
from backends.llamacpp.embedding import EmbeddingConfig, EmbeddingContext
from backends.llamacpp.model import GgufModel
from backends.types import TextPrompt
from models.convert import convert
from tests.backends.contract import endless
from tests.backends.embedding_contract import FOX, PARSER, LocalEmbeddingContract, embedded, numbers, wanted
from tests.backends.reference.sentences import WRITTEN
from tests.backends.serving import served
from tests.backends.shipped_embedder import EMBEDDER, a_pool, an_embedder, folder, weights
from tests.backends.shipped_model import MODEL

pytestmark = pytest.mark.engine

REFERENCE = Path(__file__).parent / "reference" / "all-minilm-l6-v2.npy"


@pytest.fixture
def embedder() -> str:
    return EMBEDDER


@pytest.fixture
def generator() -> str:
    return MODEL


class TestLlamaCpp(LocalEmbeddingContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with an_embedder() as backend:
            yield backend


class TestLlamaCppBehindTheRunnerWire(LocalEmbeddingContract):
    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with served(a_pool()) as client:
            yield client


async def test_the_vectors_are_those_of_sentence_transformers() -> None:
    reference = np.load(REFERENCE)

    async with an_embedder() as backend:
        found = await embedded(backend, wanted(EMBEDDER, *WRITTEN))

    ours = np.array([numbers(vector) for vector in found.vectors])
    assert ours.shape == reference.shape
    assert (ours * reference).sum(axis=1).min() >= 0.9999


class CountedCalls(Unbatched[Any, Any]):
    """Notes how many texts each engine call took."""

    sizes: Sequence[int] = ()

    def __init__(self, compute: Compute[Any, Any], limits: BatchLimits) -> None:
        async def counted(pieces: Sequence[Piece[Any]]) -> Sequence[Sequence[Any]]:
            type(self).sizes = [*self.sizes, sum(len(piece.inputs) for piece in pieces)]
            return await compute(pieces)

        super().__init__(counted, limits)


async def test_a_request_of_many_texts_is_as_few_forward_passes_as_fit() -> None:
    CountedCalls.sizes = ()

    async with an_embedder(make_batcher=CountedCalls, max_batch_size=32) as backend:
        await embedded(backend, wanted(EMBEDDER, *[FOX] * 80))

    assert CountedCalls.sizes == [32, 32, 16]


async def test_a_forward_pass_takes_no_more_tokens_than_it_has_room_for() -> None:
    CountedCalls.sizes = ()
    long = "word " * 250

    async with an_embedder(make_batcher=CountedCalls, max_batch_size=32) as backend:
        found = await embedded(backend, wanted(EMBEDDER, *[long] * 9))

    assert CountedCalls.sizes == [2, 2, 2, 2, 1]
    assert len(found.vectors) == 9


async def test_a_text_of_exactly_the_context_length_is_embedded() -> None:
    async with an_embedder() as backend:
        fits = await embedded(backend, wanted(EMBEDDER, "word " * 254))
        with pytest.raises(ContextLengthExceeded) as caught:
            await embedded(backend, wanted(EMBEDDER, "word " * 255))

    assert fits.prompt_tokens == caught.value.context_length == 256
    assert caught.value.prompt_tokens == 257


async def test_a_text_is_counted_with_its_first_and_last_token() -> None:
    async with an_embedder() as backend:
        assert await backend.count_tokens(EMBEDDER, TextPrompt(text="hello world")) == 4


async def test_a_model_that_makes_vectors_ranks_nothing() -> None:
    asked = RerankRequest(request_id="r", model=EMBEDDER, query="a", documents=("b",))

    async with an_embedder() as backend:
        with pytest.raises(UnsupportedParameter):
            await backend.rerank(asked)


async def test_closing_ends_what_waits_and_then_frees_the_weights() -> None:
    async with an_embedder() as backend:
        await embedded(backend, wanted(EMBEDDER, FOX))
        waiting = [
            asyncio.ensure_future(embedded(backend, wanted(EMBEDDER, *[PARSER] * 64))) for _ in range(4)
        ]
        await asyncio.sleep(0.01)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)

    assert all(isinstance(outcome, BackendFailed) or len(outcome.vectors) == 64 for outcome in outcomes)


async def test_a_pass_that_rests_for_an_answer_goes_on_when_the_answer_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedding_pace, "RESTS", 1e6)
    monkeypatch.setattr(embedding_pace, "_LONGEST_S", 1e6)
    monkeypatch.setattr(embedding_pace, "KEPT_WAITING", -1.0)  # each pass counts as one that had to share
    async with an_embedder() as backend:
        await embedded(backend, wanted(EMBEDDER, FOX))
        answer = backend.generate(endless(MODEL))
        await anext(answer)

        second = asyncio.ensure_future(embedded(backend, wanted(EMBEDDER, FOX)))
        for _ in range(20):
            await anext(answer)
        assert not second.done()

        await answer.aclose()
        assert len((await second).vectors) == 1


async def test_what_else_is_in_a_forward_pass_does_not_change_a_vector() -> None:
    async with weights() as model:
        context = EmbeddingContext(model, EmbeddingConfig(max_tokens=512, max_sequences=32, n_threads=1))
        fox = model.tokenize(FOX, add_special=True, parse_special=False)
        other = model.tokenize(PARSER * 6, add_special=True, parse_special=False)

        alone = context.compute([fox])[0]
        beside = context.compute([other, fox, other, fox])

        context.close()
    assert np.allclose(beside[1], alone, atol=2e-3)
    assert np.allclose(beside[3], alone, atol=2e-3)


@pytest.mark.parametrize(
    ("pooling", "token"), [("pooling_mode_cls_token", 0), ("pooling_mode_lasttoken", -1)]
)
async def test_pooling_follows_what_the_file_says(tmp_path: Path, pooling: str, token: int) -> None:
    (tmp_path / "1_Pooling").mkdir()
    for file in folder().iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "1_Pooling" / "config.json").write_text(f'{{"{pooling}": true}}')
    model = GgufModel(convert(tmp_path, cache=tmp_path))
    context = EmbeddingContext(model, EmbeddingConfig(max_tokens=512, max_sequences=2, n_threads=1))
    fox = model.tokenize(FOX, add_special=True, parse_special=False)

    row = context.compute([fox])[0]

    expected = _states_of(model, fox)[token]
    context.close()
    model.close()
    assert np.allclose(row, expected, atol=1e-4)


def _states_of(model: GgufModel, tokens: Sequence[int]) -> Any:
    """What the model computes for each token, from a context that pools nothing."""
    from backends.llamacpp.context import Batch
    from backends.llamacpp.lib import llama

    lib = llama()
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.embeddings, params.pooling_type, params.n_threads, params.n_threads_batch = True, 0, 1, 1
    handle = lib.llama_init_from_model(model.handle, params)
    batch = Batch(lib, 512)
    for position, token in enumerate(tokens):
        batch.add([token], start=position, slot_id=0, wants_logits=True)
    assert lib.llama_decode(handle, batch.struct()) == 0
    states = np.array([lib.llama_get_embeddings_ith(handle, i)[:384] for i in range(len(tokens))])
    lib.llama_free(handle)
    return states
