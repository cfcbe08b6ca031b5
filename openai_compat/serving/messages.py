"""From the messages of a request to those a chat template renders. Nothing a caller wrote is lost on the way.

Content becomes one string: parts joined by a newline, null becomes "". The deprecated spellings become the
current ones (role `function`, `function_call`, `reasoning`), because templates know only these. `developer`
stays: the backend knows whether the template does.
"""

from __future__ import annotations

from typing import Any, Final

from backends.errors import UnsupportedParameter
from openai_compat.schemas.messages import MEDIA_PARTS

_EMPTY_ARGUMENTS: Final = ("", "null")


def normalise(messages: list[dict[str, Any]], *, vision: bool, model: str) -> list[dict[str, Any]]:
    """Messages that met the schema, in the form `backends.types.ChatPrompt` describes.

    Raises: UnsupportedParameter for a part that the model cannot take, naming its place.
    """
    return [_normalise(message, index, vision, model) for index, message in enumerate(messages)]


def _normalise(message: dict[str, Any], index: int, vision: bool, model: str) -> dict[str, Any]:
    role = message["role"]
    content = message.get("content")
    if type(content) is not str:
        content = _join(content, index, vision, model) if content else ""
    normal: dict[str, Any] = {"role": "tool" if role == "function" else role, "content": content}
    for key in ("name", "tool_call_id"):
        if message.get(key) is not None:
            normal[key] = message[key]
    if role == "assistant":
        _add_assistant_parts(normal, message, index, model)
    return normal


def _join(parts: list[dict[str, Any]], index: int, vision: bool, model: str) -> str | list[dict[str, Any]]:
    texts: list[str] = []
    has_images = False
    for part_index, part in enumerate(parts):
        kind = part["type"]
        if kind not in MEDIA_PARTS:
            texts.append(part[kind])
        elif vision and kind == "image_url":
            has_images = True
        else:
            where = f"messages[{index}].content[{part_index}]"
            raise UnsupportedParameter(f"{where}: model {model!r} does not take {kind} parts", param=where)
    return parts if has_images else "\n".join(texts)


def _add_assistant_parts(normal: dict[str, Any], message: dict[str, Any], index: int, model: str) -> None:
    if message.get("audio") is not None and not normal["content"]:
        where = f"messages[{index}].audio"
        raise UnsupportedParameter(f"{where}: model {model!r} does not take audio", param=where)
    if message.get("refusal") and not normal["content"]:
        normal["content"] = message["refusal"]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        normal["reasoning_content"] = reasoning
    calls = [_normalise_call(call) for call in message.get("tool_calls") or ()]
    if message.get("function_call") is not None and not calls:
        calls = [_normalise_call({"function": message["function_call"]})]
    if calls:
        normal["tool_calls"] = calls


def _normalise_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or ""
    normal: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": function["name"],
            "arguments": "{}" if arguments.strip() in _EMPTY_ARGUMENTS else arguments,
        },
    }
    if call.get("id") is not None:
        normal["id"] = call["id"]
    return normal
