"""One JSON object per line on standard output, for whatever collects a container's logs.

Everything goes through `logging`: our own loggers, BentoML's, uvicorn's and the supervisor's. The line of a finished
request is JSON already and has a handler of its own (openai_compat/access_log.py).
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, TextIO

import msgspec
from typing_extensions import override

_LOGGERS: Final = ("", "bentoml", "uvicorn.error", "circus")
"""Those to which BentoML gives handlers; the first is the root."""

_encode = msgspec.json.Encoder().encode


class JsonFormatter(logging.Formatter):
    """`time` is in Unix seconds, as in the access log; a traceback is one string with `\\n` in it."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": _speakable(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = _speakable(self.formatException(record.exc_info))
        return _encode(line).decode()


def _speakable(text: str) -> str:
    """Half a surrogate pair, which a file name or a model's text may hold, has no UTF-8."""
    return text.encode("utf-8", "replace").decode()


def log_as_json(stream: TextIO | None = None) -> None:
    """Let every handler that BentoML has put up write JSON to `stream` (standard output), and Python's own warnings go
    the same way. Called while the service is imported: by then BentoML has set up logging, and not again later."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stdout)
    handler.setFormatter(JsonFormatter())
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if name == "" or logger.handlers:
            logger.handlers[:] = [handler]
            # BentoML leaves some loggers on with a handler of their own below the root's: each line came twice.
            logger.propagate = False
    logging.captureWarnings(True)
