"""What every backend that makes embeddings must show. `tests/backends/test_*` subclass it.

A subclass provides `backend`, started and not yet used; `embedder`, the id of a card that it embeds with, whose context
is a few hundred to a few thousand tokens; and where it has one, `generator`, a card that only generates text.
"""

from __future__ import annotations

import asyncio
import struct
from itertools import count
from typing import Any

import pytest

from backends.base import Backend
from backends.embedding import EmbeddingInput, EmbeddingRequest, Embeddings
from backends.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    NotSupported,
    RequestError,
    UnsupportedParameter,
)
from backends.types import TextPrompt, TokenPrompt
from models.errors import UnknownModel
from tests.backends.contract import events_of, request

FOX = "The quick brown fox jumps over the lazy dog."
FOXES = "A fast brown fox leaps over a lazy dog."
PARSER = "The parser reports a syntax error in line 40."

_ids = count()


def wanted(model: str, *inputs: str | list[int], **fields: Any) -> EmbeddingRequest:
    prompts: tuple[EmbeddingInput, ...] = tuple(
        TextPrompt(text=one) if isinstance(one, str) else TokenPrompt(token_ids=one) for one in inputs
    )
    return EmbeddingRequest(**{"request_id": f"e{next(_ids)}", "model": model, "inputs": prompts, **fields})


