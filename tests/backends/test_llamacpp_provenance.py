"""What llama.cpp tells of an answer of the shipped model, and that it keeps its promise."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from backends.digest import ModelDigest
from backends.llamacpp.provenance import Witness, engine_version, machine
from backends.provenance import Provenance, digest_of_tokens
from backends.types import ChatPrompt, TextPrompt
from tests.backends.contract import CHAT, PROMPT, events_of, finished_of, request, text_of
from tests.backends.serving import served
from tests.backends.shipped_model import MODEL, a_backend, gguf

pytestmark = [pytest.mark.engine, pytest.mark.timeout(120)]


def told(events: object) -> Provenance:
    found = finished_of(events).provenance  # type: ignore[arg-type]
    assert found is not None
    return found


async def test_the_file_the_engine_and_the_machine_are_told_across_the_wire():
    async with a_backend() as backend, served(backend) as client:
        found = told(await events_of(client, request(MODEL, wants_provenance=True)))

    assert found.model_sha256 == hashlib.sha256(gguf().read_bytes()).hexdigest()
    assert not found.is_hashing
    assert (found.engine, found.engine_version) == ("llama.cpp", engine_version())
    assert "llama-cpp-python" in engine_version()
    assert found.machine == machine() != ""
    assert (found.repeats, found.why_not) == ("exact", None)


async def test_the_prompts_tokens_are_told_by_their_digest():
    async with a_backend() as backend:
        first, second, other = [
            told(await events_of(backend, request(MODEL, prompt, wants_provenance=True, max_tokens=1)))
            for prompt in (PROMPT, PROMPT, TextPrompt(text="Another one"))
        ]

    assert first.prompt_sha256 == second.prompt_sha256 != other.prompt_sha256


async def test_a_limit_beyond_the_contexts_end_is_told():
    async with a_backend(n_ctx=256) as backend:
        size = await backend.count_tokens(MODEL, PROMPT)
        beyond = told(await events_of(backend, request(MODEL, wants_provenance=True, max_tokens=1000)))
        within = told(await events_of(backend, request(MODEL, wants_provenance=True, max_tokens=9)))

    assert beyond.context_length == 256
    assert beyond.used == {"max_tokens": 256 - size}
    assert within.used == {}


async def test_slots_that_share_their_cells_promise_nothing():
    async with a_backend(kv_unified=True) as backend:
        found = told(await events_of(backend, request(MODEL, wants_provenance=True)))

    assert found.repeats == "likely"
    assert found.why_not is not None
    assert "share one KV cache" in found.why_not


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.1, "seed": 20_26, "n": 2}])
async def test_what_it_promises_it_keeps_in_another_process_life_and_beside_others(
    sampling: dict[str, object],
):
    wanted = {"max_tokens": 16, "wants_provenance": True, **sampling}
    async with a_backend() as backend:
        before = await events_of(backend, request(MODEL, CHAT, **wanted))
    async with a_backend() as backend:
        longer = ChatPrompt(messages=[*CHAT.messages, {"role": "assistant", "content": "A river"}])
        others = [
            events_of(backend, request(MODEL, longer, temperature=1.0, max_tokens=16)) for _ in range(3)
        ]
        noise = asyncio.gather(*others)
        await asyncio.sleep(0)
        beside = await events_of(backend, request(MODEL, CHAT, stream=True, **wanted))
        await noise
        after = await events_of(backend, request(MODEL, CHAT, **wanted))

    for index in range(int(str(sampling.get("n", 1)))):
        assert text_of(before, index) == text_of(beside, index) == text_of(after, index)
    assert told(before) == told(beside) == told(after)
    assert told(before).repeats == "exact"


async def test_a_hash_that_takes_long_is_in_a_later_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backends.llamacpp.provenance.DIGEST_WAIT_S", 0.0)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    digest = ModelDigest([file], cache=tmp_path / "c")
    witness = Witness(digest, context_length=100)
    first = await witness.testify([[1, 2]])
    await digest.within(5)
    second = await witness.testify([[1, 2]])

    assert (first.model_sha256, first.is_hashing) == (None, True)
    assert (second.model_sha256, second.is_hashing) == (hashlib.sha256(b"weights").hexdigest(), False)


def test_where_one_prompt_ends_and_the_next_begins_counts():
    assert digest_of_tokens([[1, 2], [3]]) != digest_of_tokens([[1], [2, 3]])
