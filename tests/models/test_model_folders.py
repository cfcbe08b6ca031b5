"""Files that appear by themselves: which are listed, under which names, and what looking costs."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

import pytest

from models import folders
from models.card import FileSource
from models.folders import ModelFolders
from tests.models.catalogues import BASE, file_card, ids, of, settle, unknown
from tests.models.gguf_files import BERT, LLAMA, write_gguf, write_shards

# Files that appear by themselves


def test_a_file_is_served_under_its_path_without_the_suffix(models: Path) -> None:
    path = write_gguf(models / "Sub" / "Model.Q4_K_M.gguf")
    catalogue = of(models)

    card = catalogue.resolve("Sub/Model.Q4_K_M")
    assert ids(catalogue) == ["Sub/Model.Q4_K_M"]
    assert card.sources["llamacpp"] == FileSource(path=str(path))
    assert card.context_length == 512


@pytest.mark.parametrize("name", ["m.gguf", "{folder}/m.gguf", "{folder}/m"])
def test_a_file_answers_to_its_suffix_and_its_absolute_path(models: Path, name: str) -> None:
    write_gguf(models / "m.gguf")

    assert of(models).resolve(name.format(folder=models)).id == "m"


@pytest.mark.parametrize(
    ("metadata", "capabilities"),
    [
        (LLAMA, ("chat", "completion")),
        (BASE, ("completion",)),
        (
            {**LLAMA, "tokenizer.chat_template": "{% for tool in tools %}{{ tool }}{% endfor %}"},
            ("chat", "completion", "tools"),
        ),
        (
            {**LLAMA, "tokenizer.chat_template": "{{ content.split('</think>')[-1] }}"},
            ("chat", "completion", "reasoning"),
        ),
        (BERT, ("embeddings",)),
        ({**BERT, "bert.pooling_type": 4}, ("rerank",)),
    ],
)
def test_capabilities_come_from_the_file(
    models: Path, metadata: dict[str, object], capabilities: tuple[str, ...]
) -> None:
    write_gguf(models / "m.gguf", metadata)  # type: ignore[arg-type]

    assert of(models).resolve("m").capabilities == capabilities


def test_a_new_file_appears_and_a_deleted_one_goes(models: Path) -> None:
    catalogue = of(models)
    path = write_gguf(models / "late.gguf")
    assert ids(catalogue) == ["late"]

    path.unlink()

    assert ids(catalogue) == []
    assert unknown(catalogue, "late")


def test_a_new_file_deep_inside_appears(models: Path) -> None:
    (models / "a" / "b").mkdir(parents=True)
    catalogue = of(models)
    write_gguf(models / "a" / "b" / "c.gguf")

    assert ids(catalogue) == ["a/b/c"]


def test_a_file_that_is_still_being_copied_appears_once_it_is_whole(models: Path) -> None:
    whole = write_gguf(models / "m.gguf").read_bytes()
    (models / "m.gguf").write_bytes(whole[:500])
    catalogue = of(models)
    assert ids(catalogue) == []

    with (models / "m.gguf").open("ab") as file:
        file.write(whole[500:])
    settle(catalogue)

    assert ids(catalogue) == ["m"]


def test_a_broken_file_is_not_listed_but_can_be_named(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    (models / "m.gguf").write_bytes(b"nonsense")
    catalogue = of(models)

    assert ids(catalogue) == []
    assert catalogue.resolve("m").backends == ("llamacpp",)
    assert "not a GGUF" in catalogue.broken()["m"]
    assert "not a GGUF" in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_broken_one(models: Path) -> None:
    write_gguf(models / "m.gguf").chmod(0)

    assert "permission denied" in of(models).broken()["m"]


def test_hidden_files_other_suffixes_and_folders_called_gguf_are_passed_over(models: Path) -> None:
    write_gguf(models / ".hidden.gguf")
    write_gguf(models / ".cache" / "m.gguf")
    write_gguf(models / "m.bin")
    write_gguf(models / "folder.gguf" / "inside.gguf")

    assert ids(of(models)) == ["folder.gguf/inside"]


def test_the_suffix_is_known_in_any_case(models: Path) -> None:
    write_gguf(models / "M.GGUF")

    assert ids(of(models)) == ["M"]


def test_a_sharded_model_appears_once_under_its_base_name(models: Path) -> None:
    first = write_shards(models / "sub", "big", 3)
    catalogue = of(models)

    assert ids(catalogue) == ["sub/big"]
    for name in ("sub/big", "sub/big.gguf", "sub/big-00001-of-00003", "sub/big-00001-of-00003.gguf"):
        assert catalogue.resolve(name).sources["llamacpp"] == FileSource(path=str(first))
    assert unknown(catalogue, "sub/big-00002-of-00003")


def test_a_missing_part_hides_the_model_until_it_arrives(models: Path) -> None:
    write_shards(models, "big", 2, only=[1])
    catalogue = of(models)
    assert ids(catalogue) == []

    write_shards(models, "big", 2, only=[2])
    settle(catalogue)

    assert ids(catalogue) == ["big"]


def test_of_two_folders_the_first_wins(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "a" / "m.gguf")
    write_gguf(tmp_path / "b" / "m.gguf")

    assert of(tmp_path / "a", tmp_path / "b").resolve("m").sources["llamacpp"] == FileSource(path=str(first))


def test_a_folder_that_vanishes_and_comes_back_is_followed(models: Path) -> None:
    write_gguf(models / "m.gguf")
    catalogue = of(models)
    models.rename(models.with_name("away"))
    assert ids(catalogue) == []

    models.with_name("away").rename(models)

    assert ids(catalogue) == ["m"]


def test_file_names_that_no_request_could_carry_are_passed_over(models: Path) -> None:
    for name in (b"a\\b.gguf", b"a\xff.gguf", b"a\nb.gguf", b" .gguf"):
        write_gguf(Path(os.fsdecode(os.path.join(os.fsencode(models), name))))

    assert ids(of(models)) == []


def test_decomposed_file_names_answer_to_composed_names(models: Path) -> None:
    write_gguf(models / "u\u0308.gguf")

    assert of(models).resolve("ü").id == "ü"


# Cost


def test_nothing_is_read_again_while_nothing_changes(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(models / "m.gguf")
    catalogue = of(models)
    settle(catalogue)
    monkeypatch.setattr(os, "scandir", None)
    monkeypatch.setattr(folders, "read_header", None)

    assert ids(catalogue) == ["m"]


def test_a_change_costs_one_header_and_not_all(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        write_gguf(models / f"m{i}.gguf")
    catalogue = of(models)
    read: list[Path] = []
    original = folders.read_header
    monkeypatch.setattr(folders, "read_header", lambda path: (read.append(path), original(path))[1])

    write_gguf(models / "new.gguf")

    assert len(catalogue.cards()) == 6
    assert read == [models / "new.gguf"]


def test_a_cards_file_outside_the_folders_is_read_once(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "outside.gguf")
    catalogue = of(models, cards=[file_card("mine", str(path))])
    monkeypatch.setattr("models.catalogue.read_header", None)

    write_gguf(models / "new.gguf")

    assert ids(catalogue) == ["mine", "new"]
    assert catalogue.resolve("mine").context_length == 512


def test_a_growing_file_is_reported_once(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = write_gguf(models / "m.gguf").read_bytes()
    catalogue = of(models)
    for length in (100, 200, 300):
        (models / "m.gguf").write_bytes(whole[:length])
        catalogue.cards()

    assert len(caplog.messages) == 1


def test_the_header_of_a_growing_file_is_read_once_a_second(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_gguf(models / "m.gguf").read_bytes()
    (models / "m.gguf").write_bytes(whole[:100])
    now, reads = time.time_ns(), 0

    def read(path: Path) -> object:
        nonlocal reads
        reads += 1
        return original(path)

    original = folders.read_header
    monkeypatch.setattr(folders, "read_header", read)
    found = ModelFolders([models], now_ns=lambda: now)
    for length in (200, 300, len(whole)):
        found.scan()
        (models / "m.gguf").write_bytes(whole[:length])
    assert (found.scan()["m"].header, reads) == (None, 1)

    now += 1_000_000_000
    assert found.scan()["m"].header is not None
    assert reads == 2


def test_many_threads_may_ask_while_files_come(models: Path) -> None:
    catalogue = of(models)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(50):
                listed = ids(catalogue)
                assert [catalogue.resolve(name).id for name in listed] == listed
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(20):
        whole = models / f"m{i}.part"
        write_gguf(whole).rename(models / f"m{i}.gguf")
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(ids(catalogue)) == 20


def test_a_folder_that_changed_a_moment_ago_is_read_again(models: Path) -> None:
    now = time.time_ns()
    found = ModelFolders([models], now_ns=lambda: now)
    found.scan()
    stamp = models.stat()
    write_gguf(models / "m.gguf")
    os.utime(models, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as if both fell into one tick

    assert list(found.scan()) == ["m"]


def test_a_scan_stops_at_its_limit(
    models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(5):
        write_gguf(models / f"m{i}.gguf")
    monkeypatch.setattr(folders, "MAX_FILES", 3)

    with caplog.at_level(logging.WARNING):
        assert len(of(models).cards()) == 3
    assert "more than 3 entries" in caplog.text
