"""vLLM itself meets the contract, behind the runner's wire. One engine serves all tests; each has a pool of its own,
for which loading is only to connect."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from backends.base import Backend
from backends.errors import InvalidGrammar, InvalidParameter
from backends.loader import LoadedModel
from backends.pool import PooledBackend
from backends.registry import FEATURES
from backends.types import ChatPrompt, GenerationRequest, LoadProgress, SamplingParams
from backends.vllm.loaded import VLLMModel
from backends.vllm.loader import VLLMLoader
from backends.vllm.options import VLLMOptions, command_of, environment_of
from backends.vllm.process import EngineProcess
from backends.vllm.upstream import Upstream
from backends.vllm.weights import read_facts
from models.card import ModelCard
from models.catalogue import Catalogue
from tests.backends.contract import (
    CHAT,
    PROMPT,
    TOOLS,
    BackendContract,
    calls_of,
    endings_of,
    events_of,
    finished_of,
    request,
    text_of,
)
from tests.backends.serving import served
from tests.vllm_engine.conftest import CARD_ARGS

MODEL = "tiny"
CONTEXT = 256


@dataclass(frozen=True)
class Served:
    """An engine that runs as long as the tests of this module."""

    socket: Path
    catalogue: Catalogue
    weights: Path


class _Lent:
    """Stands for the process that the tests share: nobody may end it."""

    failure = None
    on_failure: Callable[[], None]

    async def fallen(self, within_s: float) -> bool:
        return False

    async def stop(self) -> None:
        """It goes on; closed connections get the moment that they need."""
        await asyncio.sleep(0)


class SharedLoader(VLLMLoader):
    """Connects to the engine that runs instead of starting one."""

    def __init__(self, shared: Served) -> None:
        super().__init__(shared.catalogue, VLLMOptions(device="cpu"))
        self._shared = shared

    @override
    async def load(self, card: ModelCard, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        facts = await asyncio.to_thread(read_facts, self._shared.weights)
        upstream = Upstream(f"file://{self._shared.socket}")
        (model,) = await upstream.models()
        assert model.context_length is not None
        return VLLMModel(
            card.id,
            cast(EngineProcess, _Lent()),
            upstream,
            context_length=model.context_length,
            memory_bytes=0,
            num_vocab_tokens=facts.num_vocab_tokens,
        )


@pytest.fixture(scope="module")
def shared(vllm_python: str, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("v")
    file = folder / "catalogue.yaml"
    own = "{tool_call_parser: hermes}"
    file.write_text(f"models: [{{id: {MODEL}, sources: {{vllm: {{path: {weights}}}}}, vllm: {own}}}]")
    catalogue = Catalogue.load(file)
    home = folder / "e"
    home.mkdir()
    path = home / "s"
    options = VLLMOptions(
        python=vllm_python,
        max_model_len=CONTEXT,
        max_num_seqs=16,
        extra_args=CARD_ARGS,
        environment=dict(os.environ),
    )
    device = VLLMLoader(catalogue, options).device
    command = command_of(
        catalogue.resolve(MODEL), weights, path, options, memory_share=0.3, kv_cache_bytes=256 << 20
    )
    with (folder / "engine.log").open("wb") as log:
        engine = subprocess.Popen(
            command,
            env=environment_of(options, home, device),
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_healthy(engine, path, folder / "engine.log")
        yield Served(path, catalogue, weights)
    finally:
        engine.terminate()
        try:
            engine.wait(20)
        finally:
            assert engine.stdin is not None
            engine.stdin.close()  # its guard ends the rest
            engine.wait(20)


def wait_until_healthy(engine: subprocess.Popen[bytes], path: Path, log: Path) -> None:
    deadline = time.monotonic() + 400
    while engine.poll() is None and time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(str(path))
            probe.sendall(b"GET /health HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n")
            if probe.recv(20).startswith(b"HTTP/1.1 200"):
                return
        time.sleep(0.2)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    pytest.fail(f"vLLM did not become ready; the end of its log:\n{tail}", pytrace=False)


@pytest.fixture
def model() -> str:
    return MODEL


class TestVLLMBehindTheRunnerWire(BackendContract):
    @pytest.fixture
    async def backend(self, shared: Served) -> AsyncIterator[Backend]:
        pool = PooledBackend(SharedLoader(shared))
        pool.features = FEATURES["vllm"]
        async with served(pool) as client:
            yield client

    @override
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}])
    async def test_a_tool_that_must_be_called_is(
        self, backend: Backend, model: str, choice: str | dict[str, Any], stream: bool
    ):
        """vLLM holds a call's arguments to their schema only where the tool says `strict`."""
        tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
        chat = ChatPrompt(messages=CHAT.messages, tools=tools)
        events = await events_of(
            backend, request(model, chat, tool_choice=choice, max_tokens=100, stream=stream)
        )
        (call,) = calls_of(events)

        assert call[0].id
        assert call[0].name == "time" if isinstance(choice, dict) else call[0].name in ("weather", "time")
        assert all((delta.id, delta.name) == (None, None) for delta in call[1:])
        assert json.loads("".join(delta.arguments for delta in call)) == {"city": "Oslo"}
        assert endings_of(events)[0].finish_reason == "tool_calls"


@pytest.fixture
async def backend(shared: Served) -> AsyncIterator[Backend]:
    pool = PooledBackend(SharedLoader(shared))
    yield pool
    await pool.aclose()


async def test_more_stop_strings_than_vllm_takes_are_cut_all_the_same(backend: Backend):
    text = text_of(await events_of(backend, request(MODEL, max_tokens=16)))
    stops = ("%%1", "%%2", "%%3", "%%4", "%%5", text[4:7])
    events = await events_of(backend, request(MODEL, max_tokens=16, stop=stops))

    assert text_of(events) == text[: text.index(text[4:7])]
    assert endings_of(events)[0].finish_reason == "stop"
    assert endings_of(events)[0].stop_reason == text[4:7]


async def test_several_greedy_choices_are_made_although_vllm_refuses_them(backend: Backend):
    events = await events_of(backend, request(MODEL, n=3))

    assert text_of(events, 0) == text_of(events, 1) == text_of(events, 2) != ""


@pytest.mark.parametrize("fields", [{"logit_bias": {10**6: 5.0}}, {"stop_token_ids": (10**6,)}])
async def test_a_token_id_outside_the_vocabulary_harms_nobody(backend: Backend, fields: dict[str, Any]):
    with pytest.raises(InvalidParameter):
        await events_of(backend, request(MODEL, **fields))

    assert text_of(await events_of(backend, request(MODEL)))


def constrained(**fields: Any) -> GenerationRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=30)
    return GenerationRequest(request_id="s1", model=MODEL, prompts=(PROMPT,), sampling=sampling, **fields)


async def test_a_choice_is_one_of_those_given(backend: Backend):
    events = await events_of(backend, constrained(structured_outputs={"choice": ["yes", "no"]}))

    assert text_of(events) in ("yes", "no")


async def test_a_schema_that_cannot_be_enforced_is_refused_and_harms_nobody(backend: Backend):
    wanted = constrained(structured_outputs={"regex": "(unclosed"})
    with pytest.raises((InvalidGrammar, InvalidParameter)):
        await events_of(backend, wanted)

    assert finished_of(await events_of(backend, request(MODEL))).usage.completion_tokens == 12
