"""GBNF texts as Lark: what is read, what is refused, and that the same texts are taken as by llama.cpp."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="the engine is not installed")
pytest.importorskip("llama_cpp", reason="the engine is not installed")

import llguidance
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import InvalidGrammar
from backends.gbnf.lark import lark_of
from backends.gbnf.nodes import Alt, BadGrammar, Chars, Node, Ref, Rules, Seq, Text
from backends.gbnf.syntax import parse
from backends.llamacpp.constraint import _LIMITS, ConstraintCompiler, Matcher, Source
from backends.llamacpp.constraint_trial_child import Bytes
from backends.llamacpp.lib import engine_log, llama
from backends.llamacpp.model import GgufModel
from tests.backends.shipped_model import gguf

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model() -> Iterator[GgufModel]:
    with closing(GgufModel(gguf())) as model:
        yield model


@pytest.fixture(scope="module")
def compiler(model: GgufModel) -> Iterator[ConstraintCompiler]:
    with closing(ConstraintCompiler(model)) as compiler:
        yield compiler


def source(grammar: str) -> Source:
    return Source(kind="gbnf", text=grammar, param="grammar")


def tokens_of(model: GgufModel, text: str) -> list[int]:
    return model.tokenize(text, add_special=False, parse_special=False)


def takes(matcher: Matcher, model: GgufModel, text: str) -> bool:
    """Whether `text` can be written token by token and is a whole answer then."""
    for token in tokens_of(model, text):
        if not matcher.allowed()[token]:
            return False
        matcher.accept(token)
    return matcher.is_complete


class Reference:
    """llama.cpp's own reading of a grammar."""

    def __init__(self, grammar: str, model: GgufModel) -> None:
        self._model = model
        self._lib = llama()
        engine_log.take_errors()
        self.sampler = self._lib.llama_sampler_init_grammar(model.vocab, grammar.encode(), b"root")
        engine_log.take_errors()

    def takes(self, text: str) -> bool:
        sampler = self._lib.llama_sampler_clone(self.sampler)
        try:
            for token in tokens_of(self._model, text):
                if not self._allows(sampler, token):
                    return False
                self._lib.llama_sampler_accept(sampler, token)
            return self._allows(sampler, min(self._model.end_of_generation))
        finally:
            self._lib.llama_sampler_free(sampler)

    def _allows(self, sampler: Any, token: int) -> bool:
        data = self._lib.llama_token_data(id=token, logit=1.0, p=0.0)
        array = self._lib.llama_token_data_array(data=ctypes.pointer(data), size=1, selected=-1, sorted=False)
        self._lib.llama_sampler_apply(sampler, ctypes.byref(array))
        return bool(np.isfinite(data.logit))

    def close(self) -> None:
        if self.sampler:
            self._lib.llama_sampler_free(self.sampler)


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# blanks
ws ::= | " " | "\n" [ \t]{0,20}
"""

ARITHMETIC = r"""root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""

