"""The `messages` of a chat: what a conversation may look like. What becomes of it: `serving.messages`."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from typing_extensions import override

from openai_compat.schemas.fields import Kind, ListOf, Object, OneOf, Record, Schema, Text, check_length
from openai_compat.schemas.problems import INVALID, Loc, Problems
from openai_compat.schemas.tagged import Tagged

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
MAX_MESSAGES: Final = 1000
MAX_PARTS: Final = 1000
MAX_TOOL_CALLS: Final = 128

MEDIA_PARTS: Final = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file"})
_CONTENTLESS_ROLES: Final = frozenset({"assistant", "function"})


class Messages(Kind):
    """1–1000 messages. Gives them as they came; nothing in them is changed here."""

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not list:
            return problems.add("list_type", loc, "Input should be a valid list", value)
        if not check_length(value, 1, MAX_MESSAGES, loc, problems):
            return INVALID
        before = problems.count
        for index, message in enumerate(value):
            _check_message(message, index, (*loc, index), problems)
        return INVALID if problems.count > before else value

    @property
    @override
    def schema(self) -> Schema:
        return {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": _MESSAGE_SCHEMA}


def _check_message(message: Any, index: int, loc: Loc, problems: Problems) -> None:
    if _WITH_ROLE.check(message, loc, problems) is INVALID:
        return
    role = message["role"]
    _check_content(message, role, index, loc, problems)
    (_ASSISTANT if role == "assistant" else _ANYONE).check(message, loc, problems)


def _check_content(message: dict[str, Any], role: str, index: int, loc: Loc, problems: Problems) -> None:
    content = message.get("content")
    at = (*loc, "content")
    if type(content) is str:
        empty = not content
    elif content is None:
        if role in _CONTENTLESS_ROLES:
            return
        if "content" in message:
            problems.add("string_type", at, f"content of role '{role}' cannot be null", None)
        else:
            problems.add("missing", at, "Field required", None)
        return
    elif type(content) is list:
        if _PARTS.check(content, at, problems) is INVALID:
            return
        empty = all(part["type"] not in MEDIA_PARTS and not part[part["type"]] for part in content)
    else:
        problems.add("string_type", at, "Input should be a string or a list of content parts", content)
        return
    if empty and role == "user":
        msg = f"Message at index {index} with role 'user' cannot have empty content"
        problems.add("value_error", at, msg, content)


class Arguments(Kind):
    """The JSON of an object, as text; empty text and the JSON of null are no arguments."""

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not str:
            return problems.add("string_type", loc, "Input should be a string of JSON", value)
        try:
            parsed = msgspec.json.decode(value) if value else None
        except (msgspec.MsgspecError, RecursionError):
            return problems.add("json_invalid", loc, "Input should be a string of valid JSON", value)
        if parsed is not None and type(parsed) is not dict:
            return problems.add("json_type", loc, "Input should be the JSON of an object", value)
        return value

    @property
    @override
    def schema(self) -> Schema:
        return {"type": "string", "description": "JSON of an object; empty is {}."}


_OBJECT: Final = Object()
_LINK: Final = Record({"url": Text()}, required=("url",))
_PICTURE: Final = Record({"url": Text(), "detail": OneOf("auto", "low", "high")}, required=("url",))


def _part(kind: str, inside: Kind) -> Record:
    """A part holds its content under the name of its type."""
    return Record({kind: inside}, required=(kind,))


_PARTS: Final = ListOf(
    Tagged(
        "type",
        {
            "text": _part("text", Text()),
            "refusal": _part("refusal", Text()),
            **{k: _part(k, _LINK if k.endswith("_url") else _OBJECT) for k in sorted(MEDIA_PARTS)},
            "image_url": _part("image_url", _PICTURE),
        },
    ),
    max_items=MAX_PARTS,
)
_WITH_ROLE: Final = Record({"role": OneOf(*ROLES)}, required=("role",))
_FUNCTION: Final = Record({"name": Text(min_length=1), "arguments": Arguments()}, required=("name",))
_CALL: Final = Record(
    {"id": Text(), "type": OneOf("function"), "function": _FUNCTION}, required=("function",)
)
_TEXTS: Final = {
    name: Text() for name in ("name", "tool_call_id", "refusal", "reasoning_content", "reasoning")
}
_ANYONE: Final = Record(_TEXTS)
_ASSISTANT: Final = Record(
    {
        **_TEXTS,
        "tool_calls": ListOf(_CALL, max_items=MAX_TOOL_CALLS),
        "function_call": _FUNCTION,
        "audio": _OBJECT,
    }
)

_MESSAGE_SCHEMA: Final[Schema] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        **_WITH_ROLE.schema["properties"],
        "content": {
            "description": "Null for the assistant and function roles only; never empty for the user role.",
            "anyOf": [
                {"type": "string"},
                _PARTS.schema,
                {"type": "null"},
            ],
        },
        **_ASSISTANT.schema["properties"],
    },
}
