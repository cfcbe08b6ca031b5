"""Prompts and lengths: drawn from a seed, so that a run can be repeated, and never the same prompt twice in a run."""

from __future__ import annotations

import random
from collections.abc import Iterator

_TEXT = """
river stone winter market paper silent music green engine table cloud copper lamp forest window
garden bridge yellow letter summer doctor island mirror silver pocket rabbit shadow button castle
dinner farmer finger flower guitar hammer kitchen ladder lemon machine morning mountain needle
orange painter pencil pepper pillow planet potato quiet rocket saddle school season sister smoke
spider station street sugar temple thunder ticket tiger tower travel valley village violet walnut
water weather whisper yard zebra anchor apple autumn basket blanket bottle branch candle carpet
cheese circle coffee corner cotton desert dragon eagle evening feather fiddle fire frozen gentle
giant glass golden harbour heavy honey horse
"""
WORDS = _TEXT.split()
"""Each is one or two tokens for the usual vocabularies."""

WORDS_PER_PROMPT = 64
"""With the chat template about 100 tokens of SmolLM2."""


class Prompts:
    """An endless row of prompts; each is handed out once, whoever asks.

    llama-server keeps gigabytes of finished prompts, so one that was seen before is no longer a prompt to compute.
    """

    def __init__(self, seed: int, words: int = WORDS_PER_PROMPT) -> None:
        self._seed = seed
        self.words = words
        self._next = 0

    def draw(self, words: int | None = None) -> str:
        source = random.Random(f"{self._seed}/prompt/{self._next}")
        self._next += 1
        return " ".join(source.choices(WORDS, k=words or self.words)) + ". Tell me a long story."


def lengths(seed: int, *where: object, shortest: int = 32, longest: int = 128) -> Iterator[int]:
    """Endless output lengths, uniform from `shortest` to `longest`. The same `where` gives the same lengths: both
    servers of an alternation get the same."""
    source = random.Random(f"{seed}/length/{where}")
    while True:
        yield source.randint(shortest, longest)


def warmup_lengths(streams: int, longest: int = 64) -> list[int]:
    """One length per stream, evenly spread: streams that begin together end apart, as they do in traffic."""
    return [4 + round((longest - 4) * (i + 1) / streams) for i in range(streams)]
