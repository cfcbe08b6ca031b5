"""Grammars that must not reach llama.cpp's parser. No engine."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import InvalidGrammar
from backends.llamacpp.grammar import MAX_BYTES, MAX_NESTING, check_text


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "yes" | "no"',
        'root ::= "a"{2} "b"{2,} "c"{2,3} "d"{3,3}',
        "root ::= " + "(" * MAX_NESTING + '"a"' + ")" * MAX_NESTING,
        'root ::= "' + "(" * 500 + '"',
        "root ::= [" + "(" * 500 + "]",
        "root ::= [^(\\](\\\\]",
        "# " + "(" * 500 + '\nroot ::= "a"',
        'root ::= "a{2,1}\\"(((" [{2,1}] # {2,1}',
        'root ::= ("a") ' * 500,
        "root ::= [a-z]{1,2000} [0-9] {0,15}",
        'root ::= ("a" "b"){1,16}',
    ],
)
def test_what_the_parser_can_take_goes_through(grammar: str):
    check_text(grammar)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ('root ::= "a"\0 "b"', "NUL"),
        ('root ::= "a"{2,1}', "at least 2 and at most 1"),
        ('root ::= ("a"?){0,1000}', "multiply to more than 64"),
        ('root ::= "x" ("a"?){0,400}', "multiply to more than 64"),
        ('root ::= a{0,1000}\na ::= "a"?', "multiply to more than 64"),
        ('root ::= "a"?{0,1000}', "multiply to more than 64"),
        ('root ::= (("a"?){0,30}){0,30}', "multiply to more than 64"),
        ("root ::= (" + " | ".join(f'"{i}"' for i in range(2000)) + ")*", "more than 256 alternatives"),
        ('root ::= "a"{ 20 , 3 }', "at least 20 and at most 3"),
        ('root ::= "a"{99999999999999999999999,5}', "repetition"),
        ("root ::= " + "(" * (MAX_NESTING + 1), "nest deeper"),
        ('root ::= "\\"" ' + "(" * (MAX_NESTING + 1), "nest deeper"),
        ("root ::= [\\]] " + "(" * (MAX_NESTING + 1), "nest deeper"),
        ("# ends here\n" + "(" * (MAX_NESTING + 1), "nest deeper"),
        ("x" * (MAX_BYTES + 1), "bytes"),
        ("é" * (MAX_BYTES // 2 + 1), "bytes"),
    ],
)
def test_what_would_end_the_process_is_refused_in_words(grammar: str, words: str):
    with pytest.raises(InvalidGrammar, match=words) as refused:
        check_text(grammar)

    assert refused.value.param == "grammar"
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("unit", ['\\"', '"', "[", "\\]", "(", "{1,", "#", '"\\', "[\\", "{1,1}", "[^\\"])
def test_the_largest_text_is_judged_at_once(unit: str):
    text = 'root ::= "' + unit * ((MAX_BYTES - 12) // len(unit))
    began = time.process_time()
    for grammar in (text, text + "\\", text[10:]):
        try:
            check_text(grammar)
        except InvalidGrammar:
            continue

    assert time.process_time() - began < 5


@given(st.randoms(use_true_random=False), st.integers(0, 400))
def test_any_text_is_let_through_or_refused(randomness: random.Random, size: int):
    text = "".join(randomness.choice('root ::="a"()[]{}|*+?,\\#\n.12^-') for _ in range(size))
    try:
        check_text(text)
    except InvalidGrammar as refused:
        text = refused.message

    assert isinstance(text, str)
