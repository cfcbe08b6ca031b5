"""Answers as models of each family write them, and what is in them. Written by hand after the families' templates."""

from __future__ import annotations

from typing import NamedTuple

from backends.parsing.formats import HERMES, LLAMA3, MISTRAL, PLAIN, CallFormat
from backends.parsing.pieces import CallArguments, CallBegin, CallEnd, Piece, Text

NAMES = frozenset({"weather", "time"})


class Example(NamedTuple):
    form: CallFormat
    text: str
    pieces: list[Piece]


def call(name: str, arguments: str = "{}") -> list[Piece]:
    return [CallBegin(name), CallArguments(arguments), CallEnd()]


ROME = '{"city": "Rome", "days": 2}'
ODD = '{"q": "a } brace, a \\" quote, a \\\\ and </tool_call>", "n": [1, {"b": null}]}'

EXAMPLES: dict[str, Example] = {
    "hermes-one": Example(
        HERMES,
        '<tool_call>\n{"name": "weather", "arguments": ' + ROME + "}\n</tool_call>",
        call("weather", ROME),
    ),
    "hermes-words-first": Example(
        HERMES,
        'Let me look.\n\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>\n',
        [Text("Let me look.\n\n"), *call("time")],
    ),
    "hermes-several": Example(
        HERMES,
        '<tool_call>\n{"name": "weather", "arguments": ' + ROME + "}\n</tool_call>\n"
        '<tool_call>\n{"name": "time", "arguments": {"zone": "CET"}}\n</tool_call>',
        [*call("weather", ROME), *call("time", '{"zone": "CET"}')],
    ),
    "hermes-arguments-first": Example(
        HERMES,
        '<tool_call>{"arguments": ' + ROME + ', "name": "weather"}</tool_call>',
        call("weather", ROME),
    ),
    "hermes-arguments-as-text": Example(
        HERMES,
        '<tool_call>\n{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}\n</tool_call>',
        call("weather", '{"city": "Rome"}'),
    ),
    "hermes-odd-arguments": Example(
        HERMES,
        '<tool_call>\n{"name": "time", "arguments": ' + ODD + "}\n</tool_call>",
        call("time", ODD),
    ),
    "hermes-no-arguments": Example(HERMES, '<tool_call>\n{"name": "time"}\n</tool_call>', call("time")),
    "hermes-brace-forgotten": Example(
        HERMES,
        '<tool_call>\n{"name": "weather", "arguments": ' + ROME + "\n</tool_call>",
        call("weather", ROME),
    ),
    "hermes-two-in-one-block": Example(
        HERMES,
        '<tool_call>\n{"name": "time", "arguments": {}}\n{"name": "weather", "arguments": {}}\n</tool_call>',
        [*call("time"), *call("weather")],
    ),
    "hermes-words-after": Example(
        HERMES,
        '<tool_call>{"name": "time", "arguments": {}}</tool_call>\nI asked for the time.',
        [*call("time"), Text("\nI asked for the time.")],
    ),
    "hermes-unknown-tool": Example(
        HERMES, '<tool_call>{"name": "other", "arguments": {}}</tool_call>', call("other")
    ),
    "hermes-no-json": Example(
        HERMES,
        "Calls begin with <tool_call>weather(Rome)</tool_call>.",
        [Text("Calls begin with <tool_call>weather(Rome)</tool_call>.")],
    ),
    "hermes-no-call-then-one": Example(
        HERMES,
        '<tool_call>oops</tool_call><tool_call>{"name": "time", "arguments": {}}</tool_call>',
        [Text("<tool_call>oops</tool_call>"), *call("time")],
    ),
    "hermes-never-closed": Example(
        HERMES,
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Ro',
        [CallBegin("weather"), CallArguments('{"city": "Ro')],
    ),
    "hermes-cut-in-the-name": Example(
        HERMES, 'Wait. <tool_call>\n{"name": "wea', [Text('Wait. <tool_call>\n{"name": "wea')]
    ),
    "hermes-cut-in-the-marker": Example(HERMES, "Wait. <tool_c", [Text("Wait. <tool_c")]),
    "hermes-cut-in-the-end-mark": Example(
        HERMES, '<tool_call>{"name": "time", "arguments": {}}\n</tool', call("time")
    ),
    "hermes-words-only": Example(HERMES, "\n It is < 5 degrees. \n", [Text("\n It is < 5 degrees. \n")]),
    "llama-bare": Example(LLAMA3, '{"name": "weather", "parameters": ' + ROME + "}", call("weather", ROME)),
    "llama-marked": Example(
        LLAMA3,
        '<|python_tag|>{"type": "function", "name": "weather", "parameters": ' + ROME + "}",
        call("weather", ROME),
    ),
    "llama-several": Example(
        LLAMA3,
        '{"name": "weather", "parameters": ' + ROME + '}; {"name": "time", "parameters": {}}',
        [*call("weather", ROME), *call("time")],
    ),
    "llama-built-in-tool": Example(
        LLAMA3,
        '<|python_tag|>brave_search.call(query="Rome")',
        [Text('<|python_tag|>brave_search.call(query="Rome")')],
    ),
    "llama-an-object-that-is-the-answer": Example(
        LLAMA3,
        '{"name": "Ada", "parameters": {"age": 36}}',
        [Text('{"name": "Ada", "parameters": {"age": 36}}')],
    ),
    "llama-an-object-in-words": Example(
        LLAMA3,
        'Write {"name": "time", "parameters": {}} for it.',
        [Text('Write {"name": "time", "parameters": {}} for it.')],
    ),
    "mistral-list": Example(
        MISTRAL,
        '[TOOL_CALLS] [{"name": "weather", "arguments": ' + ROME + ', "id": "a1b2c3d4e"}, '
        '{"name": "time", "arguments": {}}]',
        [*call("weather", ROME), *call("time")],
    ),
    "mistral-named": Example(
        MISTRAL,
        "[TOOL_CALLS]weather[ARGS]" + ROME + "[TOOL_CALLS]time[ARGS]{}",
        [*call("weather", ROME), *call("time")],
    ),
    "mistral-named-with-id": Example(
        MISTRAL, "[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]" + ROME, call("weather", ROME)
    ),
    "mistral-named-without-mark": Example(MISTRAL, "[TOOL_CALLS]time{}", call("time")),
    "mistral-words-first": Example(
        MISTRAL,
        'Sure.[TOOL_CALLS][{"name": "time", "arguments": {}}]',
        [Text("Sure."), *call("time")],
    ),
    "mistral-empty-list": Example(MISTRAL, "[TOOL_CALLS][]", [Text("[TOOL_CALLS][]")]),
    "mistral-brackets-in-words": Example(MISTRAL, "See [1] and [TODO].", [Text("See [1] and [TODO].")]),
    "plain-marked": Example(
        PLAIN, '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>', call("time")
    ),
    "plain-bare": Example(
        PLAIN,
        ' {"name": "weather", "arguments": ' + ROME + '}\n{"name": "time", "arguments": {}}\n',
        [*call("weather", ROME), *call("time")],
    ),
    "plain-another-object": Example(PLAIN, '{"city": "Rome"}', [Text('{"city": "Rome"}')]),
}
