"""Prompts and lengths."""

from __future__ import annotations

from itertools import islice

from bench.workload import Prompts, lengths, warmup_lengths


def test_no_prompt_comes_twice() -> None:
    prompts = Prompts(1)
    drawn = [prompts.draw() for _ in range(2000)]

    assert len(set(drawn)) == 2000


def test_prompts_differ_from_their_first_words_on() -> None:
    """A shared beginning would be answered from the prefix cache."""
    prompts = Prompts(1)
    beginnings = {" ".join(prompts.draw().split()[:4]) for _ in range(500)}

    assert len(beginnings) == 500


def test_the_same_seed_gives_the_same_prompts() -> None:
    assert Prompts(7).draw() == Prompts(7).draw()
    assert Prompts(7).draw() != Prompts(8).draw()


def test_both_servers_of_an_alternation_get_the_same_lengths() -> None:
    one, other = lengths(1, 8, 0), lengths(1, 8, 0)

    assert list(islice(one, 50)) == list(islice(other, 50))


def test_another_alternation_gets_other_lengths() -> None:
    assert list(islice(lengths(1, 8, 0), 50)) != list(islice(lengths(1, 8, 1), 50))


def test_lengths_are_uniform_from_32_to_128() -> None:
    drawn = list(islice(lengths(1), 20_000))

    assert (min(drawn), max(drawn)) == (32, 128)
    assert abs(sum(drawn) / len(drawn) - 80) < 1


def test_warm_up_requests_of_several_streams_end_apart() -> None:
    assert warmup_lengths(4) == [19, 34, 49, 64]
    assert len(set(warmup_lengths(16))) == 16
