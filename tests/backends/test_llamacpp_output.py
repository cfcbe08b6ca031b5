"""Tokens to text: whatever the tokens' borders, the deltas are the text, cut where the stop strings say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.llamacpp.output import ChoiceOutput
from backends.types import ChoiceFinished, TextDelta, TokenLogprob, TokenLogprobs

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def entry(piece: bytes) -> TokenLogprobs:
    return TokenLogprobs(TokenLogprob(piece, -1.0))


def play(
    pieces: Sequence[bytes],
    *,
    stop: tuple[str, ...] = (),
    echo: str = "",
    min_tokens: int = 0,
    logprobs: bool = False,
    take: Sequence[bool] = (),
) -> list[TextDelta | ChoiceFinished]:
    """All events of a choice; `take[i]` says whether what is there after token i is sent (default: yes)."""
    output = ChoiceOutput(3, stop, echo=echo, min_tokens=min_tokens)
    events: list[TextDelta | ChoiceFinished] = []
    for i, piece in enumerate(pieces):
        output.count()
        if output.accept(piece, entry(piece) if logprobs else None):
            break
        if (i >= len(take) or take[i]) and (delta := output.take_delta()) is not None:
            events.append(delta)
    return [*events, *output.finish("length", None)]


def deltas(events: Sequence[TextDelta | ChoiceFinished]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


def ending(events: Sequence[TextDelta | ChoiceFinished]) -> ChoiceFinished:
    assert isinstance(events[-1], ChoiceFinished)
    return events[-1]


def cut(data: bytes, borders: Sequence[int]) -> list[bytes]:
    """`data` in pieces, some of them empty as those of control tokens are."""
    places = sorted(border % (len(data) + 1) for border in borders)
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def test_plain_tokens_go_out_as_they_come():
    assert deltas(play([b"Hello", b",", b" you"])) == ["Hello", ",", " you"]


@pytest.mark.parametrize("character", ["é", "海", "😀", "👩‍🚀"])
def test_a_character_split_over_tokens_goes_out_whole(character: str):
    data = character.encode()
    events = play([data[i : i + 1] for i in range(len(data))])

    assert deltas(events) == list(character)


def test_what_never_becomes_a_character_is_told_at_the_end():
    events = play([b"a", "海".encode()[:2]])

    assert deltas(events) == ["a", "\ufffd"]


def test_what_can_become_no_character_is_not_held():
    assert deltas(play([b"\xff", b"a"])) == ["\ufffd", "a"]


def test_nothing_sampled_is_an_end_and_no_text():
    assert play([]) == [ChoiceFinished(3, "length")]


def test_control_tokens_bring_no_delta_but_are_counted():
    output = ChoiceOutput(0, ())
    for piece in (b"", b"", b"x"):
        output.count()
        output.accept(piece)

    assert output.num_generated == 3
    assert output.take_delta() == TextDelta(0, "x", num_tokens=3)
    assert output.take_delta() is None


def test_deltas_count_the_tokens_since_the_last_one():
    data = "a海b".encode()
    events = play([data[:1], data[1:2], data[2:4], data[4:]])

    assert [event.num_tokens for event in events if isinstance(event, TextDelta)] == [1, 2, 1]


@given(
    text=TEXT, borders=st.lists(st.integers(0, 200), max_size=12), take=st.lists(st.booleans(), max_size=14)
)
def test_the_joined_deltas_are_the_text_whatever_the_borders(text: str, borders: list[int], take: list[bool]):
    events = play(cut(text.encode(), borders), take=take)

    assert "".join(deltas(events)) == text
    assert all(deltas(events))


@given(
    data=st.binary(max_size=40),
    borders=st.lists(st.integers(0, 200), max_size=12),
    take=st.lists(st.booleans(), max_size=14),
)
def test_any_bytes_give_the_same_text_whatever_the_borders(data: bytes, borders: list[int], take: list[bool]):
    assert "".join(deltas(play(cut(data, borders), take=take))) == data.decode("utf-8", "replace")


@given(
    text=st.text("ab😀", max_size=30),
    stop=st.lists(st.text("ab😀", min_size=1, max_size=4), min_size=1, max_size=3),
    borders=st.lists(st.integers(0, 200), max_size=12),
    take=st.lists(st.booleans(), max_size=14),
)
def test_a_stop_cuts_the_same_text_whatever_the_borders(
    text: str, stop: list[str], borders: list[int], take: list[bool]
):
    events = play(cut(text.encode(), borders), stop=tuple(stop), take=take)
    found = [text.index(s) for s in stop if s in text]

    assert "".join(deltas(events)) == (text[: min(found)] if found else text)
    assert ending(events).finish_reason == ("stop" if found else "length")


def test_the_end_names_the_stop_that_matched():
    assert ending(play([b"one ", b"END", b" two"], stop=("END", "never"))) == ChoiceFinished(3, "stop", "END")


def test_no_part_of_a_stop_is_sent():
    assert deltas(play([b"a", b"E", b"N", b"D", b"b"], stop=("END",))) == ["a"]


def test_what_only_began_like_a_stop_is_sent():
    assert deltas(play([b"a", b"E", b"N", b"x", b"E"], stop=("END",))) == ["a", "ENx", "E"]


def test_a_stop_may_lie_in_the_bytes_of_one_character():
    data = "x海y".encode()

    assert deltas(play([data[:2], data[2:3], data[3:]], stop=("海",))) == ["x"]


def test_a_stop_may_be_the_mark_of_broken_bytes_at_the_end():
    events = play([b"a", "海".encode()[:1]], stop=("\ufffd",))

    assert deltas(events) == ["a"]
    assert ending(events).finish_reason == "stop"


def test_the_echo_comes_first_and_is_not_searched_for_stops():
    events = play([b" more", b" END", b"x"], stop=("END",), echo="END of all")

    assert "".join(deltas(events)) == "END of all more "


def test_the_echo_and_the_answer_make_no_stop_together():
    assert "".join(deltas(play([b"D", b"x"], stop=("END",), echo="EN"))) == "ENDx"


def test_a_stop_counts_only_behind_the_least_number_of_tokens():
    events = play([b"END ", b"one", b" END", b"x"], stop=("END",), min_tokens=2)

    assert "".join(deltas(events)) == "END one "
    assert ending(events).stop_reason == "END"


def test_a_stop_that_begins_before_the_least_number_of_tokens_is_none():
    assert "".join(deltas(play([b"E", b"ND", b"x"], stop=("END",), min_tokens=1))) == "ENDx"


def test_an_echo_without_an_answer_is_told():
    assert deltas(play([], echo="all")) == ["all"]


def logprobs_of(event: TextDelta | ChoiceFinished) -> list[bytes]:
    return [one.chosen.token for one in event.logprobs or ()]


def test_each_delta_brings_the_logprobs_of_its_tokens():
    events = play([b"a", b"b", b"c"], logprobs=True, take=[True, False, True])

    assert [(logprobs_of(e)) for e in events] == [[b"a"], [b"b", b"c"], []]


def test_a_split_character_brings_the_logprobs_of_all_its_tokens():
    data = "海".encode()
    events = play([data[:1], data[1:2], data[2:], b"x"], logprobs=True)

    assert [(deltas([e]), logprobs_of(e)) for e in events[:-1]] == [
        (["海"], [data[:1], data[1:2], data[2:]]),
        (["x"], [b"x"]),
    ]


def test_logprobs_of_text_that_is_held_back_wait_for_it():
    events = play([b"a", b"E", b"N", b"x"], stop=("END",), logprobs=True)

    assert [logprobs_of(e) for e in events] == [[b"a"], [b"E", b"N", b"x"], []]


def test_logprobs_of_what_a_stop_cuts_away_do_not_come():
    events = play([b"a", b"E", b"N", b"D"], stop=("END",), logprobs=True)

    assert [logprobs_of(e) for e in events] == [[b"a"], []]


def test_a_token_that_a_stop_cuts_in_the_middle_keeps_its_logprobs():
    events = play([b"a", b"bEND"], stop=("END",), logprobs=True)

    assert [logprobs_of(e) for e in events] == [[b"a"], [b"bEND"], []]


def test_logprobs_of_tokens_without_text_come_with_the_end():
    events = play([b"a", b""], logprobs=True)

    assert [logprobs_of(e) for e in events] == [[b"a"], [b""]]


def test_logprobs_wait_for_their_text_behind_an_echo_too():
    events = play(
        [b"a", b"x", b"E", b"y"], stop=("END",), echo="echo", logprobs=True, take=[True, False, True, True]
    )

    assert [logprobs_of(e) for e in events] == [[b"a"], [b"x"], [b"E", b"y"], []]


@given(
    text=st.text("ab海", max_size=20),
    borders=st.lists(st.integers(0, 100), max_size=10),
    take=st.lists(st.booleans(), max_size=12),
    stop=st.sampled_from([(), ("ab",), ("海",)]),
)
def test_logprobs_come_once_in_order_and_not_before_their_text(
    text: str, borders: list[int], take: list[bool], stop: tuple[str, ...]
):
    pieces = cut(text.encode(), borders)
    events = play(pieces, logprobs=True, take=take, stop=stop)
    told = [token for event in events for token in logprobs_of(event)]

    assert told == pieces[: len(told)]
    if ending(events).finish_reason == "length":
        assert told == pieces
    else:
        sent = "".join(deltas(events)).encode()
        assert len(b"".join(told[:-1])) <= len(sent)
