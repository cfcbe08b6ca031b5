"""What an answer says: the texts, thoughts and calls of its choices, or its vectors."""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openai_compat.receipts.outputs import Call, sha256_of, sha256_of_calls


@dataclass(slots=True)
class Said:
    """One choice, or one vector (little-endian float32)."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    vector: bytes | None = None
    finish_reason: str | None = None

    @property
    def digests(self) -> tuple[str | None, ...]:
        """Of text, thoughts, calls and vector, as a receipt has them; None for what there is none of."""
        if self.vector is not None:
            return None, None, None, hashlib.sha256(self.vector).hexdigest()
        return (
            sha256_of(self.text),
            sha256_of(self.reasoning) if self.reasoning else None,
            sha256_of_calls(self.calls) if self.calls else None,
            None,
        )


def said_by(answer: Mapping[str, Any]) -> list[Said]:
    """Of a whole answer, in the choices' order. Raises: ValueError for what is no answer."""
    try:
        if isinstance(answer.get("data"), list):
            entries = sorted(answer["data"], key=lambda entry: int(entry["index"]))
            return [Said(vector=_vector(entry["embedding"])) for entry in entries]
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        return [_choice(choice) for choice in choices]
    except (KeyError, TypeError, AttributeError, struct.error, binascii.Error, OverflowError):
        raise ValueError("it is no answer of a completion or an embedding") from None


def _choice(choice: Mapping[str, Any]) -> Said:
    reason = choice.get("finish_reason")
    said = Said(finish_reason=reason if isinstance(reason, str) else None)
    if "message" not in choice:
        said.text = _text(choice["text"])
        return said
    message = choice["message"]
    said.text = _text(message.get("content"))
    said.reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
    said.calls = tuple(
        (_text(call["function"]["name"]), _text(call["function"].get("arguments")))
        for call in message.get("tool_calls") or ()
    )
    return said


def said_in_stream(chunks: list[Mapping[str, Any]]) -> list[Said]:
    """Of the chunks of a stream. Raises: ValueError for what is none."""
    found: dict[int, Said] = {}
    calls: dict[int, dict[int, list[str]]] = {}
    try:
        for chunk in chunks:
            for choice in chunk.get("choices") or ():
                index = int(choice["index"])
                said = found.setdefault(index, Said())
                delta = choice.get("delta") or {}
                said.text += _text(choice.get("text") or delta.get("content"))
                said.reasoning += _text(delta.get("reasoning_content") or delta.get("reasoning"))
                for call in delta.get("tool_calls") or ():
                    parts = calls.setdefault(index, {}).setdefault(int(call["index"]), ["", ""])
                    function = call.get("function") or {}
                    parts[0] += _text(function.get("name"))
                    parts[1] += _text(function.get("arguments"))
                if isinstance(choice.get("finish_reason"), str):
                    said.finish_reason = choice["finish_reason"]
    except (KeyError, TypeError, AttributeError):
        raise ValueError("it is no stream of a completion") from None
    for index, by_number in calls.items():
        found[index].calls = tuple((name, arguments) for _, (name, arguments) in sorted(by_number.items()))
    return [said for _, said in sorted(found.items())]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    return value


def _vector(value: Any) -> bytes:
    if isinstance(value, str):
        return base64.b64decode(value, validate=True)
    return struct.pack(f"<{len(value)}f", *value)