CHESS = r"""# moves of a game, numbered
root   ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move   ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""

LIST = 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"'

TEXTS: dict[str, tuple[str, list[str]]] = {
    "json": (
        JSON,
        ["{}", '{"a": [1, -2.5e3, {"b\\u00e9": null}], "é🦙": ""}\n\t', '{"a" : 1}', '{"a": 1,}', "[]", ""],
    ),
    "arithmetic": (
        ARITHMETIC,
        [
            "a=b\n",
            "a + 3*(b2-x1) =\n 3\n\n\n",
            "a = 1\nb= 2 \n",
            "a =b",
            "1=\n\n",
            "a+3=(4\n)\n",
            "(a)=a\n\n\n",
        ],
    ),
    "chess": (
        CHESS,
        ["1. e4 e5\n2. Nf3 O-O\n", "1. exd8=Q+ O-O-O#\n12. a4 a5\n", "1. e4 e5\n", "1. e9 e5\n2. a4 a5\n"],
    ),
    "list": (LIST, ["- a\n- é🦙 b\n", "- a", "-a\n", "- \n"]),
    "words and letters": ('root ::= [a-z]+ "e" "!"?', ["tree", "e", "tree!", "trees", "ee"]),
    "beginnings of one another": (
        'root ::= x root | x\nx ::= "a" "bc" | "ab" "d"',
        ["abc", "abd", "abdabc", "abcd", "ab"],
    ),
    "unicode": (
        'root ::= [α-ω]+ [^a-z] "é\\u00e9\\U0001F999" .',
        ["αβ🦙éé🦙\n", "α🦙éé🦙é", "αéé🦙x", "🦙éé🦙x", "αβ🦙éé🦙xy"],
    ),
    "counts": (
        'root ::= "ab"{2} [cd]{1,3} "e"{0,2} ("f" "g"?){2,} x{0,1}\nx ::= "x" "y"{3}',
        ["ababcdff", "ababceeffgf", "ababcccffgfgxyyy", "abcff", "ababcf", "ababcddddff", "ababceeeff"],
    ),
    "classes": (
        "root ::= [-a] [a-] [\\]\\[\\\\] [^-^] [\\x41-\\x43] [a-c-e] [\\-x]",
        ["--]^A--", "aa[bBbx", "a-\\zCe-", "b-]bAa-", "a-]-Aa-", "a-]bDa-", "a-]bAd-"],
    ),
    "escapes": ('root ::= "\\t\\r\\n\\"\\\\\\[\\]\\x41\\u0042\\U00000043"', ['\t\r\n"\\[]ABC', "tABC"]),
    "nothing": ('root ::= "" | "a" ""', ["", "a", "b"]),
    "comments": (
        '# one\nroot ::= # two\n  "a" | # three\n  "b" # "c"\n\n# four "\n\nx ::= root # five',
        ["a", "b", "c"],
    ),
    "the last of two": ('root ::= "a"\nroot ::= "b"', ["a", "b"]),
    "stacked": ('root ::= "a"+? ("b"?)* ("c"*)+ "d"', ["d", "aabcd", "bbbccd", "ab"]),
    "anything": ('root ::= "(" .* ")" | "[" root "]"', ["()", "(é\n))", "[[(])]]", "[(]"]),
    "nested calls": (
        'root ::= call\ncall ::= name "(" (arg (", " arg)*)? ")"\narg ::= call | name | "\\"" [^"]* "\\""\n'
        "name ::= [a-z] [a-z0-9-]*",
        ["f()", 'f(g(x), "y)(", h-1)', "f(g)", "f(,)", "f"],
    ),
    "CR LF": ('root ::= "a" x\r\nx ::= "b" |\r\n  "c"\r\n', ["ab", "ac", "a"]),
    "one line per name": ('root ::= A-b1 a-B\nA-b1 ::= "1"\na-B ::= "2"', ["12", "21"]),
}


@pytest.mark.parametrize(("grammar", "texts"), TEXTS.values(), ids=TEXTS.keys())
def test_a_grammar_takes_what_llama_cpp_takes(
    model: GgufModel, compiler: ConstraintCompiler, grammar: str, texts: list[str]
):
    constraint = compiler.compile(source(grammar))
    with closing(Reference(grammar, model)) as reference:
        wanted = {text: reference.takes(text) for text in texts}

    assert {text: takes(constraint.matcher(), model, text) for text in texts} == wanted
    assert any(wanted.values())


# Grammars by chance. llama.cpp does not get them: what is empty and repeated holds it for ever.

PIECES = ['"a"', '"b"', '"ab"', "[ab]", "[^a]", '"ba"', '"é"', ".", "[a-c]", '""']
SIGNS = ["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}"]
NAMES = ["root", "x", "y", "z"]


def expressions() -> st.SearchStrategy[str]:
    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        some = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            st.tuples(inner, st.sampled_from(SIGNS)).map(lambda made: f"({made[0]}){made[1]}"),
            some.map(" ".join),
            some.map(lambda parts: f"({' | '.join(parts)})"),
        )

    return st.recursive(st.sampled_from(PIECES + NAMES), larger, max_leaves=6)


GRAMMARS = st.tuples(*(expressions() for _ in NAMES)).map(
    lambda rules: "\n".join(f"{name} ::= {rule}" for name, rule in zip(NAMES, rules, strict=True))
)


class Chart:
    """Which parts of a text a rule takes, by trying until nothing new is found."""

    def __init__(self, rules: Rules, text: str) -> None:
        self._rules, self._text = rules, text
        self._ends: dict[tuple[str, int], frozenset[int]] = {}
        before: dict[tuple[str, int], frozenset[int]] | None = None
        while before != self._ends:
            before = dict(self._ends)
            for name, node in rules.items():
                for start in range(len(text) + 1):
                    self._ends[name, start] = self._after(node, frozenset((start,)))

    @property
    def is_whole(self) -> bool:
        return len(self._text) in self._ends["root", 0]

    def _after(self, node: Node, starts: frozenset[int]) -> frozenset[int]:
        if isinstance(node, Ref):
            return frozenset().union(*(self._ends.get((node.name, start), ()) for start in starts))
        if isinstance(node, Text):
            found = {start + len(node.text) for start in starts if self._text.startswith(node.text, start)}
            return frozenset(found)
        if isinstance(node, Chars):
            return frozenset(start + 1 for start in starts if self._is_in(node, start))
        if isinstance(node, Alt):
            return frozenset().union(*(self._after(part, starts) for part in node.parts))
        if isinstance(node, Seq):
            for part in node.parts:
                starts = self._after(part, starts)
            return starts
        for _ in range(node.least):
            starts = self._after(node.part, starts)
        whole = starts
        for _ in range(len(self._text) + 1 if node.most is None else node.most - node.least):
            starts = self._after(node.part, starts)
            whole |= starts
        return whole

    def _is_in(self, node: Chars, at: int) -> bool:
        return at < len(self._text) and any(low <= ord(self._text[at]) <= high for low, high in node.ranges)


def takes_bytes(lark: str, texts: list[str]) -> dict[str, bool]:
    """With a vocabulary of bytes."""
    limits = llguidance.LLParserLimits(**_LIMITS, verbose_errors=False)
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))
    grammar = llguidance.LLMatcher.grammar_from_lark(lark)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    assert not matcher.is_error(), matcher.get_error()
    found = {}
    for text in texts:
        copy = matcher.deep_copy()
        wanted = list(text.encode())
        found[text] = copy.try_consume_tokens(wanted) == len(wanted) and copy.is_accepting()
    return found


@settings(deadline=None, max_examples=200)
@given(GRAMMARS, st.lists(st.text("abcé", max_size=6), min_size=8, max_size=8, unique=True))
def test_grammars_by_chance_take_what_they_say(grammar: str, texts: list[str]):
    rules = parse(grammar)
    wanted = {text: Chart(rules, text).is_whole for text in texts}
    try:
        lark = lark_of(grammar)
    except BadGrammar:  # nothing satisfies it
        assert not any(wanted.values())
    else:
        assert takes_bytes(lark, texts) == wanted


# Beyond what llama.cpp reads

DOUBLING = "\n".join(
    ("root ::= r0 root?", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)), 'r60 ::= "a" | "b"?')
)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= root "a" | "b"', "baa", "ab"),
        ('root ::= x\nx ::= y "a"\ny ::= x "b" | "c"', "caba", "cab"),
        ('root ::= "a"\n  | "b"\n  | a_b\na_b ::= "c"', "c", "d"),
        ('root ::= ""* "a"', "a", "aa"),
        ('root ::= "a" | "b" endless\nendless ::= "c" endless', "a", "b"),
        ('root ::= [a-z]{3000} | "b"', "b", "c"),
        ('root ::= ((("a"?){0,900}){0,900}){0,900}', "aaa", "b"),
        (DOUBLING, "abbb", "c"),
        ("root ::= " + "#" * 50_000 + "\n" * 50_000 + "# " * 50_000, "", "a"),
    ],
)
def test_what_llama_cpp_does_not_read_or_not_in_time(
    model: GgufModel, compiler: ConstraintCompiler, grammar: str, good: str, bad: str
):
    constraint = compiler.compile(source(grammar))

    assert takes(constraint.matcher(), model, good)
    assert not takes(constraint.matcher(), model, bad)


def test_an_alternative_that_leads_to_no_end_is_never_begun(model: GgufModel, compiler: ConstraintCompiler):
    matcher = compiler.compile(source('root ::= "a" | "b" endless\nendless ::= "c" endless')).matcher()

    assert not matcher.allowed()[tokens_of(model, "b")[0]]


# What is refused


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("", "no rule called root"),
        (" \n# only words", "no rule called root"),
        ('answer ::= "a"', "no rule called root"),
        ("root ::= answer", "the rule root asks for answer, which is not there"),
        ("root ::= root", "nothing satisfies it"),
        ('root ::= "a" root', "nothing satisfies it"),
        ("root ::= x\nx ::= y\ny ::= x", "nothing satisfies it"),
        ("root ::= [^\\x00-\\U0010FFFF]", "nothing satisfies it"),
        ('root ::= ("a"', r"line 1: \) should stand here, not its end"),
        ('root ::= "a")', r"line 1: the end of the rule should stand here, not '\)'"),
        ('root ::= "a"\n\nx = "b"', "line 3: ::= should stand here, not '='"),
        ('root ::= "a', 'line 1: the closing " should stand here'),
        ("root ::= [a", "line 1: a character should stand here, not its end"),
        ('root ::= "\\u12"', "there is no escape"),
        ('root ::= "\\q"', "there is no escape"),
        ('root ::= "\\uD83D"', r"there is no character U\+D83D"),
        ('root ::= "\\U00110000"', r"there is no character U\+110000"),
        ("root ::= [z-a]", r"from U\+007A to U\+0061 runs backwards"),
        ("root ::= []", "a class of no characters"),
        ("root ::= [^]", "a class of no characters"),
        ("root ::= {3}", "something to repeat should stand here"),
        ('root ::= | * "a"', "something to repeat should stand here"),
        ('root ::= "a"{2,1}', "at least 2 and at most 1"),
        ('root ::= "a"{,1}', "a number should stand here"),
        ('root ::= "a"{1000000}', "more than 10000 repetitions"),
        ('root ::= "a"{0,99999999999999999999}', "more than 10000 repetitions"),
        ('root ::= "a"' + "?" * 65, "more than 64 repetitions of one another"),
        ("root ::= <think>", "tokens, written as <…>, cannot be enforced"),
        ("root ::= !<[7]>", "tokens, written as !…>, cannot be enforced"),
        ("root ::= " + "(" * 65, "nest deeper than 64"),
        (
            "\n".join(f"r{i} ::= r{i + 1}" for i in range(300)) + '\nr300 ::= "a"\nroot ::= r0',
            "deeper than 200",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(grammar: str, words: str):
    with pytest.raises(BadGrammar, match=words) as refused:
        lark_of(grammar)

    assert len(str(refused.value)) < 200


HOSTILE = {
    "NUL": 'root ::= "a"\0',
    "half a character": 'root ::= "\ud83d"',
    "too large": "x" * (600 << 10),
    "deep parentheses": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "garbage": "".join(random.Random(1).choices('root:=("|)*+?{}[]\\ \n#.^-ab1', k=64 << 10)),
    "binary garbage": "".join(map(chr, random.Random(2).choices(range(1, 256), k=64 << 10))),
    "a long chain of rules": "\n".join(f"r{i} ::= r{i + 1}" for i in range(30_000))
    + '\nr30000 ::= "a"\nroot ::= r0',
    "any text beside any text": 'root ::= x*\nx ::= .+ | "(" root ")"',
}


@pytest.mark.parametrize("grammar", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_grammar_is_refused_and_the_next_one_is_taken(
    model: GgufModel, compiler: ConstraintCompiler, grammar: str
):
    began = time.process_time()
    with pytest.raises(InvalidGrammar) as refused:
        compiler.compile(source(grammar))

    assert time.process_time() - began < 1  # in this process
    assert refused.value.param == "grammar"
    assert 0 < len(refused.value.message) < 300
    assert takes(compiler.compile(source('root ::= "a"')).matcher(), model, "a")
