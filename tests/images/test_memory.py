"""What idle processes of the image hold in main memory, and how much of the machine the engine takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.images.conftest import Container, Start

MIB = 1024 * 1024
MAX_BYTES = 150 * MIB
"""Of a gateway; of a llama.cpp runner beside the model, its cells and its compute buffers."""
SOURCES = "/home/bentoml/bento/src"

# The model as the runner loads it, in a process of its own: llama.cpp tells the sizes only while it loads.
BUFFERS = """
import asyncio, ctypes, re
from backends.llamacpp import lib
lines = []
lib.EngineLog.write = lambda self, level, text, data: lines.append((text or b"").decode())
from backends.llamacpp.loader import LlamaCppLoader, LlamaCppOptions
from models.catalogue import Catalogue

async def main():
    catalogue = Catalogue.load(None, model_dirs=())
    model = await LlamaCppLoader(catalogue, LlamaCppOptions()).load(catalogue.resolve("smollm2"), lambda step: None)
    await model.aclose()

asyncio.run(main())
for kind, size in re.findall(r"(\\w+) +buffer size *= *([\\d.]+) MiB", "".join(lines)):
    print(kind, size)
"""


def _resident_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^VmRSS:\s+(\d+) kB", text, re.M)[0]) * 1024


def _in_sources(container: Container, script: str) -> str:
    return container.run("sh", "-c", f'cd {SOURCES} && exec python -c "$0"', script)


@pytest.fixture(scope="module")
def idle(start: Start) -> Container:
    return start()


def test_an_idle_gateway_stays_small(idle: Container) -> None:
    resident = _resident_bytes(idle.processes()["Gateway"])

    print(f"gateway: {resident / MIB:.0f} MiB resident")
    assert resident <= MAX_BYTES


def test_an_idle_runner_holds_little_beside_what_the_engine_asked_for(idle: Container) -> None:
    resident = _resident_bytes(idle.processes()["LlamaCppRunner"])
    buffers = [line.split() for line in _in_sources(idle, BUFFERS).splitlines()]
    kinds = {kind for kind, _ in buffers}
    asked = sum(float(size) for _, size in buffers) * MIB

    print(f"runner: {resident / MIB:.0f} MiB resident, of it {asked / MIB:.0f} the engine's: {buffers}")
    assert {"model", "KV", "compute"} <= kinds
    assert resident - asked <= MAX_BYTES


def test_the_engine_takes_no_more_cores_than_the_container_has(start: Start) -> None:
    container = start("--cpus", "1", wait=False)
    script = "from backends.processors import usable_cores; print(usable_cores())"

    assert _in_sources(container, script).strip() == "1"
