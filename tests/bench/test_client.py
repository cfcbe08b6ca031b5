"""What the client makes of an answer."""

from __future__ import annotations

import pytest

from bench.client import Answer, ask, chat, open_session
from tests.bench.scripted_server import Script, frame, frames, piece, scripted_server


async def answer_to(script: Script, *, stream: bool = True) -> Answer:
    answer = Answer()
    async with scripted_server(script) as url, open_session() as session:
        await ask(session, url, chat("hello", 3, stream=stream), answer)
    return answer


async def test_a_stream_leaves_its_pieces_with_their_times_and_its_usage() -> None:
    answer = await answer_to(Script())

    assert answer.error is None
    assert [text for _, text in answer.pieces] == [" w0", " w1", " w2"]
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (9, 3, 4)
    assert answer.ended is not None
    assert answer.sent < answer.pieces[0][0] <= answer.pieces[-1][0] <= answer.ended


async def test_role_and_end_are_no_pieces_of_text() -> None:
    answer = await answer_to(Script(frames=frames(0)))

    assert answer.pieces == []
    assert answer.finish_reason == "length"


async def test_the_request_is_greedy_and_of_a_fixed_length() -> None:
    script = Script()
    await answer_to(script)

    asked = script.asked[0]
    assert (asked["temperature"], asked["ignore_eos"], asked["max_tokens"]) == (0, True, 3)
    assert asked["stream_options"] == {"include_usage": True}


async def test_a_status_is_an_error() -> None:
    answer = await answer_to(Script(status=503))

    assert answer.error is not None
    assert answer.error.startswith("status 503")
    assert answer.ended is None


async def test_an_error_frame_is_an_error_even_with_text_before_and_done_behind() -> None:
    script = Script(frames=[piece("a"), frame({"error": {"message": "dead"}}), b"data: [DONE]\n\n"])
    answer = await answer_to(script)

    assert answer.error is not None
    assert "dead" in answer.error
    assert answer.ended is None
    assert answer.text == "a"


@pytest.mark.parametrize("sent", [[], [piece("a")], [piece("a"), b"data: {"]])
async def test_a_stream_that_ends_without_done_is_an_error(sent: list[bytes]) -> None:
    answer = await answer_to(Script(frames=sent))

    assert answer.error is not None
    assert "[DONE]" in answer.error
    assert answer.ended is None


async def test_what_is_no_json_is_an_error() -> None:
    answer = await answer_to(Script(frames=[b"data: nonsense\n\n"]))

    assert answer.error is not None
    assert answer.error.startswith("DecodeError")


async def test_a_whole_answer_is_one_piece() -> None:
    whole = {
        "choices": [{"message": {"content": "all of it"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    answer = await answer_to(Script(whole=whole), stream=False)

    assert answer.error is None
    assert answer.text == "all of it"
    assert answer.completion_tokens == 2


async def test_time_in_the_queue_is_read_from_its_header() -> None:
    answer = await answer_to(Script(headers="x-llm-queue-ms: 12.5\r\n"))

    assert answer.queue_ms == 12.5


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with scripted_server(Script()) as url:
        pass
    answer = Answer()
    async with open_session() as session:
        await ask(session, url, chat("hello", 3), answer)

    assert answer.error is not None
