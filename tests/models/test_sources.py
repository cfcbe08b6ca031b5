"""From a card to a file on this machine."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from models import sources
from models.card import ModelCard
from models.errors import SourceUnavailable, UnknownModel, UnusableModel
from models.sources import local_path, materialise, verify_checksum
from tests.models.gguf_files import write_gguf, write_shards


def nothing(_done: int, _total: int) -> None:
    """No one watches."""


def card(source: dict[str, Any], kind: str = "llamacpp", **fields: Any) -> ModelCard:
    return ModelCard.model_validate({"id": "m", "sources": {kind: source}, **fields})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package `tiny_model` 1.2 that must never be imported."""
    folder = tmp_path / "site" / "tiny_model"
    write_gguf(folder / "weights" / "m.gguf")
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    info = tmp_path / "site" / "tiny_model-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder


PACKAGE = {"package": "tiny_model", "resource": "weights/m.gguf"}


def test_a_file_is_used_where_it_lies(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    seen: list[tuple[int, int]] = []

    found = materialise(card({"path": str(path)}), "llamacpp", on_progress=lambda *step: seen.append(step))

    assert found == path
    assert seen == [(path.stat().st_size,) * 2]


def test_all_parts_count_in_the_size_of_a_sharded_model(tmp_path: Path) -> None:
    first = write_shards(tmp_path, "m", 2)
    seen: list[tuple[int, int]] = []

    materialise(card({"path": str(first)}), "llamacpp", on_progress=lambda *step: seen.append(step))

    assert seen[-1][1] == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_folder_of_weights_is_given_as_it_is(tmp_path: Path) -> None:
    assert materialise(card({"path": str(tmp_path)}, "vllm"), "vllm", on_progress=nothing) == tmp_path


def test_a_missing_file_is_an_unknown_model_and_the_log_has_its_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnknownModel) as caught:
        materialise(card({"path": str(tmp_path / "m.gguf")}), "llamacpp", on_progress=nothing)

    assert str(tmp_path) in caplog.text
    assert str(tmp_path) not in caught.value.message


def test_a_resource_is_found_without_importing_its_package(package: Path) -> None:
    path = materialise(card(PACKAGE), "llamacpp", on_progress=nothing)

    assert path == package / "weights" / "m.gguf"
    assert "tiny_model" not in sys.modules


def test_the_asked_for_version_of_a_package_is_accepted(package: Path) -> None:
    assert materialise(card({**PACKAGE, "version": "1.2"}), "llamacpp", on_progress=nothing).is_file()


def test_a_distribution_of_another_name_is_found_by_its_package(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = package.parent / "tiny_model-1.2.dist-info"
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other-name\nVersion: 1.2\n")
    (metadata / "top_level.txt").write_text("tiny_model\n")
    metadata.rename(package.parent / "other_name-1.2.dist-info")
    importlib.invalidate_caches()

    assert materialise(card({**PACKAGE, "version": "1.2"}), "llamacpp", on_progress=nothing).is_file()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({**PACKAGE, "version": "9"}, "has version 1.2; the model's card asks for 9"),
        ({**PACKAGE, "resource": "weights/other.gguf"}, "holds no file 'weights/other.gguf'"),
        ({**PACKAGE, "package": "no_such_package"}, "is not installed"),
        ({**PACKAGE, "package": "sys"}, "is not installed"),
    ],
)
def test_a_package_that_does_not_fit_says_so(package: Path, source: dict[str, str], words: str) -> None:
    with pytest.raises(SourceUnavailable, match=words):
        materialise(card(source), "llamacpp", on_progress=nothing)


@pytest.mark.parametrize(
    ("the_card", "kind", "words"),
    [
        (card({"name": "p/m"}, "litellm"), "litellm", "served elsewhere"),
        (card({"path": "/m.gguf"}), "vllm", "no source for the backend 'vllm'"),
        (card({"path": "m.gguf"}), "llamacpp", "relative path"),
    ],
)
def test_a_source_with_nothing_to_load_is_unavailable(the_card: ModelCard, kind: str, words: str) -> None:
    with pytest.raises(SourceUnavailable, match=words):
        materialise(the_card, kind, on_progress=nothing)


def test_only_what_lies_here_already_has_a_local_path(package: Path, tmp_path: Path) -> None:
    assert local_path(card(PACKAGE), "llamacpp") == package / "weights" / "m.gguf"
    assert local_path(card({"path": str(tmp_path / "absent")}), "llamacpp") is None
    assert local_path(card({"repo": "o/r", "file": "m.gguf"}), "llamacpp") is None
    assert local_path(card(PACKAGE), "vllm") is None


def test_a_matching_checksum_lets_a_model_pass(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    assert materialise(card({"path": str(path)}, sha256=digest), "llamacpp", on_progress=nothing) == path


def test_a_wrong_checksum_makes_a_model_unusable(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")

    with pytest.raises(UnusableModel, match="its card says 000000000000"):
        materialise(card({"path": str(path)}, sha256="0" * 64), "llamacpp", on_progress=nothing)


def test_hashing_reports_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_CHUNK_BYTES", 1_000)
    path = tmp_path / "m"
    path.write_bytes(b"x" * 2_500)
    seen: list[tuple[int, int]] = []

    verify_checksum(
        path, hashlib.sha256(b"x" * 2_500).hexdigest(), on_progress=lambda *step: seen.append(step)
    )

    assert seen == [(1_000, 2_500), (2_000, 2_500), (2_500, 2_500)]


def test_an_unchanged_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    verify_checksum(path, digest, on_progress=nothing)
    monkeypatch.setattr(sources, "_sha256", None)

    verify_checksum(path, digest, on_progress=nothing)


def test_a_changed_file_is_hashed_again(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    verify_checksum(path, digest, on_progress=nothing)
    path.write_bytes(b"yy")

    with pytest.raises(UnusableModel):
        verify_checksum(path, digest, on_progress=nothing)


def test_a_file_that_vanishes_while_it_is_checked_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="no such file"):
        verify_checksum(tmp_path / "absent", "0" * 64, on_progress=nothing)
