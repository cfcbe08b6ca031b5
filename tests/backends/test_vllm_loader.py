"""From a card to a served model, with a stand-in for vLLM: shares of memory, checks before the engine, and its ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends.errors import BackendError, BackendFailed, InsufficientMemory, InvalidParameter
from backends.placement import Limits
from backends.pool import PooledBackend
from backends.types import TextDelta, TokenPrompt
from backends.vllm import upstream as upstream_module
from backends.vllm.loaded import MAX_METRICS_BYTES, own_metrics
from backends.vllm.loader import OVERHEAD_BYTES, VLLMLoader
from backends.vllm.memory import Gpu
from backends.vllm.options import VLLMOptions
from models.card import FileSource, HubSource, ModelCard
from models.catalogue import Catalogue
from models.errors import UnknownModel, UnusableModel
from tests.backends.contract import endless, events_of, load, request, status_of, text_of
from tests.backends.fake_vllm import make_python, make_weights
from tests.backends.serving import served

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="vLLM runs on Linux")

GIB = 1 << 30
MIB = 1 << 20

Serve = Callable[..., PooledBackend]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_python(tmp_path_factory.mktemp("fake"))


def catalogue(tmp_path: Path, *names: str, **fields: Any) -> Catalogue:
    lines = ["models:"]
    for name in names:
        folder = tmp_path / name
        if not folder.exists():
            make_weights(folder)
        lines.append(
            f"- {{id: {name}, sources: {{vllm: {{path: {folder}}}}}, vllm: {fields.get(name, {})!r}}}"
        )
    path = tmp_path / "catalogue.yaml"
    path.write_text("\n".join(lines))
    return Catalogue.load(path)


@pytest.fixture
async def serve(tmp_path: Path, python: str) -> AsyncIterator[Serve]:
    """`serve("a", "b", extra_args=…)` gives a started pool over those models; closed at the end."""
    pools: list[PooledBackend] = []

    def begin(
        *names: str, limits: Limits | None = None, cards: dict[str, Any] | None = None, **options: Any
    ) -> PooledBackend:
        environment = {"PATH": os.environ["PATH"]}
        knobs = VLLMOptions(
            python=python,
            device="cpu",
            stop_timeout_s=1,
            environment=environment,
            start_timeout_s=20,
            **options,
        )
        pool = PooledBackend(VLLMLoader(catalogue(tmp_path, *names, **(cards or {})), knobs), limits=limits)
        pools.append(pool)
        return pool

    yield begin
    for pool in pools:
        await pool.aclose()


def engines() -> list[psutil.Process]:
    """The fake cores that belong to this test's process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] == ["VLLM::EngineCore"]:
                found.append(process)
    return found


# Serving


async def test_a_loaded_model_answers_and_shows_its_servers_context(serve: Serve):
    pool = serve("m", max_model_len=777)
    phases = await load(pool, "m")
    events = await events_of(pool, request("m"))

    status = await status_of(pool, "m")
    assert phases[-1] == "ready"
    assert text_of(events) == " t0 t1 t2"
    assert status is not None
    assert status.context_length == 777


async def test_an_unload_ends_its_processes(serve: Serve):
    pool = serve("m")
    await load(pool, "m")
    assert len(engines()) == 1
    await pool.unload("m")

    assert engines() == []


async def test_closing_the_backend_ends_everything(serve: Serve):
    pool = serve("a", "b")
    await asyncio.gather(load(pool, "a"), load(pool, "b"))
    assert len(engines()) == 2
    await pool.aclose()

    assert engines() == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {100: 1.0}}, "logit_bias"),
        ({"stop_token_ids": (3, 100)}, "stop_token_ids"),
        ({"prompt": TokenPrompt(token_ids=[1, 100])}, "prompt"),
        ({"prompt": TokenPrompt(token_ids=[-1])}, "prompt"),
    ],
)
async def test_a_token_id_outside_the_vocabulary_does_not_reach_the_engine(
    serve: Serve, fields: dict[str, Any], param: str
):
    pool = serve("m")

    with pytest.raises(InvalidParameter, match="outside the model's vocabulary of 100 tokens") as refused:
        await events_of(pool, request("m", **fields))
    assert refused.value.param == param


