"""A strict reader of OpenAI's event streams: it takes what the contract allows and refuses everything else.

A frame is one `data: …` line and a blank line; a comment line begins with a colon. Bytes are read as they
come, so that a frame cut in the middle of a character is put together again and a wrong frame is seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


class BadStream(AssertionError):
    """The bytes are not the event stream the contract describes."""


@dataclass
class SseReader:
    """Feed it bytes, take payloads: a dict per JSON frame, the string `[DONE]` for the last one."""

    pending: bytes = b""
    comments: list[str] = field(default_factory=list)
    done: bool = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | str]:
        """The payloads that `data` completes.

        Raises BadStream for a frame with anything beside one data line and comments, for JSON that is no
        object, for a number that JSON does not know, and for anything after `[DONE]`.
        """
        self.pending += data.replace(b"\r\n", b"\n")
        while b"\n\n" in self.pending:
            block, self.pending = self.pending.split(b"\n\n", 1)
            yield from self._frame(block.decode("utf-8"))

    def close(self) -> None:
        """Say that no more bytes come. Raises BadStream if a frame was left open."""
        if self.pending.strip():
            raise BadStream(f"the stream ended inside a frame: {self.pending[-200:]!r}")

    def _frame(self, block: str) -> Iterator[dict[str, Any] | str]:
        lines = [line for line in block.split("\n") if line]
        self.comments += [line for line in lines if line.startswith(":")]
        data = [line for line in lines if not line.startswith(":")]
        if not data:
            return
        if self.done:
            raise BadStream(f"a frame after [DONE]: {block!r}")
        if len(data) != 1 or not data[0].startswith("data:"):
            raise BadStream(f"a frame must be one data line: {block!r}")
        payload = data[0].removeprefix("data:").strip()
        if payload == "[DONE]":
            self.done = True
            yield payload
            return
        parsed = json.loads(payload, parse_constant=_refuse_constant)
        if not isinstance(parsed, dict):
            raise BadStream(f"a frame must hold a JSON object: {payload!r}")
        yield parsed


def _refuse_constant(name: str) -> None:
    raise BadStream(f"{name} is not JSON")


@dataclass(frozen=True)
class StreamedAnswer:
    """A whole stream: its status, its headers (names in lower case) and its JSON frames in order."""

    status: int
    headers: Mapping[str, str]
    chunks: list[dict[str, Any]]
    done: bool
    raw: bytes

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Every choice entry of every chunk, in order."""
        return [choice for chunk in self.chunks for choice in chunk.get("choices", [])]

    def of(self, index: int) -> list[dict[str, Any]]:
        """The entries of one choice."""
        return [choice for choice in self.choices if choice["index"] == index]

    def text(self, index: int = 0) -> str:
        """The text of one choice, chat or legacy completion."""
        return "".join(
            choice["delta"].get("content") or "" if "delta" in choice else choice.get("text") or ""
            for choice in self.of(index)
        )

    def finish_reasons(self, index: int = 0) -> list[str]:
        """Every finish reason that one choice was given; the contract wants exactly one."""
        return [choice["finish_reason"] for choice in self.of(index) if choice.get("finish_reason")]

    @property
    def usage(self) -> dict[str, Any] | None:
        """The last usage object, if any chunk has one."""
        found = [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]
        return found[-1] if found else None


def read_stream(status: int, headers: Mapping[str, str], body: Iterable[bytes]) -> StreamedAnswer:
    """Read a response to its end. An answer that is no event stream is a BadStream that shows its body."""
    lowered = {name.lower(): value for name, value in headers.items()}
    reader = SseReader()
    raw = b""
    chunks: list[dict[str, Any]] = []
    is_stream = lowered.get("content-type", "").startswith("text/event-stream")
    for data in body:
        raw += data
        if is_stream:
            chunks += [payload for payload in reader.feed(data) if isinstance(payload, dict)]
    if not is_stream:
        raise BadStream(f"{status} is no event stream: {raw[:500]!r}")
    reader.close()
    return StreamedAnswer(status=status, headers=lowered, chunks=chunks, done=reader.done, raw=raw)
