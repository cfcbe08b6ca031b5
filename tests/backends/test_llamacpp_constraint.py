"""Constraints on the real vocabulary, without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the engine is not installed")

from backends.errors import BackendFailed, InvalidGrammar
from backends.llamacpp.constraint import MAX_CACHED, MAX_TEXT_BYTES, ConstraintCompiler, Matcher, Source
from backends.llamacpp.model import GgufModel
from tests.backends.shipped_model import gguf

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model() -> Iterator[GgufModel]:
    model = GgufModel(gguf())
    yield model
    model.close()


@pytest.fixture(scope="module")
def compiler(model: GgufModel) -> Iterator[ConstraintCompiler]:
    compiler = ConstraintCompiler(model)
    yield compiler
    compiler.close()


def json_source(schema: Any, **fields: Any) -> Source:
    return Source(kind="json", text=json.dumps(schema), **{"param": "here", **fields})


def lark(text: str, param: str = "structured_outputs.choice") -> Source:
    return Source(kind="lark", text=text, param=param)


def takes(matcher: Matcher, model: GgufModel, text: str) -> bool:
    """Whether `text` can be written token by token and is a whole answer then."""
    for token in model.tokenize(text, add_special=False, parse_special=False):
        if not matcher.allowed()[token]:
            return False
        matcher.accept(token)
    return matcher.is_complete


def test_a_whole_answer_is_complete_and_over(compiler: ConstraintCompiler, model: GgufModel):
    matcher = compiler.compile(lark('start: "Oslo"')).matcher()

    assert not matcher.is_complete
    assert takes(matcher, model, "Oslo")
    assert matcher.is_over


def test_an_answer_that_may_go_on_is_complete_and_not_over(compiler: ConstraintCompiler, model: GgufModel):
    matcher = compiler.compile(Source(kind="regex", text="a+", param="here")).matcher()

    assert takes(matcher, model, "aa")
    assert not matcher.is_over
    assert matcher.allowed()[sorted(model.end_of_generation)].all()


def test_an_end_is_allowed_in_a_whole_answer_only(compiler: ConstraintCompiler, model: GgufModel):
    matcher = compiler.compile(lark('start: "Oslo"')).matcher()

    assert not matcher.allowed()[sorted(model.end_of_generation)].any()


def test_every_matcher_of_a_constraint_begins_at_the_beginning(
    compiler: ConstraintCompiler, model: GgufModel
):
    constraint = compiler.compile(lark('start: "Oslo"'))
    takes(constraint.matcher(), model, "Oslo")

    assert takes(constraint.matcher(), model, "Oslo")


def test_control_tokens_do_not_stand_for_their_letters(compiler: ConstraintCompiler, model: GgufModel):
    (end,) = model.tokenize("<|im_end|>", add_special=False, parse_special=True)
    matcher = compiler.compile(lark('start: "<|im_end|>"')).matcher()

    assert not matcher.allowed()[end]
    assert takes(matcher, model, "<|im_end|>")


def test_the_vocabulary_is_told_as_the_answer_shows_it(model: GgufModel):
    told = model.vocabulary()

    assert len(told) == model.num_vocab_tokens
    for token in range(0, model.num_vocab_tokens, 7):
        piece = model.piece(token)
        assert told[token] == (piece or b"\xff" + model.printable_piece(token))


def test_a_token_that_is_not_allowed_ends_in_an_error(compiler: ConstraintCompiler, model: GgufModel):
    matcher = compiler.compile(lark('start: "Oslo"')).matcher()
    (wrong,) = model.tokenize("x", add_special=False, parse_special=False)

    with pytest.raises(BackendFailed):
        matcher.accept(wrong)


def test_json_has_a_blank_after_colons_and_commas_as_the_options_say(
    compiler: ConstraintCompiler, model: GgufModel
):
    schema = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}
    dense, wide = json_source(schema), json_source(schema, spacing=(("item_separator", ", "),))

    assert takes(compiler.compile(dense).matcher(), model, "[1,1]")
    assert not takes(compiler.compile(dense).matcher(), model, "[1, 1]")
    assert takes(compiler.compile(wide).matcher(), model, "[1, 1]")


def test_what_stands_around_an_answer_is_a_grammar_that_calls_it(
    compiler: ConstraintCompiler, model: GgufModel
):
    source = json_source({"const": 5}, around='start: "<think>" /[a-z]*/ "</think>" @answer')

    assert takes(compiler.compile(source).matcher(), model, "<think>so</think>5")
    assert not takes(compiler.compile(source).matcher(), model, "5")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (json_source({"not": {"type": "string"}}), '"not"'),
        (json_source({"type": "array", "uniqueItems": True}), '"uniqueItems"'),
        (json_source({"type": "object", "x-guidance": {"lenient": True}, "not": {}}), '"not"'),
        (json_source({"type": "string", "format": "postcode"}), "postcode"),
        (json_source({"type": "string", "pattern": "(?=a)b"}), "look"),
        (json_source({"$ref": "http://example.com/schema.json"}), "example.com"),
        (json_source({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "nothing satisfies"),
        (json_source({"type": "integer", "minimum": 3, "maximum": 2}), "minimum"),
        (lark("start: nothing"), "nothing"),
        (lark("start: start"), "nothing satisfies"),
        (lark("start: @other"), "other"),
        (lark("start: <[999999]>"), "999999"),
        (lark('start: "a\0b"'), "NUL"),
        (lark('start: "\ud800"'), "half"),
        (lark("start: " + '"a"' * (MAX_TEXT_BYTES // 3)), "limit"),
        (Source(kind="regex", text="a(", param="here"), ""),
    ],
)
def test_what_cannot_be_enforced_is_refused(compiler: ConstraintCompiler, source: Source, why: str):
    with pytest.raises(InvalidGrammar) as refused:
        compiler.compile(source)

    assert why in refused.value.message
    assert refused.value.param == source.param
    assert refused.value.message.startswith(f"{source.param}: ")
    assert "\n" not in refused.value.message


CHAIN = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5000)) + '\nr5000: "c"'


def test_a_chain_that_overflows_the_stack_is_refused(compiler: ConstraintCompiler):
    with pytest.raises(InvalidGrammar, match="too long to compile"):
        compiler.compile(lark(CHAIN, "structured_outputs.grammar"))


def test_what_was_compiled_is_kept_within_bounds(model: GgufModel):
    compiler = ConstraintCompiler(model)
    first = lark('start: "0"')
    made = compiler.compile(first)

    assert compiler.kept(lark('start: "0"', "elsewhere")) is made
    for i in range(1, MAX_CACHED + 1):
        compiler.compile(lark(f'start: "{i}"'))
    assert compiler.kept(first) is None
    assert compiler.kept(lark(f'start: "{MAX_CACHED}"')) is not None


def test_nothing_is_imported_before_a_constraint_is_needed():
    code = "import sys, backends.llamacpp.loaded; sys.exit('llguidance' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
