"""The stop matcher decides on any chunking as a plain search on the whole text would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.stop import StopMatcher


def naive(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The text before the match that starts earliest, and the longest stop that starts there."""
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


def run(chunks: list[str], stops: tuple[str, ...]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    out = [matcher.feed(chunk) for chunk in chunks]
    out.append(matcher.flush())
    return "".join(out), matcher.matched


# Two letters and short stops: overlaps, nesting and false starts are then the rule.
texts = st.lists(st.text("ab", max_size=4), max_size=12)
stop_sets = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


@given(texts, stop_sets)
def test_any_chunking_gives_what_a_search_of_the_whole_text_gives(chunks: list[str], stops: tuple[str, ...]):
    assert run(chunks, stops) == naive("".join(chunks), stops)


@given(texts, stop_sets)
def test_no_more_than_a_possible_beginning_of_a_stop_is_held_back(chunks: list[str], stops: tuple[str, ...]):
    matcher = StopMatcher(stops)
    for chunk in chunks:
        matcher.feed(chunk)
        if matcher.matched is not None:
            break
        held = matcher.held
        assert held == "" or any(
            stop.startswith(held) or (held.startswith(shorter) and stop.startswith(held))
            for stop in stops
            for shorter in stops
        )


@given(texts, stop_sets)
def test_nothing_delivered_is_ever_part_of_the_match(chunks: list[str], stops: tuple[str, ...]):
    matcher, delivered = StopMatcher(stops), ""
    expected, _ = naive("".join(chunks), stops)
    for chunk in chunks:
        delivered += matcher.feed(chunk)
        assert expected.startswith(delivered)


def test_without_stops_the_very_text_passes():
    matcher, text = StopMatcher(()), "any text"

    assert matcher.feed(text) is text
    assert matcher.flush() == ""


def test_text_without_a_first_character_of_a_stop_passes_at_once():
    matcher = StopMatcher(("###",))

    assert matcher.feed("plain words") == "plain words"
    assert matcher.held == ""


def test_an_earlier_stop_that_is_still_possible_keeps_a_complete_one_waiting():
    matcher = StopMatcher(("bc", "abcd"))

    assert matcher.feed("xabc") == "x"
    assert matcher.matched is None
    assert matcher.feed("d") == ""
    assert matcher.matched == "abcd"


def test_a_complete_stop_cuts_once_the_earlier_one_is_ruled_out():
    matcher = StopMatcher(("bc", "abcd"))

    assert matcher.feed("xabc") + matcher.feed("e") == "xa"
    assert matcher.matched == "bc"


def test_a_complete_stop_cuts_when_the_generation_ends_undecided():
    matcher = StopMatcher(("bc", "abcd"))

    assert matcher.feed("xabc") + matcher.flush() == "xa"
    assert matcher.matched == "bc"


def test_of_two_that_start_together_the_longer_is_named():
    assert run(["one\n", "\n", "two"], ("\n", "\n\n")) == ("one", "\n\n")


def test_a_half_stop_at_the_end_is_text():
    assert run(["answer #", "#"], ("###",)) == ("answer ##", None)


def test_after_a_match_everything_is_dropped():
    matcher = StopMatcher(("!",))
    matcher.feed("a!b")

    assert matcher.feed("c") + matcher.flush() == ""


def test_an_empty_stop_is_our_bug():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(("a", ""))
