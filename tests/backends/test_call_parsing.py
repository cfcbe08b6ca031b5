"""Tool calls in text: each family's forms, any chunking, and nothing lost."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.parsing import calls
from backends.parsing.calls import CallReader
from backends.parsing.formats import HERMES, LLAMA3, MISTRAL, PLAIN, CallFormat, format_of
from backends.parsing.pieces import CallArguments, CallBegin, CallEnd, Piece, Text, joined
from tests.backends.call_texts import EXAMPLES, NAMES, Example

FORMS = (HERMES, LLAMA3, MISTRAL, PLAIN)


def read(form: CallFormat, *parts: str) -> list[Piece]:
    reader = CallReader(form, NAMES)
    pieces: list[Piece] = []
    for part in parts:
        pieces += reader.feed(part)
    return joined([*pieces, *reader.finish()])


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_an_answer_is_read_as_its_family_means_it(example: Example):
    assert read(example.form, example.text) == example.pieces


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_it_is_read_the_same_letter_by_letter(example: Example):
    assert read(example.form, *example.text) == example.pieces


FRAGMENTS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<|python_tag|>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "[CALL_ID]",
            "<tool",
            "[T",
        ),
        *('{"name": "time", ', '"arguments": ', '"parameters": ', '"name": "x"', '"arguments": "{}"', "null"),
        *("{", "}", "[", "]", '"', "\\", ",", ";", ":", " ", "\n", "time", "words ", '{"a": [1, "}"]}', "{}"),
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=14).map("".join)
PLACES = st.lists(st.integers(0, 400), max_size=12)


@given(st.sampled_from(FORMS), TEXTS, PLACES)
def test_any_chunking_gives_the_same_pieces(form: CallFormat, text: str, places: list[int]):
    assert read(form, *cut(text, places)) == read(form, text)


@given(st.sampled_from(FORMS), TEXTS)
def test_an_answer_without_a_call_comes_out_as_it_was_written(form: CallFormat, text: str):
    pieces = read(form, text)

    if not any(isinstance(piece, CallBegin) for piece in pieces):
        assert "".join(piece.text for piece in pieces if isinstance(piece, Text)) == text


@given(st.sampled_from(FORMS), TEXTS, PLACES)
def test_no_piece_is_empty_and_calls_are_in_order(form: CallFormat, text: str, places: list[int]):
    reader = CallReader(form, NAMES)
    pieces = [piece for part in cut(text, places) for piece in reader.feed(part)] + reader.finish()
    is_open = False
    for piece in pieces:
        if isinstance(piece, CallBegin):
            assert not is_open
            is_open = True
        elif isinstance(piece, CallArguments):
            assert is_open
            assert piece.text
        elif isinstance(piece, CallEnd):
            is_open = False
        else:
            assert isinstance(piece, Text)
            assert piece.text
    assert reader.num_calls == sum(isinstance(piece, CallBegin) for piece in pieces)
    assert reader.num_whole == sum(isinstance(piece, CallEnd) for piece in pieces)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(sorted(NAMES)), st.dictionaries(st.text(max_size=5), JSON, max_size=3)),
    min_size=1,
    max_size=3,
)


def written(form: CallFormat, made: list[tuple[str, dict[str, Any]]]) -> str:
    """As the family writes these calls."""
    key = "parameters" if form is LLAMA3 else "arguments"
    objects = [json.dumps({"name": name, key: arguments}) for name, arguments in made]
    if form is LLAMA3:
        return "; ".join(objects)
    if form is MISTRAL:
        return f"[TOOL_CALLS][{', '.join(objects)}]"
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)


@given(st.sampled_from(FORMS), CALLS, PLACES)
def test_what_a_family_writes_is_read_back(form: CallFormat, made: Any, places: list[int]):
    wanted = [
        piece
        for name, arguments in made
        for piece in (CallBegin(name), CallArguments(json.dumps(arguments)), CallEnd())
    ]

    assert read(form, *cut(written(form, made), places)) == wanted


def test_arguments_go_out_as_they_come():
    reader = CallReader(HERMES, NAMES)
    reader.feed('<tool_call>{"name": "time", "arguments"')

    assert reader.feed(': {"zo') == [CallBegin("time"), CallArguments('{"zo')]
    assert reader.feed('ne": 1') == [CallArguments('ne": 1')]
    assert reader.is_calling
    assert reader.feed("}}") == [CallArguments("}"), CallEnd()]
    assert not reader.is_calling


def test_words_are_not_held_back_without_need():
    reader = CallReader(HERMES, NAMES)

    assert reader.feed("It is") == [Text("It is")]
    assert reader.feed(" < 5 and <") == [Text(" < 5 and ")]
    assert reader.feed("b>") == [Text("<b>")]


@pytest.mark.parametrize("places", [[], list(range(0, 400, 7))])
def test_a_call_that_never_tells_its_name_is_text_in_the_end(
    places: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(calls, "MAX_HEAD_CHARS", 100)
    text = '<tool_call>{"arguments": "' + "a" * 200 + '", "name": "time"}</tool_call>'

    assert read(HERMES, *cut(text, places)) == [Text(text)]


@pytest.mark.parametrize(
    ("template", "knows_tools", "form"),
    [
        ("{% for tool in tools %}<tool_call>", True, HERMES),
        ("{{ tools }} [TOOL_CALLS]", True, MISTRAL),
        ("{{ tools }} <|python_tag|>", True, LLAMA3),
        ('{{ tools }} Environment: ipython {"name": x, "parameters": y}', True, LLAMA3),
        ("{{ tools }} <tool_call><function=name><parameter=x>", True, PLAIN),
        ("{{ tools }} call them somehow", True, PLAIN),
        ("<tool_call> but no list of tools", False, PLAIN),
    ],
)
def test_the_family_is_known_by_its_template(template: str, knows_tools: bool, form: CallFormat):
    assert format_of(template, knows_tools=knows_tools) is form
