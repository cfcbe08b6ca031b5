"""Thoughts apart from the answer, in a row with calls."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.parsing.answer import AnswerParser, Grammar, parse
from backends.parsing.formats import HERMES
from backends.parsing.pieces import CallArguments, CallBegin, CallEnd, Piece, Text, Thought, joined
from backends.parsing.reasoning import ThoughtMarkers, ThoughtSplitter, markers_of

THINK = ThoughtMarkers("<think>", "</think>")


def read(text: str, *, begins_inside: bool = False) -> list[Piece]:
    return joined(parse(text, Grammar(thoughts=THINK, begins_inside=begins_inside)))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("<think>\nHm. 2 + 2\n</think>\n\nFour.", [Thought("Hm. 2 + 2"), Text("Four.")]),
        ("<think>\n\n</think>\n\nFour.", [Text("Four.")]),
        ("\n<think>Hm</think>Four", [Thought("Hm"), Text("Four")]),
        ("<think>a\n\nb  </think>c \n", [Thought("a\n\nb"), Text("c \n")]),
        ("<think>Never done", [Thought("Never done")]),
        ("<think>Cut at </thi", [Thought("Cut at </thi")]),
        ("<think>1 < 2 </b> </think>x", [Thought("1 < 2 </b>"), Text("x")]),
        ("<thi", [Text("<thi")]),
        (" \n", [Text(" \n")]),
        ("\n\nFour.", [Text("\n\nFour.")]),
        ("The tag <think> opens a thought.", [Text("The tag <think> opens a thought.")]),
        ("<think>a</think>b<think>c</think>", [Thought("a"), Text("b<think>c</think>")]),
        ("a</think>b", [Text("a</think>b")]),
        ("", []),
    ],
)
def test_a_span_at_the_beginning_is_a_thought(text: str, pieces: list[Piece]):
    assert read(text) == pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("\nHm.\n</think>\n\nFour.", [Thought("Hm."), Text("Four.")]),
        ("</think>Four.", [Text("Four.")]),
        ("Never done", [Thought("Never done")]),
    ],
)
def test_an_answer_may_begin_inside_a_span(text: str, pieces: list[Piece]):
    assert read(text, begins_inside=True) == pieces


def test_a_call_may_follow_a_thought():
    text = '<think>\nI must ask.\n</think>\n\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'

    assert joined(parse(text, Grammar(thoughts=THINK, calls=HERMES))) == [
        Thought("I must ask."),
        CallBegin("time"),
        CallArguments("{}"),
        CallEnd(),
    ]


def test_a_call_inside_a_thought_is_a_thought():
    text = "<think><tool_call></think>x"

    assert joined(parse(text, Grammar(thoughts=THINK, calls=HERMES))) == [Thought("<tool_call>"), Text("x")]


TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "<th", "</", "think>", " ", "\n", "a", "words ", "/"]),
    max_size=12,
).map("".join)


@given(TEXTS, st.lists(st.integers(0, 99), max_size=10), st.booleans())
def test_any_chunking_gives_the_same_pieces(text: str, places: list[int], begins_inside: bool):
    grammar = Grammar(thoughts=THINK, begins_inside=begins_inside, calls=HERMES)
    parser = AnswerParser(grammar)
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    pieces = [p for a, b in itertools.pairwise(bounds) for p in parser.feed(text[a:b])]

    assert joined([*pieces, *parser.finish()]) == joined(parse(text, grammar))


@given(TEXTS)
def test_only_the_span_and_blanks_beside_it_are_taken_out_of_the_text(text: str):
    words = "".join(piece.text for piece in read(text) if isinstance(piece, Text))

    start = text.lstrip()
    if not start.startswith("<think>"):
        assert words == text
    else:
        assert words == start[len("<think>") :].partition("</think>")[2].lstrip()


def test_a_thought_goes_out_as_it_comes():
    splitter = ThoughtSplitter(THINK)

    assert splitter.feed("<thi") == []
    assert splitter.is_undecided
    assert splitter.feed("nk>\nHm") == [Thought("Hm")]
    assert splitter.is_thinking
    assert splitter.feed(", so ") == [Thought(", so")]
    assert splitter.feed("then</think>\n") == [Thought(" then")]
    assert not splitter.is_thinking
    assert splitter.feed("\nYes") == [Text("Yes")]
    assert splitter.is_over


@pytest.mark.parametrize(
    ("template", "markers"),
    [
        ("{{ '<think>\n' }}", THINK),
        ("{{ content.split('</think>')[-1] }}", THINK),
        ("[THINK]", ThoughtMarkers("[THINK]", "[/THINK]")),
        ("{{ messages }}", None),
    ],
)
def test_markers_are_read_from_the_template(template: str, markers: ThoughtMarkers | None):
    assert markers_of(template) == markers
