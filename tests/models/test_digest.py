"""The digest of a model's files, and when it is read again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from models.digest import digest_of, hub_commit, weight_files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_file_has_the_digest_that_sha256sum_gives(file: Path, tmp_path: Path) -> None:
    assert digest_of([file], cache=tmp_path / "c") == sha256(b"weights")


def test_several_files_have_that_of_all_of_them_in_a_row(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b" and more")

    assert digest_of([file, other], cache=tmp_path / "c") == sha256(b"weights and more")


def test_a_file_that_looks_the_same_is_not_read_again(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    found = digest_of([file], cache=cache)
    (kept,) = cache.iterdir()
    kept.write_text("ab" * 32)

    assert found == sha256(b"weights")
    assert digest_of([file], cache=cache) == "ab" * 32


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_file_that_changed_is_read_again(file: Path, tmp_path: Path, change: str) -> None:
    cache = tmp_path / "c"
    digest_of([file], cache=cache)
    file.write_bytes(b"weighty" if change == "time" else b"longer weights")
    os.utime(file, ns=(1, 1))

    assert digest_of([file], cache=cache) == sha256(file.read_bytes())


@pytest.mark.parametrize("rubbish", [b"", b"nonsense", b"\xff" * 64, b"AB" * 32])
def test_rubbish_in_the_cache_is_no_digest(file: Path, tmp_path: Path, rubbish: bytes) -> None:
    cache = tmp_path / "c"
    digest_of([file], cache=cache)
    (kept,) = cache.iterdir()
    kept.write_bytes(rubbish)

    assert digest_of([file], cache=cache) == sha256(b"weights")


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(file: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, no folder")

    assert digest_of([file], cache=blocked / "c") == sha256(b"weights")


def test_a_read_that_is_stopped_gives_nothing_and_keeps_nothing(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "c"

    assert digest_of([file], cache=cache, is_stopped=lambda: True) is None
    assert not cache.exists()


def test_a_file_that_changes_while_it_is_read_has_no_digest(file: Path, tmp_path: Path) -> None:
    def change() -> bool:
        file.write_bytes(b"other weights")
        return False

    assert digest_of([file], cache=tmp_path / "c", is_stopped=change) is None


def test_nothing_has_no_digest(tmp_path: Path) -> None:
    assert digest_of([], cache=tmp_path) is None


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        digest_of([tmp_path / "none"], cache=tmp_path / "c")


def test_of_a_folder_the_weights_of_one_format_count(tmp_path: Path) -> None:
    for name, size in (
        ("config.json", 5),
        ("b.safetensors", 2),
        ("a.safetensors", 1),
        ("pytorch_model.bin", 9),
    ):
        (tmp_path / name).write_bytes(bytes(size))
    assert [path.name for path in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).unlink()

    assert [path.name for path in weight_files(tmp_path)] == ["pytorch_model.bin"]


def test_of_a_split_gguf_all_shards_count(tmp_path: Path) -> None:
    names = [f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for name in names:
        (tmp_path / name).touch()

    assert [path.name for path in weight_files(tmp_path / names[0])] == names


def test_the_commit_of_what_came_from_the_hub_is_in_its_path() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"

    assert hub_commit(Path(f"/c/models--a--b/snapshots/{commit}/m.gguf")) == commit
    assert hub_commit(Path(f"/c/models--a--b/snapshots/{commit}")) == commit
    assert hub_commit(Path(f"/models/{commit}/m.gguf")) is None
    assert hub_commit(Path("/c/snapshots/main/m.gguf")) is None