async def test_the_last_id_of_the_vocabulary_passes(serve: Serve):
    assert text_of(await events_of(serve("m"), request("m", logit_bias={99: 1.0})))


async def test_only_vllms_own_metrics_are_passed_on(serve: Serve):
    pool = serve("m")
    await load(pool, "m")

    assert await pool.metrics() == b"# HELP vllm:x X.\n# TYPE vllm:x gauge\nvllm:x 1.0\n"


async def test_the_runners_metrics_hold_those_of_its_engines(serve: Serve):
    pool = serve("m")
    async with served(pool) as runner:
        await load(runner, "m")
        text = await runner.metrics()

    assert b'llm_runner_model_loaded{backend="vllm",model="m"} 1' in text
    assert text.endswith(b"vllm:x 1.0\n")


def test_metrics_are_bounded_and_end_with_a_whole_line():
    text = own_metrics(b'vllm:x{a="1"} 1.0\n' * 100_000)

    assert 0 < len(text) <= MAX_METRICS_BYTES
    assert text.endswith(b"1.0\n")


# Its ends


@pytest.mark.parametrize("victim", ["core", "server"])
async def test_a_stream_whose_engine_dies_gets_an_error_and_the_model_comes_back(serve: Serve, victim: str):
    pool = serve("m", extra_args=("--fake-answers=10000",))
    await pool.start()
    generator = pool.generate(endless("m"))
    async with asyncio.timeout(30), aclosing(generator) as batches:
        async for batch in batches:
            if any(isinstance(event, TextDelta) for event in batch):
                break
        (core,) = engines()
        (core if victim == "core" else core.parent() or core).kill()
        async with asyncio.timeout(2):
            with pytest.raises(BackendFailed, match="The engine of 'm'"):
                async for _ in batches:
                    pass
    dead = await pool.health()
    async with asyncio.timeout(30):
        while not (await pool.health()).healthy:  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.02)

    assert not dead.healthy
    assert len(engines()) == 1
    assert engines()[0].pid != core.pid


async def test_an_engine_that_hangs_without_dying_is_replaced(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upstream_module, "HEALTH_TIMEOUT_S", 0.05)
    pool = serve("m", extra_args=("--fake-answers=10000",), stall_timeout_s=1.0)
    await pool.start()
    async with asyncio.timeout(30), aclosing(pool.generate(endless("m"))) as batches:
        await anext(batches)
        (core,) = engines()
        server = core.parent()
        assert server is not None
        server.suspend()  # nothing goes on, and nothing ends
        with pytest.raises(BackendFailed, match="The engine of 'm' got nothing done for 1 s"):
            async for _ in batches:
                pass
        while not (await pool.health()).healthy:  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.02)

    assert engines()[0].pid != core.pid


