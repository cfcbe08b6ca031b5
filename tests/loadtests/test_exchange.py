"""One request, against a server that answers as scripted: what the record says."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadtests.connection import Connection
from loadtests.exchange import Ask, Exchange, stream, whole
from tests.loadtests.scripted_server import (
    Scripted,
    ScriptedServer,
    chunk,
    frames,
    good_chunks,
    streamed,
    usage,
)

Send = Callable[..., Exchange]
ASK = Ask(
    path="/v1/chat/completions",
    body={"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}},
    max_tokens=8,
)
ERROR = {"detail": "slow down", "error": {"message": "slow down", "code": "rate_limit_exceeded"}}


class Bench:
    """A scripted server and a connection to it."""

    def __init__(self) -> None:
        self.script: list[Scripted] = []
        self.server = ScriptedServer(lambda *_: self.script.pop(0))
        self.connection = Connection(self.server.url, timeout_s=5)

    def stream(self, *script: Scripted, ask: Ask = ASK) -> Exchange:
        self.script += script
        return stream(self.connection, "chat_stream", ask, {"Authorization": "Bearer t"})

    def whole(self, *script: Scripted) -> Exchange:
        self.script += script
        return whole(self.connection, "chat", ASK, {})


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    with bench.server.running():
        yield bench
        bench.connection.close()


def test_stream_is_timed_and_counted(bench: Bench) -> None:
    exchange = bench.stream(streamed(*good_chunks(("a", "b", "c"))))

    record = exchange.record
    assert (record.outcome, record.status, record.pieces, len(record.gaps)) == ("ok", 200, 3, 2)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (3, 3, 1)
    assert exchange.said == "abc"
    assert record.ttft is not None
    assert record.e2e is not None
    assert 0 < record.ttft <= record.ttft + sum(record.gaps) <= record.e2e


def test_request_goes_out_as_json_with_its_token(bench: Bench) -> None:
    bench.stream(streamed(*good_chunks()))

    method, path, headers, body = bench.server.asked[0]
    assert (method, path, body) == ("POST", "/v1/chat/completions", ASK.body)
    assert headers["Authorization"] == "Bearer t"
    assert headers["Content-Type"] == "application/json"


def test_connection_is_kept(bench: Bench) -> None:
    for _ in range(3):
        assert bench.stream(streamed(*good_chunks())).record.outcome == "ok"

    assert bench.server.connections == 1


def test_frames_may_come_in_any_pieces(bench: Bench) -> None:
    raw = b"".join(frames(*good_chunks(("ä", "🙂"))))

    exchange = bench.stream(
        Scripted(
            pieces=[raw[i : i + 7] for i in range(0, len(raw), 7)],
            headers={"Content-Type": "text/event-stream"},
        )
    )

    assert (exchange.record.outcome, exchange.said) == ("ok", "ä🙂")


@pytest.mark.parametrize(
    ("scripted", "kind"),
    [
        (streamed(*good_chunks(), done=False), "no-done"),
        (streamed(*good_chunks()[:-1]), "missing-usage"),
        (streamed(*good_chunks()[:2], chunk(chunk_id="chatcmpl-9", delta={"content": "x"})), "changed-id"),
        (streamed(*good_chunks()[1:]), "wrong-order"),
        (Scripted(pieces=[b"data: {\n\n"], headers={"Content-Type": "text/event-stream"}), "broken-frame"),
        (
            Scripted(
                pieces=frames(*good_chunks())[:2], headers={"Content-Type": "text/event-stream"}, cut=True
            ),
            "cut",
        ),
        (
            Scripted(body={"object": "chat.completion"}, headers={"Content-Type": "application/json"}),
            "broken-frame",
        ),
        (
            streamed(chunk(delta={"role": "assistant"}), {"error": {"code": "timeout"}}),
            "error-in-stream timeout",
        ),
        (Scripted(status=500, body={"detail": "x", "error": {"code": "backend_error"}}), "500 backend_error"),
        (Scripted(status=500, body=b"<html>"), "wrong-error-body"),
        (Scripted(status=429, body=ERROR), "no-retry-after"),
        (Scripted(status=429, body=ERROR, headers={"Retry-After": "0"}), "wrong-retry-after"),
        (Scripted(status=429, body=ERROR, headers={"Retry-After": "0.5"}), "wrong-retry-after"),
        (Scripted(status=503, body={"error": {"code": "backend_unavailable"}}), "503 backend_unavailable"),
    ],
)
def test_what_is_wrong_is_a_failure_of_its_kind(bench: Bench, scripted: Scripted, kind: str) -> None:
    record = bench.stream(scripted).record

    assert (record.outcome, record.error) == ("failed", kind)


def test_failed_stream_leaves_a_connection_that_works(bench: Bench) -> None:
    bench.stream(streamed(*good_chunks()[1:]))

    assert bench.stream(streamed(*good_chunks())).record.outcome == "ok"


@pytest.mark.parametrize("status", [429, 503])
def test_refusal_that_says_when_to_come_again_is_no_failure(bench: Bench, status: int) -> None:
    record = bench.stream(Scripted(status=status, body=ERROR, headers={"Retry-After": "2"})).record

    assert (record.outcome, record.error, record.retry_after) == (
        "refused",
        f"{status} rate_limit_exceeded",
        2.0,
    )


@pytest.mark.parametrize(("leave_after", "pieces"), [(0, 0), (2, 2)])
def test_abandoning_caller_closes_the_connection(bench: Bench, leave_after: int, pieces: int) -> None:
    ask = Ask(path=ASK.path, body=ASK.body, max_tokens=8, leave_after=leave_after)

    record = bench.stream(streamed(*good_chunks(("a", "b", "c", "d"))), ask=ask).record
    bench.stream(streamed(*good_chunks()))

    assert (record.outcome, record.pieces, record.e2e) == ("abandoned", pieces, None)
    assert bench.server.connections == 2


def test_stream_that_ends_before_the_caller_leaves_is_whole(bench: Bench) -> None:
    ask = Ask(path=ASK.path, body=ASK.body, max_tokens=8, leave_after=50)

    assert bench.stream(streamed(*good_chunks()), ask=ask).record.outcome == "ok"


def test_whole_answer_has_no_first_piece(bench: Bench) -> None:
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": usage(),
    }

    exchange = bench.whole(Scripted(body=body))

    assert (exchange.record.outcome, exchange.record.ttft, exchange.said) == ("ok", None, "hi")
    assert exchange.record.tokens_per_s == pytest.approx(2 / (exchange.record.e2e or 1))


def test_whole_answer_that_is_no_json_is_a_violation(bench: Bench) -> None:
    assert bench.whole(Scripted(body=b"<html>")).record.error == "wrong-body"


def test_nobody_there_is_a_failure() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    record = stream(Connection(f"http://127.0.0.1:{port}", timeout_s=2), "chat_stream", ASK, {}).record

    assert (record.outcome, record.error) == ("failed", "connect")


def test_silence_is_a_timeout() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        connection = Connection(f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout_s=0.05)

        record = stream(connection, "chat_stream", ASK, {}).record
        connection.close()

    assert (record.outcome, record.error) == ("failed", "timeout")


def test_kept_connection_that_the_server_closed_is_opened_again(bench: Bench) -> None:
    bench.stream(Scripted(pieces=frames(*good_chunks()), headers={"Content-Type": "text/event-stream"}))
    sock: Any = bench.connection._http.sock
    sock.shutdown(socket.SHUT_RDWR)

    assert bench.stream(streamed(*good_chunks())).record.outcome == "ok"
    assert bench.server.connections == 2


@pytest.mark.parametrize("address", ["127.0.0.1:14011", "ftp://host", "http://"])
def test_address_must_be_one(address: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        Connection(address, timeout_s=1)
