"""Kinds become backends, engines are imported late, and a wrong kind is told what there is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from backends import registry
from backends.errors import BackendNotAvailable
from backends.fake import FakeScript
from backends.loader import ModelLoader
from backends.registry import FEATURES, create_backend, create_remote_backend
from models.catalogue import Catalogue
from tests.backends.contract import events_of, request, status_of, text_of, until

CARDS = """
models:
  - id: greeter
    aliases: [hello]
    sources: {fake: {name: greeter}}
    preload: true
  - id: other
    sources: {fake: {name: other}}
"""


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    path = tmp_path / "catalogue.yaml"
    path.write_text(CARDS)
    return Catalogue.load(path)


def test_an_unknown_kind_is_told_what_is_supported(catalogue: Catalogue):
    with pytest.raises(
        BackendNotAvailable, match=r"'vllmm' is unknown; supported are fake, litellm, llamacpp, vllm"
    ):
        create_backend("vllmm", catalogue=catalogue)


async def test_the_fake_serves_its_echo_beside_the_catalogue_and_takes_its_options(catalogue: Catalogue):
    scripts = {"fake-long": FakeScript(reply="one two three")}
    backend = create_backend("fake", catalogue=catalogue, options={"scripts": scripts})

    assert backend.kind == "fake"
    assert text_of(await events_of(backend, request("fake-long"))) == "one two three"
    assert text_of(await events_of(backend, request("fake-echo")))
    assert text_of(await events_of(backend, request("hello")))
    await backend.aclose()


async def test_cards_that_say_so_are_preloaded(catalogue: Catalogue):
    backend = create_backend("fake", catalogue=catalogue)
    await backend.start()

    async def healthy() -> bool:
        return (await backend.health()).healthy

    await until(healthy)
    status = await status_of(backend, "greeter")
    assert status is not None
    assert status.state == "loaded"
    assert await status_of(backend, "other") is None
    await backend.aclose()


def test_an_option_that_the_kind_does_not_have_is_a_type_error(catalogue: Catalogue):
    with pytest.raises(TypeError, match="num_slotz"):
        create_backend("fake", catalogue=catalogue, options={"num_slotz": 3})


def test_importing_the_registry_imports_no_engine():
    code = (
        "import sys, backends.registry\n"
        "heavy = {'llama_cpp', 'vllm', 'litellm', 'torch', 'numpy', 'backends.llamacpp'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )

    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60, cwd=root).returncode == 0


def test_an_engine_that_is_not_installed_is_named(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch):
    def factory(catalogue: Catalogue, options: Mapping[str, Any]) -> ModelLoader:
        raise ModuleNotFoundError("No module named 'llama_cpp'", name="llama_cpp")

    monkeypatch.setattr(registry, "LOADERS", {"llamacpp": factory})

    with pytest.raises(BackendNotAvailable, match="needs the package 'llama_cpp', which is not installed"):
        create_backend("llamacpp", catalogue=catalogue)


async def test_a_backend_takes_what_the_table_says_of_its_kind(catalogue: Catalogue):
    backend = create_backend("fake", catalogue=catalogue)

    assert backend.features == FEATURES["fake"]
    await backend.aclose()


async def test_servers_elsewhere_take_what_the_table_says_of_their_kind(catalogue: Catalogue):
    backend = create_remote_backend(["http://127.0.0.1:9/v1"], None, catalogue)

    assert backend.features == FEATURES["vllm"]
    await backend.aclose()
