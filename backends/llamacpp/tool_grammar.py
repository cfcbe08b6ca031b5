"""What an answer with tools may look like, as a Lark text for llguidance.

must call   nothing but calls, after a thought where the model has them
may call    words; from a call's marker on the call of an offered tool, with arguments that meet the schema of a
            `strict` one

Marks that are control tokens of the model are named by their number, as no text can spell them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from backends.errors import InvalidGrammar
from backends.llamacpp.schema_closing import closed
from backends.parsing.formats import CallFormat
from backends.parsing.reasoning import ThoughtMarkers

NO_ARGUMENTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY_ARGUMENTS: Final = {"type": "object"}
_SPACING: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
}
"""Of the arguments: a small model that may write blanks goes on doing so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtMarks:
    """How the model writes its thoughts. `tokens`: the marks that are control tokens, by their text."""

    thoughts: ThoughtMarkers | None = None
    begins_inside: bool = False
    tokens: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks(ThoughtMarks):
    """How the model writes what is no text."""

    form: CallFormat


def around_answer(marks: ThoughtMarks) -> str:
    """A thought, and then what another grammar called `answer` takes."""
    return _grammar(marks, "@answer", [])


def call_or_answer(tools: list[dict[str, Any]], marks: Marks, *, several: bool) -> str:
    """Calls, or what another grammar called `answer` takes. Raises: InvalidGrammar."""
    schemas = _may_be(tools)
    if marks.form.is_bare:
        # Both begin with a brace: two grammars of JSON share its tokens, a text and one of JSON do not.
        names = [tool["function"]["name"] for tool in tools]
        objects = [_call_schema(name, schema) for name, schema in zip(names, schemas, strict=True)]
        lines = _rules(objects)
        items = [f"a{i}" for i in range(len(objects))]
    else:
        lines, items = _items(tools, marks, schemas)
    return _grammar(marks, f"({_calls(marks, items, several=several)}) | @answer", lines)


def must_call(tools: list[dict[str, Any]], marks: Marks, *, several: bool) -> str:
    """One call of one of the tools, or with `several` one or more. Raises: InvalidGrammar."""
    lines, items = _items(tools, marks, [_enforced(tool, i) for i, tool in enumerate(tools)])
    return _grammar(marks, _calls(marks, items, several=several), lines)


def may_call(tools: list[dict[str, Any]], marks: Marks, *, several: bool) -> str:
    """Words and calls; without `several` one call, which then ends the answer. Raises: InvalidGrammar."""
    lines, items = _items(tools, marks, _may_be(tools))
    calls = _calls(marks, items, several=several)
    form = marks.form
    if form.is_bare:
        # What begins with a brace is a call, whatever else is words.
        return _grammar(marks, f"BLANKS? ({calls}) | words", [*lines, f"words: {_words(form)}", _BLANKS_LINE])
    mark = _mark(marks, form.open)
    if form.open in marks.tokens:
        after = f"{calls} words" if several else calls
        body = f"words ({after})?"
        return _grammar(marks, body, [*lines, f"words: {_words(form)}"])
    # Two ways to read a word: it goes on to the next marker, or to the end, and then holds none.
    first = _block(form, items, several=several)
    lines += [
        f"until[suffix={mark}]: {_words(form)}",
        f"REST: {_words(form)} & ~/(?s:.*){_escaped(form.open)}(?s:.*)/",
    ]
    body = f"(until {first})* REST" if several else f"REST | until {first}"
    return _grammar(marks, body, lines)


_BLANKS_LINE: Final = "BLANKS: /[ \\n]{1,4}/"
_WORDS: Final = "[ \\n]*([^ \\n{](?s:.*))?"
"""Anything that does not begin with a brace."""


def _words(form: CallFormat) -> str:
    return f"/{_WORDS}/" if form.takes_bare else "/(?s:.*)/"


