"""Tool calls and results of a conversation in the shapes that chat templates ask for."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

SHORT_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
"""What Mistral's templates demand of an id, and refuse the conversation otherwise."""


def with_arguments_as_objects(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as objects. What is no JSON stays text."""
    calls = message.get("tool_calls")
    return message if not calls else {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", {})
    return {**call, "function": {**function, "arguments": arguments_of(call)}}


def arguments_of(call: dict[str, Any]) -> Any:
    """The arguments of a call as a value; as text where they are no JSON."""
    arguments = call.get("function", {}).get("arguments") or "{}"
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def with_short_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every call with an id of nine letters and digits, every result with that of its call. A call without an id gets
    one by its place, a result without one that of the first call before it which has none yet."""
    unanswered: list[str] = []
    told: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            named = [{**call, "id": _short(call.get("id") or f"{place}.{i}")} for i, call in enumerate(calls)]
            unanswered = [call["id"] for call in named]
            message = {**message, "tool_calls": named}  # noqa: PLW2901 - a changed copy
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            short = _short(given) if given else (unanswered[0] if unanswered else _short(str(place)))
            if short in unanswered:
                unanswered.remove(short)
            message = {**message, "tool_call_id": short}  # noqa: PLW2901 - a changed copy
        told.append(message)
    return told


def _short(given: str) -> str:
    return given if SHORT_ID.fullmatch(given) else hashlib.sha256(given.encode()).hexdigest()[:9]
