"""Fetching from the hub, against a local stand-in for it."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import models.hub
from models.card import ModelCard
from models.errors import SourceUnavailable, UnknownModel, UnusableModel
from models.sources import materialise
from tests.models.fake_hub import COMMIT, FakeHub, serving
from tests.models.gguf_files import gguf_bytes

constants = pytest.importorskip("huggingface_hub.constants")

CONTENT = gguf_bytes() + b"\0" * 300_000


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(FakeHub({"m.gguf": CONTENT})) as fake:
        monkeypatch.setattr(constants, "ENDPOINT", fake.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", fake.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 2)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        yield fake


def card(file: str | None = "m.gguf", repo: str = "o/r", **fields: object) -> ModelCard:
    source = {"repo": repo, "file": file}
    kind = "llamacpp" if file else "vllm"
    return ModelCard.model_validate({"id": "mine", "sources": {kind: source}, **fields})


class Progress(list[tuple[int, int]]):
    def __call__(self, done: int, total: int) -> None:
        self.append((done, total))


def fetch(the_card: ModelCard, progress: Progress | None = None) -> Path:
    return materialise(
        the_card, the_card.backend, on_progress=progress if progress is not None else Progress()
    )


def test_a_file_is_fetched_with_progress_in_bytes(hub: FakeHub) -> None:
    progress = Progress()

    path = fetch(card(), progress)

    assert path.read_bytes() == CONTENT
    assert progress[-1] == (len(CONTENT), len(CONTENT))
    assert all(done <= total for done, total in progress)


def test_what_is_in_the_cache_is_not_fetched_again(hub: FakeHub) -> None:
    first = fetch(card())

    assert fetch(card()) == first
    assert len(hub.ranges) == 1


def partial_file(tmp_path: Path, content: bytes) -> Path:
    blobs = tmp_path / "cache" / "models--o--r" / "blobs"
    blobs.mkdir(parents=True)
    path = blobs / f"{hashlib.sha256(CONTENT).hexdigest()}.partial"
    path.write_bytes(content)
    return path


def test_a_fetch_that_another_process_left_goes_on_where_it_stopped(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.hub, "_RESUMED_FROM", 0)
    left = partial_file(tmp_path, CONTENT[:100_000])
    progress = Progress()

    assert fetch(card(), progress).read_bytes() == CONTENT
    assert hub.ranges == ["bytes=100000-"]
    assert progress[0][0] >= 100_000
    assert not left.exists()


def test_what_arrived_before_the_process_ended_is_kept(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.hub, "_RESUMED_FROM", 0)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)

    class Killed(BaseException):
        pass

    def die(done: int, _total: int) -> None:
        if done >= 50_000:
            raise Killed

    with pytest.raises(Killed):
        materialise(card(), "llamacpp", on_progress=die)

    assert fetch(card()).read_bytes() == CONTENT
    assert hub.ranges == [None, "bytes=40000-"]


@pytest.mark.parametrize("left", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_whole_or_too_long_does_no_harm(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    monkeypatch.setattr(models.hub, "_RESUMED_FROM", 0)
    partial_file(tmp_path, left)

    assert fetch(card()).read_bytes() == CONTENT


def test_too_little_disk_is_refused_before_anything_is_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.hub, "_RESUMED_FROM", 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=1_000))

    with pytest.raises(SourceUnavailable, match=f"needs {len(CONTENT)} bytes of disk; 1000 are free"):
        fetch(card())
    assert hub.ranges == []


def test_a_connection_that_breaks_is_taken_up_again(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: setattr(hub, "cut_after", None))
    hub.cut_after = 50_000

    assert fetch(card()).read_bytes() == CONTENT
    assert hub.ranges[0] is None
    assert len(hub.ranges) == 2


def test_a_file_damaged_on_its_way_is_refused_and_removed(hub: FakeHub, tmp_path: Path) -> None:
    hub.sent["m.gguf"] = b"X" + CONTENT[1:]

    with pytest.raises(SourceUnavailable, match="arrived damaged"):
        fetch(card())
    hub.sent.clear()

    assert fetch(card()).read_bytes() == CONTENT


def test_a_checksum_in_the_card_that_does_not_match_makes_the_model_unusable(hub: FakeHub) -> None:
    with pytest.raises(UnusableModel, match="SHA-256"):
        fetch(card(sha256="0" * 64))


def test_all_parts_of_a_sharded_model_are_fetched(hub: FakeHub) -> None:
    parts = {f"sub/b-0000{i}-of-00002.gguf": CONTENT + bytes([i]) for i in (1, 2)}
    hub.files.update(parts)

    path = fetch(card("sub/b-00001-of-00002.gguf"))

    assert path.name == "b-00001-of-00002.gguf"
    assert path.with_name("b-00002-of-00002.gguf").is_file()


@pytest.mark.parametrize(
    ("the_card", "refusal"),
    [(card(repo="o/other"), None), (card("absent.gguf"), None), (card(), (404, "RevisionNotFound"))],
)
def test_what_the_hub_does_not_have_is_unknown(
    hub: FakeHub, the_card: ModelCard, refusal: tuple[int, str] | None
) -> None:
    hub.refuse = refusal

    with pytest.raises(UnknownModel, match="'mine'"):
        fetch(the_card)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [((403, "GatedRepo"), "gated"), ((500, ""), "cannot be|500"), ((429, ""), "cannot be|429")],
)
def test_a_hub_that_refuses_makes_the_source_unavailable(
    hub: FakeHub, refusal: tuple[int, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    hub.refuse = refusal

    with pytest.raises(SourceUnavailable, match=words):
        fetch(card())


def test_a_hub_that_cannot_be_reached_makes_the_source_unavailable(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:1/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr("time.sleep", lambda _seconds: None)

    with pytest.raises(SourceUnavailable, match="reached"):
        fetch(card())


def test_a_fetched_file_serves_while_the_hub_is_away(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch(card())
    hub.refuse = (503, "")
    monkeypatch.setattr("time.sleep", lambda _seconds: None)

    assert fetch(card()) == first


def test_a_commit_that_is_in_the_cache_asks_nobody(hub: FakeHub) -> None:
    first = fetch(card(revision=COMMIT))
    hub.refuse = (500, "")

    assert fetch(card(revision=COMMIT)) == first


def test_a_full_disk_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def full(*_args: object, **_kwargs: object) -> str:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)

    with pytest.raises(SourceUnavailable, match="no space left on device"):
        fetch(card())


def test_the_cause_is_logged_and_no_address_reaches_the_caller(
    hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(UnknownModel) as caught:
        fetch(card("absent.gguf"))

    assert "fetching o/r" in caplog.text
    assert "127.0.0.1" not in caught.value.message


def test_a_whole_repository_is_fetched_with_its_bytes_counted_once(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The client's own bars for a snapshot: bytes on the network, bytes on disk, and files."""
    import huggingface_hub
    from huggingface_hub.utils import _xet_progress_reporting as formats

    seen: dict[str, object] = {}

    def snapshot(repo: str, *, tqdm_class: type[Any], **options: object) -> str:
        seen.update(options, repo=repo)
        network = tqdm_class(total=0, unit="B", unit_scale=True, bar_format=formats.XET_TRANSFER_BAR_FORMAT)
        disk = tqdm_class(total=0, unit="B", unit_scale=True, bar_format=formats.XET_BYTES_BAR_FORMAT)
        for bar in (network, disk):
            bar.total += 1_000
            bar.refresh()
            bar.update(1_000)
            bar.set_postfix_str(str(bar.format_dict["rate"]), refresh=False)
        list(tqdm_class(range(3), desc="Fetching 3 files"))
        disk.set_description("Reconstruction complete")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    progress = Progress()

    assert fetch(card(None, revision="v1"), progress) == tmp_path
    assert (seen["repo"], seen["revision"]) == ("o/r", "v1")
    assert progress[-1] == (1_000, 1_000)
