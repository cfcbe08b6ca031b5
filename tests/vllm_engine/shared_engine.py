"""One engine of the real vLLM for many tests; each has a pool of its own, for which loading is only to connect."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from typing_extensions import override

from backends.loader import LoadedModel
from backends.types import LoadProgress
from backends.vllm.loaded import VLLMModel
from backends.vllm.loader import VLLMLoader
from backends.vllm.options import VLLMOptions, command_of, environment_of
from backends.vllm.process import EngineProcess
from backends.vllm.upstream import Upstream
from backends.vllm.weights import read_facts
from models.card import ModelCard
from models.catalogue import Catalogue

CARD_ARGS = ("--enforce-eager",)
"""Without compilation: it takes minutes on a CPU, and no test here looks at speed."""
MODEL = "tiny"
CONTEXT = 256


@dataclass(frozen=True)
class Served:
    """An engine that runs as long as the tests."""

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


@contextmanager
def running(
    vllm_python: str, weights: Path, folder: Path, *, thinks_as: str | None = None
) -> Iterator[Served]:
    """The engine, in `folder`, whose path is short: a socket lies there. `thinks_as`: its parser of thoughts."""
    file = folder / "catalogue.yaml"
    own = {"tool_call_parser": "hermes"}
    capabilities = ["chat", "completion", "tools"]
    if thinks_as is not None:
        own["reasoning_parser"] = thinks_as
        capabilities.append("reasoning")
    card = {
        "id": MODEL,
        "sources": {"vllm": {"path": str(weights)}},
        "capabilities": capabilities,
        "vllm": own,
    }
    file.write_text(json.dumps({"models": [card]}))
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
