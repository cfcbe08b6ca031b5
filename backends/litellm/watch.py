"""What a provider's event stream said, read beside LiteLLM, which keeps some of it to itself.

In OpenAI's format it skips an event that is half a JSON, takes the end mark for a `stop` where no finish reason came,
and leaves of an error no more than its message.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from backends.litellm.measure import Measure

MAX_ERROR_BYTES: Final = 4096
MAX_LINE_BYTES: Final = 1 << 20
"""A longer event (a picture that a model painted) is not looked at: it would be put together from its pieces again and
again."""
TAIL_BYTES: Final = 1024
_COST: Final = re.compile(rb'"cost"\s*:\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*[,}]')


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Event).decode


class Watch:
    """Of one stream, as far as it was read."""

    __slots__ = ("_is_skipping", "_rest", "error", "has_finished", "is_broken", "is_openai")

    def __init__(self) -> None:
        self._rest = b""
        self._is_skipping = False
        self.is_broken = False
        """An event is no JSON."""
        self.is_openai = False
        self.has_finished = False
        """A finish reason came. OpenAI's format only."""
        self.error: Any = None
        """The value of the first event with an `error`."""

    def feed(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self._is_skipping and lines:
            self._is_skipping = False
            del lines[0]
        if self._is_skipping or len(self._rest) > MAX_LINE_BYTES:
            self._is_skipping, self._rest = True, b""
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def end(self) -> None:
        """A last line needs no line feed."""
        self.feed(b"\n")

    def _event(self, data: bytes) -> None:
        if not data or data == b"[DONE]":
            return
        try:
            event = _decode(data)
        except msgspec.ValidationError:
            return  # some other format's
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.is_broken = True
            return
        if event.choices is not None:
            self.is_openai = True
            self.has_finished |= any(choice.finish_reason for choice in event.choices)
        if self.error is None and 0 < len(event.error) <= MAX_ERROR_BYTES:
            self.error = msgspec.json.decode(event.error)


class Tail:
    """The end of an answer that is no stream: embeddings tell there what they cost, and LiteLLM drops it."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = b""

    def feed(self, data: bytes) -> None:
        self._last = (self._last[-TAIL_BYTES:] + data[-TAIL_BYTES:])[-TAIL_BYTES:]

    def end(self) -> None: ...

    @property
    def cost_usd(self) -> float | None:
        """What its usage tells; None where it tells nothing."""
        _, found, usage = self._last.rpartition(b'"usage"')
        cost = _COST.search(usage) if found else None
        return float(cost[1]) if cost is not None else None


class WatchedStream:
    """The body of an httpx response, measured and shown to a watch on its way."""

    def __init__(self, body: Any, measure: Measure, watch: Watch | Tail | None) -> None:
        self._body = body
        self._measure = measure
        self._watch = watch

    async def __aiter__(self) -> AsyncIterator[bytes]:
        measure, watch = self._measure, self._watch
        async for data in self._body:
            measure.feed(data)
            if watch is not None:
                watch.feed(data)
            yield data
        if watch is not None:
            watch.end()

    async def aclose(self) -> None:
        await self._body.aclose()
