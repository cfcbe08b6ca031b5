"""Frames as a client reads them."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from backends.types import ChoiceFinished, TextDelta
from openai_compat import sse
from openai_compat.serving.answers import ChatAnswer, CompletionAnswer

TEXTS = st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1), min_size=1)


@given(TEXTS)
def test_any_texts_come_back_in_one_line_per_frame(texts: list[str]) -> None:
    stream = b"".join(sse.frame(msgspec.json.encode({"t": text})) for text in texts)

    blocks = stream.split(b"\n\n")
    assert blocks.pop() == b""
    assert [json.loads(block.removeprefix(b"data: "))["t"] for block in blocks] == texts
    assert all(len(block.splitlines()) == 1 for block in blocks)


@given(TEXTS, st.integers(1, 5))
def test_a_streams_text_is_the_same_however_the_events_are_batched(texts: list[str], size: int) -> None:
    events = [*(TextDelta(0, text) for text in texts), ChoiceFinished(0, "stop")]
    parts = {
        "model": 'a"b/ü',
        "backend": "fake",
        "num_choices": 1,
        "with_logprobs": False,
        "include_usage": False,
    }
    for kind in (ChatAnswer, CompletionAnswer):
        answer = kind(**parts)

        stream = b"".join(answer.chunks(events[i : i + size]) for i in range(0, len(events), size))

        chunks = [json.loads(block.removeprefix(b"data: ")) for block in stream.split(b"\n\n")[:-1]]
        choices = [chunk["choices"][0] for chunk in chunks]
        text = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)
        assert text == "".join(texts)
        assert {(chunk["id"], chunk["model"]) for chunk in chunks} == {(answer.id, 'a"b/ü')}


def test_the_end_mark_and_the_comment_are_frames_of_their_own() -> None:
    assert sse.DONE == b"data: [DONE]\n\n"
    assert sse.KEEP_ALIVE.startswith(b":")
    assert sse.KEEP_ALIVE.endswith(b"\n\n")