def numbers(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def cosine(one: bytes, other: bytes) -> float:
    a, b = numbers(one), numbers(other)
    norms = sum(x * x for x in a) ** 0.5 * sum(x * x for x in b) ** 0.5
    return float(sum(x * y for x, y in zip(a, b, strict=True)) / norms)


async def embedded(backend: Backend, request: EmbeddingRequest, *, patience_s: float = 60.0) -> Embeddings:
    async with asyncio.timeout(patience_s):
        return await backend.embed(request)


class EmbeddingContract:
    async def test_how_vectors_were_made_is_told_where_it_is_wanted_and_changes_nothing(
        self, backend: Backend, embedder: str
    ) -> None:
        plain = await embedded(backend, wanted(embedder, FOX))
        asked = await embedded(backend, wanted(embedder, FOX, wants_provenance=True))

        assert plain.provenance is None
        assert asked.provenance is not None
        assert asked.provenance.engine
        assert cosine(plain.vectors[0], asked.vectors[0]) == pytest.approx(1, abs=1e-6)

    async def test_each_input_gets_a_vector_of_length_one(self, backend: Backend, embedder: str) -> None:
        found = await embedded(backend, wanted(embedder, FOX, PARSER))

        assert len(found.vectors) == 2
        assert [sum(x * x for x in numbers(v)) for v in found.vectors] == pytest.approx([1, 1], abs=1e-3)
        assert len({len(v) for v in found.vectors}) == 1

    async def test_texts_that_mean_the_same_lie_closer_together(
        self, backend: Backend, embedder: str
    ) -> None:
        fox, foxes, parser = (await embedded(backend, wanted(embedder, FOX, FOXES, PARSER))).vectors

        assert cosine(fox, foxes) > cosine(fox, parser) + 0.1

    async def test_the_vectors_stand_in_the_order_of_the_inputs(
        self, backend: Backend, embedder: str
    ) -> None:
        texts = [f"{word} and nothing else but {word}" for word in ("water", "stone", "copper", "bread") * 20]

        many = await embedded(backend, wanted(embedder, *texts))
        alone = [(await embedded(backend, wanted(embedder, text))).vectors[0] for text in texts[:4]]

        assert len(many.vectors) == 80
        assert all(cosine(vector, alone[i % 4]) > 0.999 for i, vector in enumerate(many.vectors))

    async def test_usage_counts_the_tokens_of_every_input(self, backend: Backend, embedder: str) -> None:
        one = await embedded(backend, wanted(embedder, FOX))
        three = await embedded(backend, wanted(embedder, FOX, FOX, FOX))

        assert one.prompt_tokens > 5
        assert three.prompt_tokens == 3 * one.prompt_tokens

    async def test_dimensions_cut_a_vector_and_bring_it_back_to_length_one(
        self, backend: Backend, embedder: str
    ) -> None:
        whole = (await embedded(backend, wanted(embedder, FOX))).vectors[0]
        short = (await embedded(backend, wanted(embedder, FOX, dimensions=8))).vectors[0]

        assert len(short) == 8 * 4
        assert sum(x * x for x in numbers(short)) == pytest.approx(1, abs=1e-3)
        assert cosine(short, whole[: 8 * 4]) == pytest.approx(1, abs=1e-3)

    async def test_more_dimensions_than_the_model_has_are_refused(
        self, backend: Backend, embedder: str
    ) -> None:
        with pytest.raises(RequestError) as caught:
            await embedded(backend, wanted(embedder, FOX, dimensions=60_000))

        assert caught.value.param == "dimensions"

    async def test_an_input_longer_than_the_context_is_refused_with_both_numbers(
        self, backend: Backend, embedder: str
    ) -> None:
        with pytest.raises(ContextLengthExceeded) as caught:
            await embedded(backend, wanted(embedder, FOX, "word " * 20_000))

        assert caught.value.prompt_tokens >= 20_000
        assert 64 <= caught.value.context_length < 20_000
        assert caught.value.param == "input"

    async def test_one_bad_request_fails_none_that_run_beside_it(
        self, backend: Backend, embedder: str
    ) -> None:
        good = [wanted(embedder, f"sentence number {i}") for i in range(12)]
        bad = [wanted(embedder, "word " * 20_000), wanted(embedder, FOX, dimensions=60_000)]

        outcomes = await asyncio.gather(
            *(embedded(backend, one) for one in [*good[:6], *bad, *good[6:]]), return_exceptions=True
        )

        failed = [isinstance(outcome, Exception) for outcome in outcomes]
        assert failed == [False] * 6 + [True] * 2 + [False] * 6

    async def test_requests_at_once_get_what_they_would_get_alone(
        self, backend: Backend, embedder: str
    ) -> None:
        texts = [f"{word} {i}" for i in range(8) for word in (FOX, PARSER)]

        together = await asyncio.gather(*(embedded(backend, wanted(embedder, text)) for text in texts))
        alone = [await embedded(backend, wanted(embedder, text)) for text in texts]

        pairs = zip(together, alone, strict=True)
        assert all(cosine(a.vectors[0], b.vectors[0]) > 0.999 for a, b in pairs)

    async def test_a_request_that_is_given_up_harms_no_other(self, backend: Backend, embedder: str) -> None:
        await embedded(backend, wanted(embedder, FOX))
        given_up = [asyncio.ensure_future(backend.embed(wanted(embedder, FOX))) for _ in range(4)]
        kept = asyncio.ensure_future(embedded(backend, wanted(embedder, PARSER)))
        await asyncio.sleep(0)

        for task in given_up:
            task.cancel()
        outcomes = await asyncio.gather(*given_up, return_exceptions=True)

        assert all(isinstance(outcome, asyncio.CancelledError | Embeddings) for outcome in outcomes)
        assert len((await kept).vectors) == 1

    async def test_an_unknown_model_is_unknown(self, backend: Backend) -> None:
        with pytest.raises(UnknownModel):
            await embedded(backend, wanted("no-such-model", FOX))

    async def test_a_model_that_makes_vectors_generates_no_text(
        self, backend: Backend, embedder: str
    ) -> None:
        with pytest.raises((UnsupportedParameter, NotSupported)):
            await events_of(backend, request(embedder))


class LocalEmbeddingContract(EmbeddingContract):
    """For backends whose models are loaded here, and take token ids."""

    async def test_token_ids_are_taken_as_they_are(self, backend: Backend, embedder: str) -> None:
        found = await embedded(backend, wanted(embedder, [5, 9, 1000], [7]))

        assert (len(found.vectors), found.prompt_tokens) == (2, 4)

    async def test_a_token_id_outside_the_vocabulary_is_refused(
        self, backend: Backend, embedder: str
    ) -> None:
        with pytest.raises(InvalidParameter) as caught:
            await embedded(backend, wanted(embedder, [5], [2_000_000_000]))

        assert caught.value.param == "input"

    async def test_a_model_that_generates_text_makes_no_vectors(
        self, backend: Backend, generator: str
    ) -> None:
        with pytest.raises(UnsupportedParameter):
            await embedded(backend, wanted(generator, FOX))

    async def test_an_unloaded_model_is_loaded_again_by_the_next_request(
        self, backend: Backend, embedder: str
    ) -> None:
        first = await embedded(backend, wanted(embedder, FOX))
        await backend.unload(embedder)

        second = await embedded(backend, wanted(embedder, FOX))

        assert cosine(first.vectors[0], second.vectors[0]) > 0.999

    async def test_an_unload_lets_running_requests_finish(self, backend: Backend, embedder: str) -> None:
        await embedded(backend, wanted(embedder, FOX))
        running = [asyncio.ensure_future(embedded(backend, wanted(embedder, FOX))) for _ in range(8)]
        await asyncio.sleep(0)

        await backend.unload(embedder)

        assert [len((await task).vectors) for task in running] == [1] * 8
