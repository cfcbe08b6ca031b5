"""The engine's texts as events: what goes where, what counts, and how a choice ends."""

from __future__ import annotations

from typing import Any

import pytest

from backends.llamacpp.reading import Reading, told_again
from backends.parsing.answer import Grammar
from backends.parsing.formats import HERMES, MISTRAL
from backends.parsing.reasoning import ThoughtMarkers
from backends.types import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
    ToolCallDelta,
    Usage,
)

THINK = ThoughtMarkers("<think>", "</think>")
BOTH = Grammar(thoughts=THINK, calls=HERMES)
ONE_CALL = ['<tool_call>{"name": "f"', ', "arguments": {"a"', ": 1}}", "</tool_call>"]


def read(grammar: Grammar, *texts: str, reason: FinishReason = "stop", **end: Any) -> list[Event]:
    """The events of one choice whose tokens brought these texts."""
    reading = Reading(grammar, 1)
    events: list[Event] = []
    for text in texts:
        events += reading.read([TextDelta(0, text)])
    return events + reading.read([ChoiceFinished(0, reason, **end), Finished(Usage(9, len(texts) + 1))])


def calls_of(events: list[Event]) -> list[ToolCallDelta]:
    return [event for event in events if isinstance(event, ToolCallDelta)]


def test_the_first_delta_names_the_call_and_the_others_go_on():
    first, *others = calls_of(read(BOTH, *ONE_CALL))

    assert (first.name, first.call_index, first.arguments) == ("f", 0, "")
    assert (first.id or "").startswith("call_")
    assert [(delta.id, delta.name, delta.arguments) for delta in others] == [
        (None, None, '{"a"'),
        (None, None, ": 1}"),
    ]


def test_a_choice_of_whole_calls_ends_with_tool_calls():
    assert ChoiceFinished(0, "tool_calls") in read(BOTH, "Let me see. ", *ONE_CALL)


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_call_that_is_not_whole_is_nothing_to_run(reason: FinishReason):
    events = read(BOTH, *ONE_CALL[:2], reason=reason)

    assert "".join(delta.arguments for delta in calls_of(events)) == '{"a"'
    assert ChoiceFinished(0, reason) in events


def test_length_stays_length_after_whole_calls():
    assert ChoiceFinished(0, "length") in read(BOTH, *ONE_CALL, " and", reason="length")


def test_an_answer_without_calls_ends_as_it_did():
    assert ChoiceFinished(0, "stop", "END") in read(BOTH, "Yes.", stop_reason="END")


def test_the_tokens_of_a_thought_and_its_marks_are_counted():
    events = read(BOTH, "<th", "ink>", "Hm", "</think>", "\n\n", "Yes", ".")

    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.usage.reasoning_tokens == 4
    assert [e.text for e in events if isinstance(e, ReasoningDelta)] == ["Hm"]
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Yes."


def test_what_only_looked_like_a_thought_is_not_counted():
    finished = read(BOTH, "<", "th", "at>", " is")[-1]

    assert isinstance(finished, Finished)
    assert finished.usage.reasoning_tokens == 0


def test_no_token_is_counted_twice_or_not_at_all():
    texts = ["<think>", "a", " b", "</think>", "\n", "So: ", *ONE_CALL]
    events = read(BOTH, *texts)

    told = sum(e.num_tokens for e in events if isinstance(e, TextDelta | ReasoningDelta | ToolCallDelta))
    assert told == len(texts) - 1  # the mark at the end brought nothing


def test_every_entry_of_log_probabilities_goes_out_once_and_in_order():
    reading = Reading(BOTH, 1)
    entries = [TokenLogprobs(TokenLogprob(str(i).encode(), -1.0)) for i in range(7)]
    events: list[Event] = []
    for text, entry in zip(["<think>a</think>", "Yes", *ONE_CALL], entries, strict=False):
        events += reading.read([TextDelta(0, text, 1, (entry,))])
    events += reading.read([ChoiceFinished(0, "stop", None, (entries[6],))])

    found = [
        e for event in events if isinstance(event, TextDelta | ChoiceFinished) for e in event.logprobs or ()
    ]
    assert found == entries


def test_choices_are_read_apart():
    reading = Reading(BOTH, 2)
    events = reading.read([TextDelta(0, "<think>a"), TextDelta(1, "b"), TextDelta(0, "c")])

    assert events == [ReasoningDelta(0, "a"), TextDelta(1, "b"), ReasoningDelta(0, "c")]


def test_ids_of_mistrals_calls_are_nine_letters_and_digits():
    events = read(Grammar(calls=MISTRAL), "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}")

    ids = [delta.id or "" for delta in calls_of(events) if delta.name]
    assert len(set(ids)) == 2
    assert all(len(id_) == 9 and id_.isalnum() for id_ in ids)


def test_a_choice_told_again_has_calls_of_its_own():
    events = told_again([*read(BOTH, "<think>a</think>", *ONE_CALL)], 2, BOTH)

    firsts = [delta for delta in calls_of(events) if delta.name]
    assert [delta.index for delta in firsts] == [0, 1]
    assert len({delta.id for delta in firsts}) == 2
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.usage.completion_tokens, finished.usage.reasoning_tokens) == (12, 2)
