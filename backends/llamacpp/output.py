"""The text of one choice: token bytes to characters, stop strings, and the moment it ends. No engine in here."""

from __future__ import annotations

import codecs

from backends.stop import StopMatcher
from backends.types import ChoiceFinished, FinishReason, TextDelta, TokenLogprobs


class ChoiceOutput:
    """Turns the tokens of one sequence into deltas that can be sent as they are.

    Characters whose bytes are split over tokens are held until they are whole; bytes that never become a character
    are U+FFFD, at the latest at the end. The joined deltas are the same however they were taken.
    """

    __slots__ = (
        "_decoder",
        "_delivered",
        "_entries",
        "_index",
        "_matcher",
        "_min_tokens",
        "_seen",
        "_text",
        "_untold",
        "num_generated",
    )

    def __init__(self, index: int, stop: tuple[str, ...], *, echo: str = "", min_tokens: int = 0) -> None:
        """`echo` is text that comes before the first token. It is no place for a stop, and neither is the text of the
        first `min_tokens` tokens."""
        self._index = index
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stop) if stop else None
        self._min_tokens = min_tokens
        self._text = echo
        self._seen = len(echo)
        self._delivered = 0
        self._entries: list[tuple[int, TokenLogprobs]] = []
        self._untold = 0
        self.num_generated = 0
        """Tokens sampled so far, the one that ended the turn included."""

    def count(self) -> None:
        """One more token was sampled; call it before `accept`, also for tokens that bring no text."""
        self.num_generated += 1
        self._untold += 1

    def accept(self, piece: bytes, logprobs: TokenLogprobs | None = None) -> bool:
        """Take a token's bytes. True when a stop string is now complete: then the choice is over."""
        text = self._decoder.decode(piece)
        if logprobs is not None:
            self._entries.append((self._seen, logprobs))
        self._seen += len(text)
        if self._matcher is None or self.num_generated <= self._min_tokens:
            self._text += text
            return False
        self._text += self._matcher.feed(text)
        return self._matcher.matched is not None

    def take_delta(self) -> TextDelta | None:
        """What may be sent since the last call, or None while everything is held back."""
        if not self._text:
            return None
        text, self._text = self._text, ""
        self._delivered += len(text)
        logprobs = self._take_entries() if self._entries else None
        num_tokens, self._untold = self._untold, 0
        return TextDelta(self._index, text, num_tokens, logprobs)

    def finish(self, reason: FinishReason, stop_reason: str | int | None) -> list[TextDelta | ChoiceFinished]:
        """The last events of the choice: the held-back tail, then the end."""
        tail = self._decoder.decode(b"", final=True)
        self._seen += len(tail)
        if self._matcher is not None and self.num_generated > self._min_tokens:
            tail = self._matcher.feed(tail) + self._matcher.flush()
            if self._matcher.matched is not None:
                reason, stop_reason = "stop", self._matcher.matched
        self._text += tail
        events: list[TextDelta | ChoiceFinished] = []
        delta = self.take_delta()
        if delta is not None:
            events.append(delta)
        cut = self._matcher is not None and self._matcher.matched is not None
        rest = () if cut else tuple(entry for _, entry in self._entries)
        self._entries.clear()
        events.append(ChoiceFinished(self._index, reason, stop_reason, rest or None))
        return events

    def _take_entries(self) -> tuple[TokenLogprobs, ...] | None:
        # A token belongs to the delta in which its first character goes out.
        ready = tuple(entry for start, entry in self._entries if start < self._delivered)
        self._entries = [item for item in self._entries if item[0] >= self._delivered]
        return ready or None
