"""The fake's tokens: a word with the blanks before it, long words in pieces of eight characters.

`"".join(split(text)) == text` for every text. An id is a checksum of the token's text, so that ids are
stable without a vocabulary; the text of an id that a caller sends is the id in angle brackets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

from backends.errors import InvalidParameter
from backends.types import ChatPrompt, Prompt, TextPrompt, TokenLogprob, TokenLogprobs

VOCABULARY = 32_768
MESSAGE_TOKENS = 4
"""What the fake's chat template puts around each message."""
TURN_TOKENS = 2
"""What it puts before the answer."""

_TOKEN = re.compile(r"\s*\S{1,8}|\s+")


def split(text: str) -> list[str]:
    return _TOKEN.findall(text)


def token_id(token: str) -> int:
    return crc32(token.encode("utf-8", "surrogatepass")) % VOCABULARY


def count(prompt: Prompt) -> int:
    """Tokens of the prompt, its template's included."""
    if isinstance(prompt, ChatPrompt):
        total = TURN_TOKENS if prompt.add_generation_prompt else 0
        for message in prompt.messages:
            total += MESSAGE_TOKENS + len(split(_text_of(message.get("content"))))
            total += len(split(str(message["tool_calls"]))) if message.get("tool_calls") else 0
        return total + (len(split(str(prompt.tools))) if prompt.tools else 0)
    if isinstance(prompt, TextPrompt):
        return len(split(prompt.text))
    return len(prompt.token_ids)


def text_of(prompt: Prompt) -> str:
    """What the fake echoes: the last message of a user or a tool (or the last one at all), or the prompt."""
    if isinstance(prompt, ChatPrompt):
        said = [m for m in prompt.messages if m.get("role") in ("user", "tool")] or prompt.messages
        return _text_of(said[-1].get("content")) if said else ""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    return "".join(f" <{i}>" for i in prompt.token_ids)


def check_ids(ids: Sequence[int], param: str) -> None:
    """Raises: InvalidParameter naming the first id outside the vocabulary."""
    for i in ids:
        if not 0 <= i < VOCABULARY:
            raise InvalidParameter(
                f"The token id {i} is not in the vocabulary of {VOCABULARY} tokens", param=param
            )


def logprobs(token: str, num_top: int) -> TokenLogprobs:
    """Made-up probabilities: the token is the best one, the alternatives fall off by half a nat each."""
    best = -0.01 * (1 + token_id(token) % 50)
    chosen = TokenLogprob(token.encode("utf-8", "replace"), best)
    others = (TokenLogprob(f" {i}".encode(), best - 0.5 * i) for i in range(1, num_top))
    return TokenLogprobs(chosen, (chosen, *others) if num_top else ())


def _text_of(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
