"""Which violations of the protocol are seen."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.completion_check import (
    ErrorInStream,
    StreamCheck,
    Usage,
    check_answer,
    check_embeddings,
    check_model_list,
    usage_of,
)
from loadtests.sse import DONE, Payload, Violation
from tests.loadtests.scripted_server import chunk, good_chunks, usage

ROLE = chunk(delta={"role": "assistant"})
TEXT = chunk(delta={"content": "a"})
FINISH = chunk(finish_reason="stop")
USAGE = chunk(usage=usage())


def follow(*payloads: Payload, **options: Any) -> StreamCheck:
    check = StreamCheck(**{"is_chat": True, **options})
    for payload in payloads:
        check.take(payload)
    check.end()
    return check


def kind_of(*payloads: Payload, **options: Any) -> str:
    with pytest.raises(Violation) as caught:
        follow(*payloads, **options)
    return caught.value.kind


def test_right_stream_gives_its_text_and_usage() -> None:
    check = follow(*good_chunks(("Hel", "lo")), DONE)

    assert "".join(check.said) == "Hello"
    assert check.usage == Usage(3, 2, 1)


def test_only_chunks_that_say_something_are_pieces() -> None:
    check = StreamCheck(is_chat=True)

    payloads: list[Payload] = [*good_chunks(("Hel", "lo")), DONE]

    assert [check.take(payload) for payload in payloads] == [
        False, True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "delta",
    [{"reasoning_content": "h"}, {"reasoning": "h"}, {"tool_calls": [{"index": 0}]}, {"refusal": "no"}],
)
def test_thoughts_and_tool_calls_are_pieces_and_no_text(delta: dict[str, Any]) -> None:
    check = StreamCheck(is_chat=True)
    check.take(ROLE)

    assert check.take(chunk(delta=delta))
    assert check.said == []


@pytest.mark.parametrize(
    ("payloads", "kind"),
    [
        ((ROLE, TEXT, FINISH, USAGE), "no-done"),
        ((ROLE, TEXT, FINISH, DONE), "missing-usage"),
        ((ROLE, TEXT, FINISH, chunk(usage={"prompt_tokens": 1}), DONE), "missing-usage"),
        ((ROLE, TEXT, FINISH, chunk(usage={**usage(), "total_tokens": 9}), DONE), "missing-usage"),
        ((ROLE, chunk(chunk_id="chatcmpl-2", delta={"content": "a"})), "changed-id"),
        ((ROLE, chunk(created=6, delta={"content": "a"})), "changed-head"),
        ((TEXT,), "wrong-order"),
        ((ROLE, ROLE), "wrong-order"),
        ((ROLE, FINISH, TEXT), "wrong-order"),
        ((ROLE, USAGE), "wrong-order"),
        ((ROLE, FINISH, USAGE, TEXT), "wrong-order"),
        ((ROLE, FINISH, USAGE, USAGE), "wrong-order"),
        ((ROLE, FINISH, USAGE, DONE, DONE), "wrong-order"),
        ((ROLE, FINISH, USAGE, DONE, TEXT), "wrong-order"),
        ((ROLE, TEXT, DONE), "no-finish"),
        ((DONE,), "no-finish"),
        ((ROLE, chunk(finish_reason=7)), "wrong-chunk"),
        ((ROLE, chunk(delta=None)), "wrong-chunk"),
        ((ROLE, chunk(delta={"content": 1})), "wrong-chunk"),
        ((ROLE, {**TEXT, "choices": None}), "wrong-chunk"),
        ((ROLE, {**TEXT, "choices": [{"delta": {}}]}), "wrong-chunk"),
        (({**ROLE, "object": "chat.completion"},), "wrong-chunk"),
        (({**ROLE, "id": ""},), "wrong-chunk"),
    ],
)
def test_violation_is_seen(payloads: tuple[Payload, ...], kind: str) -> None:
    assert kind_of(*payloads) == kind


def test_more_tokens_than_asked_for() -> None:
    assert kind_of(ROLE, TEXT, FINISH, USAGE, DONE, max_tokens=1) == "too-many-tokens"


def test_usage_is_not_missed_where_nobody_asked() -> None:
    assert follow(ROLE, TEXT, FINISH, DONE, wants_usage=False).usage is None


def test_each_choice_has_its_own_role_and_end() -> None:
    second = [{**one["choices"][0], "index": 1} for one in (ROLE, TEXT, FINISH)]

    follow(ROLE, {**ROLE, "choices": [second[0]]}, TEXT, FINISH, {**TEXT, "choices": second[1:]}, USAGE, DONE)

    assert kind_of(ROLE, {**ROLE, "choices": [second[0]]}, FINISH, USAGE) == "wrong-order"


def test_error_frame_is_a_failure_of_its_own() -> None:
    with pytest.raises(ErrorInStream) as caught:
        follow(ROLE, {"error": {"code": "backend_error", "message": "it died"}})

    assert (caught.value.code, caught.value.message) == ("backend_error", "it died")


def test_legacy_stream_has_text_and_no_role() -> None:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    texts = [
        {**head, "choices": [{"index": 0, "text": t, "finish_reason": f}]}
        for t, f in (("a", None), ("", "stop"))
    ]

    check = follow(*texts, {**head, "choices": [], "usage": usage()}, DONE, is_chat=False)

    assert check.said == ["a"]


ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": usage(),
}


def test_whole_answer_gives_usage_and_text() -> None:
    assert check_answer(ANSWER, is_chat=True, max_tokens=2) == (Usage(3, 2, 1), "hi")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"object": "chat.completion.chunk"}, "wrong-body"),
        ({"id": None}, "wrong-body"),
        ({"choices": []}, "wrong-body"),
        ({"choices": [{"message": {"content": "a"}}]}, "no-finish"),
        ({"choices": [{"finish_reason": "stop"}]}, "wrong-body"),
        ({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}, "wrong-body"),
        ({"usage": None}, "missing-usage"),
        ({"usage": {**usage(), "completion_tokens": True}}, "missing-usage"),
        ({"usage": usage(completion=3)}, "too-many-tokens"),
    ],
)
def test_wrong_whole_answer_is_seen(changes: dict[str, Any], kind: str) -> None:
    with pytest.raises(Violation) as caught:
        check_answer({**ANSWER, **changes}, is_chat=True, max_tokens=2)

    assert caught.value.kind == kind


def test_answer_that_calls_a_tool_needs_no_text() -> None:
    choice = {"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "tool_calls"}

    assert check_answer({**ANSWER, "choices": [choice]}, is_chat=True, max_tokens=None)[1] == ""


VECTORS: dict[str, Any] = {
    "data": [{"index": i, "embedding": [0.1, 0.2]} for i in range(2)],
    "usage": {"prompt_tokens": 2, "total_tokens": 2},
}


def test_vectors_one_per_text() -> None:
    assert check_embeddings(VECTORS, count=2).prompt_tokens == 2


@pytest.mark.parametrize(
    "data",
    [
        VECTORS["data"][:1],
        [{"index": 0, "embedding": [0.1]}, {"index": 1, "embedding": [0.1, 0.2]}],
        [{"index": 1, "embedding": [0.1]}, {"index": 0, "embedding": [0.1]}],
        [{"index": 0, "embedding": []}, {"index": 1, "embedding": []}],
        None,
    ],
)
def test_wrong_vectors_are_seen(data: Any) -> None:
    with pytest.raises(Violation):
        check_embeddings({**VECTORS, "data": data}, count=2)


def test_model_list_needs_ids() -> None:
    assert check_model_list({"data": [{"id": "m"}]}) == [{"id": "m"}]
    with pytest.raises(Violation):
        check_model_list({"data": [{"name": "m"}]})


def test_usage_without_details_has_nothing_cached() -> None:
    assert usage_of({"usage": {**usage(), "prompt_tokens_details": None}}, max_tokens=None).cached_tokens == 0
