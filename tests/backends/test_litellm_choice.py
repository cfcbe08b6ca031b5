"""From a provider's deltas to our events, whatever it leaves out or repeats."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import UpstreamError
from backends.litellm.choice import Choice
from backends.types import ChoiceFinished, Event, ReasoningDelta, TextDelta, ToolCallDelta


def delta(content: str | None = None, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(content=content, **fields)


def piece(
    index: int | None = 0, *, id: str | None = None, name: str | None = None, arguments: Any = None
) -> SimpleNamespace:
    return SimpleNamespace(index=index, id=id, function=SimpleNamespace(name=name, arguments=arguments))


def calls_of(*pieces: SimpleNamespace, finish: bool = True) -> list[ToolCallDelta]:
    choice = Choice(0)
    out: list[Event] = []
    for one in pieces:
        out += choice.add(delta(tool_calls=[one]))
    if finish:
        out += choice.finish("tool_calls", provider="p")
    return [event for event in out if isinstance(event, ToolCallDelta)]


def whole(calls: list[ToolCallDelta]) -> list[tuple[str | None, str | None, str]]:
    """(id, name, arguments) of each call."""
    numbers = sorted({call.call_index for call in calls})
    assert numbers == list(range(len(numbers)))
    found = []
    for number in numbers:
        of_call = [call for call in calls if call.call_index == number]
        assert all(call.id is None and call.name is None for call in of_call[1:])
        arguments = "".join(call.arguments for call in of_call)
        found.append((of_call[0].id, of_call[0].name, arguments))
    return found


def test_a_call_in_pieces_has_its_id_and_name_in_the_first():
    calls = calls_of(
        piece(id="call_1", name="f", arguments=""), piece(arguments='{"a"'), piece(arguments=": 1}")
    )

    assert whole(calls) == [("call_1", "f", '{"a": 1}')]
    assert [call.arguments for call in calls] == ["", '{"a"', ": 1}"]


def test_an_id_and_name_that_are_repeated_come_once():
    calls = calls_of(
        piece(id="call_1", name="f", arguments='{"a"'), piece(id="call_1", name="f", arguments=": 1}")
    )

    assert whole(calls) == [("call_1", "f", '{"a": 1}')]


def test_a_call_without_an_id_gets_one_of_its_own():
    ((first, *_), (second, *_)) = whole(
        calls_of(piece(0, name="f", arguments="{}"), piece(1, name="g", arguments="{}"))
    )

    assert first
    assert second
    assert first != second


def test_pieces_without_an_index_belong_to_the_last_call_until_another_begins():
    calls = calls_of(
        piece(None, id="a", name="f", arguments="{"),
        piece(None, arguments="}"),
        piece(None, id="b", name="g", arguments="{}"),
    )

    assert whole(calls) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_another_id_under_the_same_index_is_another_call():
    calls = calls_of(piece(0, id="a", name="f", arguments="{}"), piece(0, id="b", name="f", arguments="{}"))

    assert whole(calls) == [("a", "f", "{}"), ("b", "f", "{}")]


def test_indexes_that_do_not_begin_at_zero_are_counted_from_zero():
    calls = calls_of(piece(2, id="a", name="f", arguments="{}"), piece(5, id="b", name="g", arguments="{}"))

    assert whole(calls) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_pieces_of_two_calls_may_alternate():
    calls = calls_of(
        piece(0, id="a", name="f", arguments="{"),
        piece(1, id="b", name="g", arguments="{"),
        piece(0, arguments="}"),
        piece(1, arguments="}"),
    )

    assert whole(calls) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_arguments_before_the_name_wait_for_it():
    calls = calls_of(piece(arguments="{"), piece(id="late", name="f"), piece(arguments="}"))

    assert whole(calls) == [("late", "f", "{}")]


def test_a_call_without_arguments_gets_an_empty_object():
    assert whole(calls_of(piece(id="a", name="f"))) == [("a", "f", "{}")]


def test_arguments_that_come_as_an_object_are_written_as_json():
    assert whole(calls_of(piece(id="a", name="f", arguments={"city": "Köln"}))) == [
        ("a", "f", '{"city": "Köln"}')
    ]


def test_a_call_that_never_got_a_name_is_the_upstreams_error():
    with pytest.raises(UpstreamError, match="without a name"):
        calls_of(piece(id="a", arguments="{}"))


@given(
    arguments=st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=6), max_size=3), max_size=4),
    cuts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    repeats=st.booleans(),
)
def test_calls_are_the_same_on_any_chunking(arguments: list[dict[str, str]], cuts: list[int], repeats: bool):
    pieces = []
    for number, one in enumerate(arguments):
        text, at, turn = json.dumps(one), 0, 0
        while at < len(text):
            size = cuts[turn % len(cuts)]
            first = at == 0 or repeats
            pieces.append(
                piece(
                    number,
                    id=f"c{number}" if first else None,
                    name=f"f{number}" if first else None,
                    arguments=text[at : at + size],
                )
            )
            at, turn = at + size, turn + 1

    found = whole(calls_of(*pieces))

    assert [(name, json.loads(written)) for _, name, written in found] == [
        (f"f{number}", one) for number, one in enumerate(arguments)
    ]


def test_reasoning_comes_under_either_name_and_once():
    choice = Choice(0)
    events = [
        *choice.add(delta("", reasoning_content="a", reasoning="a")),
        *choice.add(delta("", reasoning="b")),
        *choice.add(delta("", reasoning_content="")),
    ]

    assert events == [ReasoningDelta(0, "a"), ReasoningDelta(0, "b")]


def test_reasoning_and_text_of_one_delta_come_in_this_order_and_count_once():
    events = Choice(0).add(delta("Hi", reasoning_content="Hm"), num_tokens=5)

    assert events == [ReasoningDelta(0, "Hm", 5), TextDelta(0, "Hi", 0)]


def test_a_refusal_is_text_where_there_is_no_other():
    assert Choice(0).add(delta(None, refusal="I cannot")) == [TextDelta(0, "I cannot")]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
        ("something new", "stop"),
    ],
)
def test_a_finish_reason_becomes_one_of_the_wires(said: str, reason: str):
    assert Choice(3).finish(said, provider="p") == [ChoiceFinished(3, reason)]  # type: ignore[arg-type]


@pytest.mark.parametrize("said", [None, "error"])
def test_an_end_without_a_reason_is_none(said: str | None):
    with pytest.raises(UpstreamError):
        Choice(0).finish(said, provider="p")


def test_a_stop_string_across_deltas_cuts_and_nothing_of_it_leaks():
    choice = Choice(0, stops=("###",))
    events = [*choice.add(delta("Hello #")), *choice.add(delta("# world ##")), *choice.add(delta("# more"))]

    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello ## world "
    assert choice.stopped
    assert choice.finish(None, provider="p") == [ChoiceFinished(0, "stop", "###")]


def test_what_only_looked_like_a_stop_is_delivered_at_the_end():
    choice = Choice(0, stops=("###",))
    events = [*choice.add(delta("Hello ##")), *choice.finish("length", provider="p")]

    assert events == [TextDelta(0, "Hello "), TextDelta(0, "##"), ChoiceFinished(0, "length")]


def test_echo_comes_first_and_counts_nothing_even_without_an_answer():
    assert Choice(0, echo="Once").add(delta(" upon")) == [TextDelta(0, "Once", 0), TextDelta(0, " upon")]
    assert Choice(0, echo="Once").finish("stop", provider="p")[0] == TextDelta(0, "Once", 0)


def test_logprobs_of_text_that_is_held_back_come_with_it():
    entry = SimpleNamespace(token="##", logprob=-0.5, bytes=None, top_logprobs=[])
    choice = Choice(0, stops=("###",))
    first = choice.add(delta("##"), SimpleNamespace(content=[entry]))
    last = choice.finish("stop", provider="p")

    assert first == []
    assert isinstance(last[0], TextDelta)
    assert last[0].logprobs is not None
    assert last[0].logprobs[0].chosen.token == b"##"
