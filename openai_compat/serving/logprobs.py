"""Token probabilities in the two forms of the wire: entries for chat, parallel lists for completions.

A token may be part of a character. Its `bytes` are exact; its string shows the loose bytes as `\\xNN`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from backends.types import TokenLogprob, TokenLogprobs

FLOOR: Final = -9999.0
"""Stands for −inf (a token that a mask forbade), which JSON cannot hold."""


def chat_entries(tokens: Iterable[TokenLogprobs]) -> list[dict[str, Any]]:
    """`choices[].logprobs.content`."""
    return [
        {**_chat_entry(token.chosen), "top_logprobs": [_chat_entry(other) for other in token.top]}
        for token in tokens
    ]


class CompletionLogprobs:
    """`choices[].logprobs` of text completions, chunk by chunk: offsets go on where the last chunk ended."""

    def __init__(self) -> None:
        self._offset_chars = 0

    def take(self, tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """The four parallel lists of these tokens. Offsets are in characters of the choice's text. A token that has no
        probability (NaN: the first of an echoed prompt) is null in both lists of them."""
        strings: list[str] = []
        chosen: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token in tokens:
            data = token.chosen.token
            strings.append(token_text(data))
            if math.isnan(token.chosen.logprob):
                chosen.append(None)
                tops.append(None)
            else:
                logprob = _floor(token.chosen.logprob)
                chosen.append(logprob)
                # Where two tokens show as one string the likelier wins; the sampled token is always there.
                top = {token_text(other.token): _floor(other.logprob) for other in reversed(token.top)}
                top.setdefault(strings[-1], logprob)
                tops.append(top)
            offsets.append(self._offset_chars - (bool(data) and _continues(data[0])))
            self._offset_chars += sum(not _continues(byte) for byte in data)
        return {"tokens": strings, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets}


def token_text(token: bytes) -> str:
    """The token as a string; bytes that are no character by themselves as `\\xNN`."""
    return token.decode("utf-8", "backslashreplace")


def _chat_entry(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token_text(token.token),
        "logprob": _floor(token.logprob),
        "bytes": list(token.token),
    }


def _floor(logprob: float) -> float:
    """Within −9999…0; NaN counts as −inf."""
    if not logprob > FLOOR:
        return FLOOR
    return min(logprob, 0.0)


def _continues(byte: int) -> bool:
    """Whether a byte is the second or later one of a UTF-8 character."""
    return byte & 0xC0 == 0x80
