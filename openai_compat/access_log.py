"""One line of JSON per request: ids, counts and times; never a prompt, an answer or a key."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, TextIO

import msgspec

from openai_compat.record import RequestRecord

LOGGER = "llm.access"
CLIENT_LEFT = 499
"""The status of a line whose client left before the headers went out."""

_encode = msgspec.json.Encoder().encode


class AccessLog:
    """Writes the line of a finished request to the logger `llm.access`."""

    def __init__(self, level: str = "INFO") -> None:
        """`level` is that of every line, by name. Raises ValueError for a name that `logging` does not
        know."""
        number = logging.getLevelNamesMapping().get(level.upper())
        if number is None:
            raise ValueError(f"access_log_level is {level!r}; it must be one of DEBUG, INFO, WARNING, ERROR")
        self._level = number
        self._logger = logging.getLogger(LOGGER)

    def write(self, record: RequestRecord, now: float) -> None:
        """Write the line; `now` is `time.monotonic()` at the request's end."""
        logger = self._logger
        if logger.isEnabledFor(self._level):
            # Without `findCaller`, which costs more than the rest of the line.
            logger.handle(
                logger.makeRecord(LOGGER, self._level, "", 0, access_line(record, now, time.time()), (), None)
            )


def access_line(record: RequestRecord, now: float, wall_clock: float) -> str:
    """The line without its newline. What is not known is left out; times in ms, `time` in Unix seconds."""
    line: dict[str, Any] = {
        "time": round(wall_clock, 3),
        "request_id": record.request_id,
        "method": record.method,
        "route": record.route,
        "status": record.status or CLIENT_LEFT,
        "ms": round((now - record.received_at) * 1000.0, 2),
        "bytes": record.sent_bytes,
    }
    for name, value in (
        ("principal", record.principal),
        ("model", record.model),
        ("backend", record.backend),
        ("prompt_tokens", record.prompt_tokens),
        ("completion_tokens", record.completion_tokens),
        ("queue_ms", _ms(record.queue_s)),
        ("ttft_ms", _ms(record.ttft_s)),
        ("finish_reason", record.finish_reason),
        ("cancelled", record.cancelled_phase),
        ("error", record.error_code),
        ("fallback", record.fallback),
        ("cost_usd", record.cost_usd),
    ):
        if value is not None:
            line[name] = value
    for name in ("request_id", "method", "model"):
        text = line.get(name)
        # JSON escapes the ASCII controls; the other line breaks of Unicode are for us to take out.
        if text is not None and not (text.isascii() or text.isprintable()):
            line[name] = "".join(char if char.isprintable() else "?" for char in text)
    return _encode(line).decode()


def open_access_log(stream: TextIO | None = None) -> None:
    """Let the lines go to `stream` (standard output) as they are, whatever else logging is set to. Called
    once by the serving process; a second call changes the stream."""
    logger = logging.getLogger(LOGGER)
    handler = logging.StreamHandler(stream if stream is not None else sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG)
    logger.propagate = False


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000.0, 2)
