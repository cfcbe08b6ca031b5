"""Token probabilities as servers write them, to ours: bytes, falling order, as many alternatives as were asked for."""

from __future__ import annotations

import math
import re
from itertools import zip_longest

import msgspec

from backends.errors import UpstreamError
from backends.types import TokenLogprob, TokenLogprobs
from backends.vllm.chunks import ChatLogprob, TopLogprob, decode_logprobs

_ESCAPED = re.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")
"""How OpenAI writes a token of a text completion that is no text by itself."""


def read_logprobs(raw: msgspec.Raw, num_top: int) -> list[TokenLogprobs]:
    """The tokens of one choice's `logprobs`, in order. A prompt's first token has no probability: NaN.

    Raises: UpstreamError.
    """
    try:
        said = decode_logprobs(raw) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UpstreamError("The server's log probabilities make no sense") from None
    if said is None:
        return []
    if said.content is not None:
        return [
            TokenLogprobs(
                _of_chat(entry), _best([_of_chat(top) for top in entry.top_logprobs or ()], num_top)
            )
            for entry in said.content
        ]
    tokens = said.tokens or []
    rows = zip_longest(tokens, said.token_logprobs or (), said.top_logprobs or ())
    return [
        TokenLogprobs(
            _of_text(token, logprob), _best([_of_text(*top) for top in (tops or {}).items()], num_top)
        )
        for token, logprob, tops in rows
        if token is not None
    ]


def _best(others: list[TokenLogprob], num_top: int) -> tuple[TokenLogprob, ...]:
    if len(others) > 1:
        others.sort(key=lambda other: other.logprob, reverse=True)
    return tuple(others[:num_top])


def _of_chat(entry: ChatLogprob | TopLogprob) -> TokenLogprob:
    if entry.bytes is None:
        return _of_text(entry.token, entry.logprob)
    try:
        return TokenLogprob(bytes(entry.bytes), _number(entry.logprob))
    except (ValueError, OverflowError):
        raise UpstreamError("The server's log probabilities make no sense") from None


def _of_text(token: str, logprob: float | None) -> TokenLogprob:
    match = _ESCAPED.fullmatch(token) if token.startswith("bytes:") else None
    data = bytes.fromhex(match[1].replace("\\x", "")) if match else token.encode("utf-8", "replace")
    return TokenLogprob(data, _number(logprob))


def _number(logprob: float | None) -> float:
    return math.nan if logprob is None else logprob
