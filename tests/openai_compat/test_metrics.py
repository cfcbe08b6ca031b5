"""What is counted, under which labels, and what a scrape shows."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from openai_compat.exposition import merge_texts
from openai_compat.metrics import Metrics
from openai_compat.record import RequestRecord

spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[Metrics]:
    """Metrics that know the models `a` and `b`."""
    made = Metrics(directory=tmp_path / "metrics", known_models=lambda: ["a", "b"])
    yield made
    made.close()


def record(received_at: float = 10.0, *, status: int = 200, route: str | None = "/health") -> RequestRecord:
    """A request that has ended."""
    made = RequestRecord("req_1", "GET", received_at)
    made.status, made.route = status, route
    return made


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) -> value, as a Prometheus parser reads the text."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} stands twice"
            found[key] = sample.value
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """One sample of a scrape."""
    return samples(metrics.render()).get((name, frozenset(labels.items())))


def test_a_whole_answer_is_booked_once(metrics: Metrics) -> None:
    made = record()
    timer = metrics.timer(made, model="a", backend="fake")
    timer.admitted(100.0)
    timer.first_token(10.5)
    timer.token_gap(10.52)
    timer.token_gap(10.53)
    timer.finish("length", prompt_tokens=7, completion_tokens=3, now=11.0)
    timer.finish("stop", prompt_tokens=7, completion_tokens=3)
    timer.cancel()
    timer.fail()
    found = samples(metrics.render())
    labels = frozenset({("model", "a"), ("backend", "fake")})

    assert found["llm:time_to_first_token_seconds_sum", labels] == pytest.approx(0.5)
    assert found["llm:inter_token_latency_seconds_count", labels] == 2
    assert found["llm:inter_token_latency_seconds_sum", labels] == pytest.approx(0.03)
    assert found["llm:e2e_request_latency_seconds_sum", labels] == pytest.approx(1.0)
    assert found["llm:request_queue_time_seconds_sum", labels] == pytest.approx(0.1)
    assert found["llm:prompt_tokens_total", labels] == 7
    assert found["llm:generation_tokens_total", labels] == 3
    assert found["llm:request_success_total", labels | {("finished_reason", "length")}] == 1
    assert found["llm:request_success_total", labels | {("finished_reason", "stop")}] == 0
    assert found["llm:requests_failed_total", labels] == 0


def test_the_record_learns_what_the_timer_saw(metrics: Metrics) -> None:
    made = record()
    timer = metrics.timer(made, model="b", backend="fake")
    timer.admitted(20.0)
    timer.first_token(10.25)
    timer.finish("stop", prompt_tokens=1, completion_tokens=2)

    assert (made.model, made.backend, made.queue_s, made.ttft_s) == ("b", "fake", 0.02, 0.25)
    assert (made.finish_reason, made.prompt_tokens, made.completion_tokens) == ("stop", 1, 2)


def test_a_second_first_token_is_a_gap(metrics: Metrics) -> None:
    timer = metrics.timer(record(), model="a", backend="fake")
    timer.first_token(11.0)
    timer.first_token(11.1)
    timer.finish("stop", prompt_tokens=1, completion_tokens=2)

    assert value(metrics, "llm:inter_token_latency_seconds_count", model="a", backend="fake") == 1
    assert value(metrics, "llm:time_to_first_token_seconds_count", model="a", backend="fake") == 1


def test_a_client_that_leaves_is_counted_in_its_phase(metrics: Metrics) -> None:
    queued = metrics.timer(record(), model="a", backend="fake")
    prefill = metrics.timer(record(), model="a", backend="fake")
    prefill.admitted(0.0)
    left = record()
    decode = metrics.timer(left, model="a", backend="fake")
    decode.admitted(0.0)
    decode.first_token(11.0)
    for timer in (queued, prefill, decode, decode):
        timer.cancel(completion_tokens=5)

    assert left.cancelled_phase == "decode"
    for phase in ("queued", "prefill", "decode"):
        assert value(metrics, "llm:requests_cancelled_total", phase=phase) == 1


def test_only_an_admitted_request_can_fail(metrics: Metrics) -> None:
    metrics.timer(record(), model="a", backend="fake").fail()
    admitted = metrics.timer(record(), model="a", backend="fake")
    admitted.admitted(0.0)
    admitted.fail()

    assert value(metrics, "llm:requests_failed_total", model="a", backend="fake") == 1


def test_the_buckets_agree_with_the_count(metrics: Metrics) -> None:
    timer = metrics.timer(record(), model="a", backend="fake")
    timer.first_token(0.0)
    for now in (0.001, 0.5, 1000.0):  # on a bound, between two, above all
        timer.token_gap(now)
    timer.finish("stop", prompt_tokens=0, completion_tokens=4)
    found = samples(metrics.render())
    at = {
        dict(labels)["le"]: number
        for (name, labels), number in found.items()
        if name == "llm:inter_token_latency_seconds_bucket"
    }

    assert at["0.001"] == 1
    assert at["0.5"] == 2
    assert at["80.0"] == 2
    assert at["+Inf"] == 3


def test_occupancy_is_a_gauge(metrics: Metrics) -> None:
    metrics.occupancy(3, 2)
    metrics.occupancy(1, 0)

    assert value(metrics, "llm:num_requests_running") == 1
    assert value(metrics, "llm:num_requests_waiting") == 0


def test_nothing_a_client_makes_up_becomes_a_label(metrics: Metrics) -> None:
    for number in range(20):
        metrics.timer(record(), model=f"made-up-{number}", backend="made-up").cancel()
        made = record(route=None, status=404)
        made.method = f"MADE-UP-{number}"
        made.error_code = "not_found"
        metrics.request_ended(made)
    text = metrics.render()

    assert b"made-up" not in text.lower()
    assert value(metrics, "llm:http_requests_total", route="unknown", method="OTHER", status="404") == 20


def test_a_model_added_later_gets_its_own_label(tmp_path: Path) -> None:
    models, now = ["a"], [0.0]
    metrics = Metrics(directory=tmp_path, known_models=lambda: models, clock=lambda: now[0])
    metrics.timer(record(), model="late", backend="fake").cancel()
    models.append("late")
    metrics.timer(record(), model="late", backend="fake").cancel()
    now[0] = 2.0
    metrics.timer(record(), model="late", backend="fake").finish("stop", prompt_tokens=1, completion_tokens=1)
    found = value(metrics, "llm:prompt_tokens_total", model="late", backend="fake")
    metrics.close()

    assert found == 1


def test_refusals_are_counted_by_their_code(metrics: Metrics) -> None:
    refusals = ((429, "rate_limit_exceeded"), (429, "rate_limit_exceeded"), (408, "timeout"))
    for status, code in (*refusals, (500, "backend_error")):
        made = record(status=status)
        made.error_code = code
        metrics.request_ended(made)

    assert value(metrics, "llm:rejections_total", reason="rate_limit_exceeded") == 2
    assert value(metrics, "llm:rejections_total", reason="timeout") == 1
    assert value(metrics, "llm:rejections_total", reason="backend_error") is None


def test_a_client_that_left_before_the_headers_is_499(metrics: Metrics) -> None:
    metrics.request_ended(record(status=0))

    assert value(metrics, "llm:http_requests_total", route="/health", method="GET", status="499") == 1


def test_measuring_never_raises(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise OSError("disk full")

    timer = metrics.timer(record(), model="a", backend="fake")
    monkeypatch.setattr("openai_compat.exposition.Cell.add", broken)
    monkeypatch.setattr("openai_compat.exposition.Cell.set", broken)
    timer.admitted(0.0)
    timer.finish("stop", prompt_tokens=1, completion_tokens=1)
    metrics.occupancy(1, 1)
    metrics.overhead(0.1)
    metrics.request_ended(record())

    assert caplog.text.count("disk full") >= 4


def test_a_failing_catalogue_makes_a_model_unknown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> list[str]:
        raise RuntimeError("no catalogue")

    metrics = Metrics(directory=tmp_path, known_models=broken)
    metrics.timer(record(), model="a", backend="fake").finish("stop", prompt_tokens=1, completion_tokens=1)
    found = value(metrics, "llm:prompt_tokens_total", model="unknown", backend="fake")
    metrics.close()

    assert found == 1
    assert "could not be listed" in caplog.text


def test_a_temporary_folder_goes_with_its_metrics() -> None:
    metrics = Metrics()
    folder = Path(metrics.directory)
    metrics.request_ended(record())
    assert folder.is_dir()
    metrics.close()
    del metrics

    assert not folder.exists()


def count_and_stay(directory: Path, answer: Connection) -> None:
    """In another process: count three requests, show two running, stay until told."""
    metrics = Metrics(directory=directory)
    for _ in range(3):
        metrics.request_ended(record())
    metrics.occupancy(2, 1)
    answer.send(os.getpid())
    answer.recv()


def test_one_scrape_shows_every_process_and_forgets_the_gauges_of_the_dead(
    metrics: Metrics, tmp_path: Path
) -> None:
    metrics.request_ended(record())
    metrics.occupancy(1, 0)
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=count_and_stay, args=(tmp_path / "metrics", theirs))
    process.start()
    ours.recv()
    counted = {"route": "/health", "method": "GET", "status": "200"}

    assert value(metrics, "llm:http_requests_total", **counted) == 4
    assert value(metrics, "llm:num_requests_running") == 3
    process.kill()
    process.join(20)
    assert value(metrics, "llm:http_requests_total", **counted) == 4
    assert value(metrics, "llm:num_requests_running") == 1


def test_many_dead_processes_are_folded_into_one_archive(metrics: Metrics, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    dead = 2**22 + 1  # above the kernel's largest pid
    counted = {"route": "/health", "method": "GET", "status": "200"}
    metrics.request_ended(record())
    timer = metrics.timer(record(), model="a", backend="fake")
    timer.first_token(11.0)
    timer.finish("stop", prompt_tokens=1, completion_tokens=1, now=12.0)
    for number in range(20):
        for kind in ("counter", "histogram"):
            mine = next(folder.glob(f"{kind}_{os.getpid()}-*.db"))
            (folder / f"{kind}_{dead + number}-0.db").write_bytes(mine.read_bytes())
    before = samples(metrics.render())
    after = samples(metrics.render())

    assert value(metrics, "llm:http_requests_total", **counted) == 21
    assert before == after
    assert len(list(folder.glob("*.db"))) <= 5


def test_runners_texts_are_merged_by_family() -> None:
    runner = b'# HELP x Things.\n# TYPE x gauge\nx{runner="%d"} %d\n'
    text = merge_texts([b"# HELP y Other.\n# TYPE y counter\ny_total 1\n", runner % (1, 5), runner % (2, 6)])

    assert text.count(b"# TYPE x gauge") == 1
    assert samples(text) == {
        ("y_total", frozenset()): 1.0,
        ("x", frozenset({("runner", "1")})): 5.0,
        ("x", frozenset({("runner", "2")})): 6.0,
    }


def test_families_that_one_text_repeats_stand_once() -> None:
    engine = b'# HELP x Things.\n# TYPE x gauge\nx{model="%b"} 1\n'
    text = merge_texts([engine % b"a" + engine % b"b"])

    assert text == b'# HELP x Things.\n# TYPE x gauge\nx{model="a"} 1\nx{model="b"} 1\n'


def test_a_runner_that_says_nothing_costs_nothing() -> None:
    assert merge_texts([b"", b"\n\n", b"# EOF\n"]) == b""


def test_every_series_stands_in_the_documentation(metrics: Metrics) -> None:
    metrics.timer(record(), model="a", backend="fake").cancel()
    refused = record(status=429)
    refused.error_code = "rate_limit_exceeded"
    metrics.request_ended(refused)
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = {
        line.split()[2].decode() for line in metrics.render().splitlines() if line.startswith(b"# TYPE ")
    }

    assert {name for name in names if f"`{name}`" not in page} == set()
