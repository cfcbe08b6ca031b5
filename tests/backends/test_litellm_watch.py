"""What is read beside LiteLLM in a provider's event stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.litellm.watch import MAX_LINE_BYTES, Tail, Watch

FINISH = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
TEXT = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": null}]}\r\n\r\n'
ERROR = b'data: {"error": {"message": "no", "code": "rate_limit_exceeded"}}\n\n'
HALF = b'data: {"choices": [{"ind\n\n'
OTHERS = b'event: message_start\ndata: {"type": "message_start", "message": {"usage": {}}}\n\n'
DONE = b"data: [DONE]\n\n"


def seen(*events: bytes) -> Watch:
    watch = Watch()
    for event in events:
        watch.feed(event)
    watch.end()
    return watch


def test_a_finish_reason_is_noticed() -> None:
    assert seen(TEXT, FINISH, DONE).has_finished
    assert not seen(TEXT, DONE).has_finished


def test_an_empty_finish_reason_is_none() -> None:
    assert not seen(b'data: {"choices": [{"finish_reason": ""}]}\n\n').has_finished


def test_half_a_json_is_noticed_and_the_end_mark_is_none() -> None:
    assert seen(TEXT, HALF, DONE).is_broken
    assert not seen(TEXT, FINISH, DONE, b": keep-alive\n\n", b"data:\n\n").is_broken


def test_an_error_is_kept_as_the_provider_wrote_it() -> None:
    assert seen(TEXT, ERROR).error == {"message": "no", "code": "rate_limit_exceeded"}
    assert seen(b'data: {"choices": [], "error": null}\n\n').error is None


def test_another_format_is_left_to_litellm() -> None:
    watch = seen(OTHERS, b'data: {"choices": "of another kind"}\n\n')

    assert not watch.is_openai
    assert not watch.is_broken


def test_a_last_line_needs_no_line_feed() -> None:
    assert seen(FINISH.rstrip()).has_finished


@pytest.mark.parametrize("events", [(TEXT, FINISH, DONE), (TEXT, HALF, DONE), (ERROR, FINISH)])
@given(data=st.data())
def test_how_the_network_cut_the_bytes_changes_nothing(
    events: tuple[bytes, ...], data: st.DataObject
) -> None:
    whole = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    cut = seen(*(whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)))
    one = seen(whole)

    found = [(each.is_openai, each.has_finished, each.is_broken, each.error) for each in (cut, one)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("body", "cost"),
    [
        (b'{"data":[[0.1,0.2]],"usage":{"prompt_tokens":3,"cost":1.5e-07,"total_tokens":3}}', 1.5e-07),
        (b'{"data":[[0.1,0.2]],"usage": {"prompt_tokens": 3, "cost": 2 }}', 2.0),
        (b'{"usage":{"prompt_tokens":3},"data":[[0.1]]}', None),
        (b'{"cost":5,"usage":{"prompt_tokens":3}}', None),
        (b'{"usage":{"cost":null}}', None),
        (b'{"usage":{"cost":1.', None),
        (b"", None),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_end_of_an_answer_tells_its_cost(body: bytes, cost: float | None, size: int) -> None:
    tail = Tail()
    whole = b'{"data":[' + b"0.25," * 1000 + b"0]," + body[1:] if body else b""
    for at in range(0, len(whole), size):
        tail.feed(whole[at : at + size])

    assert tail.cost_usd == cost


@pytest.mark.parametrize("size", [1000, 65_536, MAX_LINE_BYTES + 1, 10 * MAX_LINE_BYTES])
def test_an_event_of_many_megabytes_is_passed_over_and_kept_by_nobody(size: int) -> None:
    watch = Watch()
    whole = TEXT + b'data: {"choices": "' + b"x" * (2 * MAX_LINE_BYTES) + b'"}\n\n' + FINISH
    for at in range(0, len(whole), size):
        watch.feed(whole[at : at + size])
        assert len(watch._rest) <= MAX_LINE_BYTES

    assert watch.has_finished
    assert not watch.is_broken
