"""The line of a request."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from openai_compat.access_log import LOGGER, AccessLog, access_line, open_access_log
from openai_compat.record import RequestRecord


@pytest.fixture(autouse=True)
def logger_as_before() -> Iterator[None]:
    """The logger is the process's own; each test gives it back as it was."""
    logger = logging.getLogger(LOGGER)
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def record() -> RequestRecord:
    """A request that was answered."""
    made = RequestRecord("req_1", "POST", 10.0)
    made.route, made.status, made.sent_bytes = "/v1/chat/completions", 200, 321
    return made


def test_a_line_holds_ids_counts_and_times() -> None:
    made = record()
    made.principal, made.model, made.backend = "key:abc", "m", "fake"
    made.prompt_tokens, made.completion_tokens = 3, 4
    made.queue_s, made.ttft_s, made.finish_reason = 0.001, 0.25, "stop"

    assert json.loads(access_line(made, 10.5, 1700000000.1234)) == {
        "time": 1700000000.123,
        "request_id": "req_1",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "ms": 500.0,
        "bytes": 321,
        "principal": "key:abc",
        "model": "m",
        "backend": "fake",
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "queue_ms": 1.0,
        "ttft_ms": 250.0,
        "finish_reason": "stop",
    }


def test_what_is_not_known_is_left_out() -> None:
    assert "model" not in json.loads(access_line(record(), 10.5, 0.0))


def test_a_client_that_left_early_is_499_with_its_phase() -> None:
    made = record()
    made.status, made.cancelled_phase = 0, "prefill"
    line = json.loads(access_line(made, 11.0, 0.0))

    assert (line["status"], line["cancelled"]) == (499, "prefill")


@pytest.mark.parametrize(
    "text", ["a\nb", "a\r\n{}", "a\u2028b", "a\x85b", "a\x1b[2Jb", "a\ud800b", "a\x7fb", "模\x00"]
)
def test_no_value_forges_a_line(text: str) -> None:
    made = record()
    made.model = made.method = text
    line = access_line(made, 10.5, 0.0)

    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert json.loads(line)["status"] == 200


def test_an_ordinary_unicode_name_stays() -> None:
    made = record()
    made.model = "模型-ä"

    assert json.loads(access_line(made, 10.5, 0.0))["model"] == "模型-ä"


def test_the_lines_go_to_the_stream_as_they_are() -> None:
    out = io.StringIO()
    open_access_log(out)
    log = AccessLog("info")
    log.write(record(), 10.5)
    log.write(record(), 10.5)

    assert [json.loads(line)["request_id"] for line in out.getvalue().splitlines()] == ["req_1", "req_1"]


def test_opening_again_changes_the_stream() -> None:
    first, second = io.StringIO(), io.StringIO()
    open_access_log(first)
    open_access_log(second)
    AccessLog().write(record(), 10.5)

    assert first.getvalue() == ""
    assert second.getvalue() != ""


def test_the_level_decides() -> None:
    out = io.StringIO()
    open_access_log(out)
    logging.getLogger(LOGGER).setLevel(logging.WARNING)
    AccessLog("INFO").write(record(), 10.5)
    assert out.getvalue() == ""

    AccessLog("WARNING").write(record(), 10.5)
    assert out.getvalue() != ""


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="access_log_level"):
        AccessLog("loud")