async def test_an_engine_that_dies_with_nobody_asking_comes_back(serve: Serve):
    pool = serve("m")
    await pool.start()
    await load(pool, "m")
    (core,) = engines()
    os.kill(core.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while all(engine.pid == core.pid for engine in engines()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    assert text_of(await events_of(pool, request("m")))


async def test_an_abort_is_no_death(serve: Serve):
    pool = serve("m", extra_args=("--fake-answers=10000",))
    wanted = endless("m")
    async with asyncio.timeout(30), aclosing(pool.generate(wanted)) as batches:
        await anext(batches)
        await pool.abort(wanted.request_id)
        async with asyncio.timeout(0.5):
            with pytest.raises(BackendFailed, match="aborted"):
                async for _ in batches:
                    pass

    assert (await pool.health()).healthy


# What cannot be served


async def test_weights_that_are_not_there_are_an_unknown_model(serve: Serve, tmp_path: Path):
    pool = serve("m")
    (tmp_path / "m").rename(tmp_path / "gone")

    with pytest.raises(UnknownModel):
        await load(pool, "m")


async def test_a_folder_without_weights_is_refused_before_anything_starts(serve: Serve, tmp_path: Path):
    pool = serve("m")
    (tmp_path / "m" / "model.safetensors").unlink()

    with pytest.raises(UnusableModel, match="holds no weights"):
        await load(pool, "m")


async def test_a_failed_start_answers_the_load_with_vllms_reason(serve: Serve):
    why = "ValueError: Model architectures ['Nope'] are not supported for now. More."
    pool = serve("m", extra_args=(f"--fake-log={why}", "--fake-exit=1"))

    with pytest.raises(UnusableModel, match=r"Model architectures \['Nope'\] are not supported for now$"):
        await load(pool, "m")
    assert engines() == []


async def test_a_cancelled_load_leaves_no_engine(serve: Serve):
    pool = serve("m", extra_args=("--fake-hang",))
    loading = asyncio.create_task(load(pool, "m"))
    async with asyncio.timeout(10):
        while not engines():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await pool.aclose()

    with pytest.raises(BackendError):
        await loading
    assert engines() == []


async def test_a_second_model_that_does_not_fit_pushes_the_idle_one_out(serve: Serve):
    pool = serve("a", "b", limits=Limits(max_loaded_models=1))
    await load(pool, "a")
    await load(pool, "b")

    assert len(engines()) == 1
    assert await status_of(pool, "a") is None


# Shares


def loader(tmp_path: Path, *gpus: int, cards: dict[str, Any] | None = None, **options: Any) -> VLLMLoader:
    found = [Gpu(size * GIB) for size in gpus]
    return VLLMLoader(catalogue(tmp_path, "m", **(cards or {})), VLLMOptions(**options), gpus=found)


def estimate(loader: VLLMLoader) -> int:
    return loader.estimate_bytes(loader.resolve("m"))


def test_without_a_gpu_a_model_takes_weights_cache_and_processes(tmp_path: Path):
    on_cpu = loader(tmp_path, kv_cache_space_gib=1.5)

    assert on_cpu.device == "cpu"
    assert estimate(on_cpu) == 1000 + 1.5 * GIB + OVERHEAD_BYTES["cpu"]
    assert on_cpu.budget_bytes


def test_the_budget_is_the_smallest_gpus_share(tmp_path: Path):
    on_gpu = loader(tmp_path, 80, 40, gpu_memory_utilization=0.5)

    assert on_gpu.device == "gpu"
    assert on_gpu.budget_bytes == 20 * GIB


def test_one_model_takes_all_unless_it_is_told_otherwise(tmp_path: Path):
    assert estimate(loader(tmp_path, 80, gpu_memory_utilization=0.5)) == 40 * GIB
    assert estimate(loader(tmp_path, 80, gpu_memory_utilization=0.5, max_loaded_models=4)) == 10 * GIB


def test_a_cards_own_share_goes_before_the_equal_part(tmp_path: Path):
    cards = {"m": {"gpu_memory_utilization": 0.25}}

    assert estimate(loader(tmp_path, 80, cards=cards)) == 20 * GIB


def test_a_model_never_gets_less_than_it_needs(tmp_path: Path):
    make_weights(tmp_path / "m")
    os.truncate(tmp_path / "m" / "model.safetensors", 30 * GIB)

    assert estimate(loader(tmp_path, 80, max_loaded_models=4)) > 30 * GIB
    assert estimate(loader(tmp_path, 80, max_loaded_models=4, num_gpus=2)) < 20 * GIB


async def test_a_model_larger_than_the_gpu_is_refused_by_name(tmp_path: Path):
    make_weights(tmp_path / "m")
    os.truncate(tmp_path / "m" / "model.safetensors", 90 * GIB)
    on_gpu = loader(tmp_path, 80)
    pool = PooledBackend(on_gpu, limits=Limits(budget_bytes=on_gpu.budget_bytes))

    with pytest.raises(InsufficientMemory, match="'m' needs 92"):
        await load(pool, "m")
    await pool.aclose()


def test_what_is_not_fetched_yet_counts_as_an_equal_part_or_unknown(tmp_path: Path):
    hub = ModelCard(id="h", backend="vllm", sources={"vllm": HubSource(repo="o/r")})

    assert loader(tmp_path, 80).estimate_bytes(hub) == int(0.9 * 80 * GIB)
    assert loader(tmp_path).estimate_bytes(hub) == 0
    assert FileSource(path="x")
