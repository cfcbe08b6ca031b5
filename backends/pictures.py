"""Pictures in the messages of a request: in it, or not at all.

A gateway has put every picture into the request that it makes. A backend looks all the same before it hands messages
on: whoever is behind it would fetch what a link names, from inside the operator's network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from backends.errors import InvalidParameter, UnsupportedParameter

_HEAD: Final = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,(?=[A-Za-z0-9+/])")
_DETAILS: Final = frozenset({"auto", "low", "high"})


def own_messages(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with nothing in their parts but what is known here: servers read more keys than OpenAI's API has.

    Raises: UnsupportedParameter, InvalidParameter naming the part.
    """
    return [
        {**message, "content": [_own(part, where) for part, where in _placed(message["content"], index)]}
        if isinstance(message.get("content"), list)
        else message
        for index, message in enumerate(messages)
    ]


def places(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Where the pictures are, as an error's `param` names it."""
    return [
        f"{where}.image_url"
        for index, message in enumerate(messages)
        if isinstance(content := message.get("content"), list)
        for part, where in _placed(content, index)
        if part.get("type") == "image_url"
    ]


def _placed(parts: list[Any], index: int) -> Iterator[tuple[Mapping[str, Any], str]]:
    for position, part in enumerate(parts):
        yield part, f"messages[{index}].content[{position}]"


def _own(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return {"type": "text", "text": part[kind]}
    if kind != "image_url":
        raise UnsupportedParameter(f"{where}: {kind} parts are not passed on", param=where)
    where += ".image_url"
    picture = part["image_url"]
    url = picture.get("url") if isinstance(picture, Mapping) else None
    if not isinstance(url, str) or _HEAD.match(url) is None:
        raise InvalidParameter(f"{where}: expected a data URL of a picture in base64", param=where)
    own = {"url": url}
    if picture.get("detail") in _DETAILS:
        own["detail"] = picture["detail"]
    return {"type": "image_url", "image_url": own}