def _grammar(marks: ThoughtMarks, body: str, lines: list[str]) -> str:
    """The whole text, a thought before it where the model has them."""
    thoughts = marks.thoughts
    if thoughts is None:
        return "\n".join((f"start: {body}", *lines, ""))
    close = _mark(marks, thoughts.close)
    inner = (
        f"inner: /(?s:.*)/ {close}" if thoughts.close in marks.tokens else f"inner[suffix={close}]: /(?s:.*)/"
    )
    begins = "inner" if marks.begins_inside else f"({_mark(marks, thoughts.open)} inner)?"
    return "\n".join((f"start: {begins} GAP? body", f"body: {body}", "GAP: /\\n{1,2}/", inner, *lines, ""))


def _items(
    tools: list[dict[str, Any]], marks: Marks, schemas: list[dict[str, Any]]
) -> tuple[list[str], list[str]]:
    """A rule for each tool's arguments, and how a call of each is written, marks that stand around all calls left
    out."""
    names = [tool["function"]["name"] for tool in tools]
    return _rules(schemas), [_item(marks, name, f"a{i}") for i, name in enumerate(names)]


def _rules(schemas: list[dict[str, Any]]) -> list[str]:
    guided = [{**schema, "x-guidance": _SPACING} for schema in schemas]
    return [f"a{i}: %json {json.dumps(schema)}" for i, schema in enumerate(guided)]


def _call_schema(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A call of Llama's as one object. What its arguments define is named from the whole one's root."""
    defined: dict[str, Any] = {key: arguments[key] for key in ("$defs", "definitions") if key in arguments}
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": arguments},
        "required": ["name", "parameters"],
        "additionalProperties": False,
        **defined,
    }


def _item(marks: Marks, name: str, arguments: str) -> str:
    form = marks.form
    if form.is_named:
        return f"{_text(name)} {_mark(marks, '[ARGS]')} {arguments}"
    key = "parameters" if form.family == "llama3" else "arguments"
    opening = f'{{"name": {json.dumps(name)}, "{key}": '
    if form.close is None:
        return f"{_text(opening)} {arguments} {_text('}')}"
    return f"{_text(chr(10) + opening)} {arguments} {_text('}' + chr(10))} {_mark(marks, form.close)}"


def _block(form: CallFormat, items: list[str], *, several: bool) -> str:
    """What follows a marker: one call, or where lists are written one or more."""
    one = f"({' | '.join(items)})"
    if form.takes_lists and not form.is_named:
        more = f" ({_text(', ')} {one})*" if several else ""
        return f"{_text('[')} {one}{more} {_text(']')}"
    return one


def _calls(marks: Marks, items: list[str], *, several: bool) -> str:
    """One call or more, marks included."""
    form = marks.form
    one = _block(form, items, several=several)
    if form.is_bare:
        return f"{one} ({_text('; ')} {one})*" if several else one
    marked = f"{_mark(marks, form.open)} {one}"
    if not several or (form.takes_lists and not form.is_named):
        return marked
    between = "" if form.is_named else f"{_text(chr(10))} "
    return f"{marked} ({between}{marked})*"


def _mark(marks: ThoughtMarks, mark: str) -> str:
    token = marks.tokens.get(mark)
    return _text(mark) if token is None else f"<[{token}]>"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "[]|()/{}.*+?^$\\" else c for c in text)


def _may_be(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the arguments of each tool have to be where only a strict one is held to its schema."""
    return [
        _enforced(tool, i) if tool["function"].get("strict") is True else _ANY_ARGUMENTS
        for i, tool in enumerate(tools)
    ]


def _enforced(tool: dict[str, Any], index: int) -> dict[str, Any]:
    """The schema of a tool's arguments as it is held to: an object, of the properties that it names."""
    schema: dict[str, Any] = tool["function"].get("parameters") or NO_ARGUMENTS
    place = f"tools[{index}].function.parameters"
    if schema.get("type", "object") != "object":
        raise InvalidGrammar(f"{place}: the arguments of a function are an object", param=place)
    enforced: dict[str, Any] = closed({**schema, "type": "object"})
    return enforced
