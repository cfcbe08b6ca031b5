"""Loading and unloading real files, usable and not."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.base import Backend
from backends.llamacpp import loader
from backends.llamacpp.context import ContextConfig
from backends.llamacpp.loaded import LlamaCppModel
from backends.pool import PooledBackend
from backends.types import LoadProgress
from models.card import FileSource, ModelCard
from models.errors import UnknownModel, UnusableModel
from models.gguf import read_header
from tests.backends.contract import events_of, load, request, status_of, text_of
from tests.backends.shipped_model import MODEL, a_backend, a_loader, gguf

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    backend = PooledBackend(a_loader(model_dirs=(tmp_path,)))
    await backend.start()
    yield backend
    await backend.aclose()


def truncated(path: Path) -> None:
    data = gguf().read_bytes()
    path.write_bytes(data[: len(data) * 9 // 10])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(gguf().read_bytes()[:1000])


def of_unknown_architecture(path: Path) -> None:
    # The value of general.architecture, same length; keys that begin with it stay as they are.
    key = b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little")
    data = gguf().read_bytes()
    assert data.count(key + b"llama") == 1
    path.write_bytes(data.replace(key + b"llama", key + b"xlama"))


def of_unknown_tensor_names(path: Path) -> None:
    path.write_bytes(gguf().read_bytes().replace(b"token_embd.weight", b"token_embd.wxight"))


def text_file(path: Path) -> None:
    path.write_text("This is no model.\n" * 50)


def empty_file(path: Path) -> None:
    path.touch()


def a_directory(path: Path) -> None:
    path.mkdir()


BROKEN = [
    truncated,
    cut_in_the_header,
    of_unknown_architecture,
    of_unknown_tensor_names,
    text_file,
    empty_file,
]


@pytest.mark.parametrize("break_file", BROKEN, ids=lambda f: f.__name__)
async def test_a_file_that_is_no_usable_model_is_refused_in_one_sentence_and_serving_goes_on(
    backend: Backend, tmp_path: Path, break_file: Callable[[Path], None]
):
    before = text_of(await events_of(backend, request(MODEL, max_tokens=3)))
    break_file(tmp_path / "broken.gguf")

    with pytest.raises(UnusableModel) as refused:
        await load(backend, "broken")

    message = refused.value.message
    assert 10 < len(message) < 400
    assert str(tmp_path) not in message
    assert "/" not in message.replace("and/or", "")
    assert "\n" not in message
    assert text_of(await events_of(backend, request(MODEL, max_tokens=3))) == before


async def test_an_unknown_architecture_is_named(backend: Backend, tmp_path: Path):
    of_unknown_architecture(tmp_path / "broken.gguf")

    with pytest.raises(UnusableModel, match="xlama"):
        await load(backend, "broken")


async def test_a_folder_is_no_model(backend: Backend, tmp_path: Path):
    a_directory(tmp_path / "broken.gguf")

    with pytest.raises((UnknownModel, UnusableModel)):
        await load(backend, "broken")


async def test_a_card_that_points_to_a_folder_is_refused(tmp_path: Path):
    card = ModelCard(id="folder", sources={"llamacpp": FileSource(path=str(tmp_path))})

    with pytest.raises(UnusableModel, match="cannot be read: is a directory"):
        await a_loader().load(card, lambda _: None)


async def test_a_usable_file_in_a_folder_is_served(backend: Backend, tmp_path: Path):
    shutil.copy(gguf(), tmp_path / "mine.gguf")

    assert (await load(backend, "mine"))[-1] == "ready"
    assert text_of(await events_of(backend, request("mine", max_tokens=3))) == text_of(
        await events_of(backend, request(MODEL, max_tokens=3))
    )


async def test_progress_rises_to_the_files_size():
    steps: list[LoadProgress] = []
    model = await a_loader().load(a_loader().resolve(MODEL), steps.append)
    await asyncio.sleep(0)
    await model.aclose()
    loading = [step for step in steps if step.phase == "loading"]

    assert [step.done_bytes for step in loading] == sorted(step.done_bytes for step in loading)
    assert loading[-1].done_bytes == loading[-1].total_bytes == gguf().stat().st_size
    assert all(0 <= step.fraction <= 1 for step in steps)
    assert {step.phase for step in steps} <= {"fetching", "loading"}


async def test_a_cancelled_load_leaves_nothing_behind():
    loader = a_loader()
    started = asyncio.Event()
    task = asyncio.create_task(loader.load(loader.resolve(MODEL), lambda _: started.set()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    model = await loader.load(loader.resolve(MODEL), lambda _: None)
    await model.aclose()


async def test_an_unload_gives_the_memory_back():
    process = psutil.Process()
    async with a_backend(num_slots=4, n_ctx=2048) as backend:
        await load(backend, MODEL)
        await events_of(backend, request(MODEL, max_tokens=4))
        await backend.unload(MODEL)
        gc.collect()
        empty = process.memory_info().rss
        await load(backend, MODEL)
        await events_of(backend, request(MODEL, max_tokens=4))
        loaded = process.memory_info().rss
        await backend.unload(MODEL)
        gc.collect()
        after = process.memory_info().rss

    size = gguf().stat().st_size
    assert loaded - empty > 0.6 * size
    assert loaded - after > 0.6 * size


async def test_loading_again_and_again_does_not_grow():
    process = psutil.Process()
    async with a_backend() as backend:
        sizes = []
        for _ in range(5):
            await load(backend, MODEL)
            await events_of(backend, request(MODEL, max_tokens=2))
            await backend.unload(MODEL)
            gc.collect()
            sizes.append(process.memory_info().rss)

    assert sizes[-1] - sizes[1] < 0.3 * gguf().stat().st_size


async def test_the_estimate_is_the_file_and_its_first_cache():
    loader = a_loader(num_slots=4, n_ctx=512)
    header = read_header(gguf())
    assert header.kv_elements_per_token is not None
    estimate = loader.estimate_bytes(loader.resolve(MODEL))

    cache = 4 * 512 * header.kv_elements_per_token * 2
    assert header.file_bytes + cache <= estimate <= header.file_bytes + cache + (128 << 20)


@pytest.mark.parametrize("n_ctx", [64, 100_000])
async def test_the_context_is_bounded_by_option_and_model(n_ctx: int):
    async with a_backend(num_slots=1, n_ctx=n_ctx) as backend:
        await load(backend, MODEL)
        status = await status_of(backend, MODEL)

    assert status is not None
    assert status.context_length == min(n_ctx, 8192)


async def test_without_a_setting_the_threads_are_as_many_as_the_cores_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
):
    seen: list[ContextConfig] = []

    def note(*arguments: Any, **options: Any) -> LlamaCppModel:
        seen.append(arguments[3].context)
        return LlamaCppModel(*arguments, **options)

    monkeypatch.setattr(loader, "usable_cores", lambda: 3)
    monkeypatch.setattr(loader, "LlamaCppModel", note)
    async with a_backend(n_threads=None) as backend:
        await load(backend, MODEL)

    assert [(context.n_threads, context.n_threads_batch) for context in seen] == [(3, 3)]
