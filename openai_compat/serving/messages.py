"""From the messages of a request to those a chat template renders. Nothing a caller wrote is lost on the way.

Content becomes one string: parts joined by a newline, null becomes "". Where there are pictures the parts stay, with
nothing in them but what is known here. The deprecated spellings become the current ones (role `function`,
`function_call`, `reasoning`), because templates know only these. `developer` stays: the backend knows whether the
template does.
"""

from __future__ import annotations

from typing import Any, Final

from backends.errors import UnsupportedParameter
from openai_compat.schemas.messages import MEDIA_PARTS
from openai_compat.serving.gateway import Target, has_feature

_EMPTY_ARGUMENTS: Final = ("", "null")


DETAIL: Final = "image_url.detail"
"""How closely a picture is to be looked at, as it is named among what was ignored."""
_NO_DETAIL: Final = frozenset({"vllm"})
"""Backends whose engines look at every picture in the one way that their processor has."""


def normalise(messages: list[dict[str, Any]], target: Target) -> list[dict[str, Any]]:
    """Messages that met the schema, in the form `backends.types.ChatPrompt` describes; pictures are as they came.

    Raises: UnsupportedParameter for a part that the target cannot take, naming its place.
    """
    return [_normalise(message, index, target) for index, message in enumerate(messages)]


def idle_detail(messages: list[dict[str, Any]], target: Target) -> tuple[str, ...]:
    """`DETAIL` where somebody asks for one and the target has none."""
    if target.kind not in _NO_DETAIL:
        return ()
    asked = any(
        part["image_url"].get("detail") not in (None, "auto")
        for message in messages
        if type(content := message.get("content")) is list
        for part in content
        if part["type"] == "image_url"
    )
    return (DETAIL,) if asked else ()


def _normalise(message: dict[str, Any], index: int, target: Target) -> dict[str, Any]:
    role = message["role"]
    content = message.get("content")
    if type(content) is not str:
        content = _joined(content, index, target) if content else ""
    normal: dict[str, Any] = {"role": "tool" if role == "function" else role, "content": content}
    for key in ("name", "tool_call_id"):
        if message.get(key) is not None:
            normal[key] = message[key]
    if role == "assistant":
        _add_assistant_parts(normal, message, index, target.card.id)
    return normal


def _joined(parts: list[dict[str, Any]], index: int, target: Target) -> str | list[dict[str, Any]]:
    texts: list[str] = []
    kept: list[dict[str, Any]] = []
    for position, part in enumerate(parts):
        kind = part["type"]
        if kind not in MEDIA_PARTS:
            texts.append(part[kind])
            if part[kind]:
                kept.append({"type": "text", "text": part[kind]})
        elif kind == "image_url" and has_feature(target, "vision"):
            kept.append({"type": "image_url", "image_url": _picture(part["image_url"], target)})
        else:
            raise _not_taken(kind, f"messages[{index}].content[{position}]", target)
    return kept if any(part["type"] == "image_url" for part in kept) else "\n".join(texts)


def _picture(picture: dict[str, Any], target: Target) -> dict[str, Any]:
    own = {"url": picture["url"]}
    if target.kind not in _NO_DETAIL and picture.get("detail") is not None:
        own["detail"] = picture["detail"]
    return own


def _not_taken(kind: str, where: str, target: Target) -> UnsupportedParameter:
    card = target.card
    sees = kind == "image_url" and "vision" in card.capabilities
    why = f"on the backend {target.kind!r}" if sees else f"its capabilities: {', '.join(card.capabilities)}"
    return UnsupportedParameter(
        f"{where}: the model {card.id!r} does not take {kind} parts{' ' if sees else '; '}{why}", param=where
    )


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
