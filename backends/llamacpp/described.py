"""Tools for models whose template knows none: told in words, called and answered in text.

The form of a call is the one that most models have seen (`parsing.formats.PLAIN`): what the description asks for and
what the history shows is what is read back.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from backends.llamacpp.history import arguments_of

_BEFORE: Final = "You can call these functions:"
_AFTER: Final = (
    "To call one, answer only with\n"
    '<tool_call>\n{"name": "its name", "arguments": {}}\n</tool_call>\n'
    "and arguments that fit its parameters. If none helps, answer in words."
)
"""Few words: they cost every request, and small models read no more of them."""


def described(
    tools: list[dict[str, Any]], messages: list[dict[str, Any]], *, role: Literal["system", "user"]
) -> list[dict[str, Any]]:
    """The messages with the tools told in the system turn, after what it says already, or before the first message of a
    user."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    words = "\n".join((_BEFORE, *lines, _AFTER))
    at = next((i for i, message in enumerate(messages) if message["role"] == role), None)
    if at is None or (role == "system" and at != 0):
        return [{"role": role, "content": words}, *messages]
    told = messages[at]
    content = told["content"]
    parts = (content, words) if role == "system" else (words, content)
    return [*messages[:at], {**told, "content": "\n\n".join(filter(None, parts))}, *messages[at + 1 :]]


def with_calls_as_text(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its calls in its text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = "\n".join(filter(None, [message["content"], *map(_as_text, calls)]))
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": text}


def _as_text(call: dict[str, Any]) -> str:
    payload = {"name": call.get("function", {}).get("name", ""), "arguments": arguments_of(call)}
    return f"<tool_call>\n{json.dumps(payload, ensure_ascii=False)}\n</tool_call>"
