"""A full disk: what is mapped into memory ends no process, and no request fails for the metrics' sake."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

import preflight
from openai_compat import exposition, reserve, shared_limits
from openai_compat.exposition import SeriesFiles
from openai_compat.metrics import Metrics
from openai_compat.record import RequestRecord
from openai_compat.shared_limits import SharedBuckets
from settings import SettingsError

linux = pytest.mark.skipif(sys.platform != "linux", reason="there is nothing to ask for room")


def no_room(fd: int, size: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def room_of(path: Path) -> int:
    return path.stat().st_blocks * 512


@linux
def test_files_of_metrics_have_their_room_when_they_are_made_and_when_they_grow(tmp_path: Path) -> None:
    files = SeriesFiles(tmp_path)
    cells = [files.counter(f"llm:x{number}_total", "x" * 200, {}) for number in range(1000)]

    for file in tmp_path.glob("*.db"):
        assert room_of(file) >= file.stat().st_size > 0
    assert max(file.stat().st_size for file in tmp_path.glob("*.db")) > 200_000
    cells[-1].add(7)
    assert b"llm:x999_total 7.0" in files.render()
    files.close()


@linux
def test_the_table_of_the_rate_limit_has_its_room(tmp_path: Path) -> None:
    SharedBuckets(tmp_path / "table", capacity=1000)

    assert room_of(tmp_path / "table") >= (tmp_path / "table").stat().st_size > 0


def test_what_is_in_a_file_stays_when_room_is_reserved(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"before")
        file.flush()
        reserve.reserve(file.fileno(), 10)
        reserve.reserve(file.fileno(), 4)

        file.seek(0)
        assert file.read() == b"before\0\0\0\0"


def test_a_file_system_that_reserves_nothing_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", cannot, raising=False)
    with (tmp_path / "file").open("w+b") as file:
        reserve.reserve(file.fileno(), 10)

        assert os.fstat(file.fileno()).st_size == 10


def test_requests_are_measured_though_no_new_series_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics(directory=tmp_path, known_models=lambda: [f"m{number}" for number in range(50)])
    metrics.redis_failed()
    monkeypatch.setattr(exposition, "reserve", no_room)

    for number in range(50):
        timer = metrics.timer(RequestRecord("r", "POST", 0.0), model=f"m{number}", backend="fake")
        timer.admitted(0.0)
        timer.first_token()
        timer.finish("stop", prompt_tokens=1, completion_tokens=1)

    text = metrics.render()
    assert b"llm:redis_failures_total 1.0" in text
    assert b'model="m0"' in text
    assert b'model="m49"' not in text
    metrics.close()
    assert caplog.text.count("no room for metrics") == 1


def test_a_worker_starts_without_room_for_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposition, "reserve", no_room)

    metrics = Metrics(directory=tmp_path)
    metrics.redis_failed()

    assert metrics.render() == b""
    metrics.close()


def test_files_of_dead_workers_stay_while_they_cannot_be_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SeriesFiles(tmp_path)
    files.counter("llm:x_total", "x", {}).add(1)
    mine = next(tmp_path.glob("counter_*.db"))
    for number in range(20):
        (tmp_path / f"counter_{2**22 + number}-0.db").write_bytes(mine.read_bytes())
    monkeypatch.setattr(exposition, "reserve", no_room)

    assert b"llm:x_total 21.0" in files.render()
    assert len(list(tmp_path.glob("counter_*.db"))) == 21
    files.close()


def test_a_start_without_room_for_what_workers_share_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(preflight, "reserve", no_room)

    with pytest.raises(SettingsError, match=r"No space left on device.*TMPDIR"):
        preflight.make_instance_dir(1, {})
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_the_rate_limit_is_not_used_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "reserve", no_room)

    with pytest.raises(OSError, match="No space left"):
        SharedBuckets(tmp_path / "table", capacity=1000)


def test_a_worker_finds_what_it_shares_though_there_is_another_place_for_temporary_files_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(preflight.tempfile, "gettempdir", lambda: str(tmp_path))
    made = preflight.make_instance_dir(1, environment)
    monkeypatch.setattr(preflight.tempfile, "gettempdir", lambda: "/var/tmp")  # noqa: S108

    assert preflight.instance_dir(1, environment) == made
    assert preflight.instance_dir(2, environment).parent == Path("/var/tmp")  # noqa: S108
