"""Log lines as JSON objects on standard output."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from json_log import log_as_json

NAMES = ("", "bentoml", "uvicorn.error", "circus")


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    before = [(logging.getLogger(name), *_state(logging.getLogger(name))) for name in NAMES]
    for logger, *_ in before:  # as a process begins, whatever ran in this one: servers silence them
        logger.disabled = False
        logger.setLevel(logging.WARNING)
    yield
    logging.captureWarnings(False)
    for logger, handlers, propagate, level in before:
        logger.handlers[:] = handlers
        logger.propagate = propagate
        logger.setLevel(level)


def _state(logger: logging.Logger) -> tuple[list[logging.Handler], bool, int]:
    return list(logger.handlers), logger.propagate, logger.level


def test_a_record_becomes_one_object_on_one_line() -> None:
    out = io.StringIO()
    log_as_json(out)
    logging.getLogger("llm.some").warning("two\nlines of %s", "text")

    line = json.loads(out.getvalue())

    assert out.getvalue().count("\n") == 1
    assert {name: line[name] for name in ("level", "logger", "message")} == {
        "level": "WARNING",
        "logger": "llm.some",
        "message": "two\nlines of text",
    }


def test_a_traceback_stays_on_its_record_s_line() -> None:
    out = io.StringIO()
    log_as_json(out)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("llm.some").exception("it failed")

    assert "RuntimeError: broken" in json.loads(out.getvalue())["traceback"]


def test_a_logger_with_a_handler_of_its_own_writes_each_line_once() -> None:
    """BentoML gives uvicorn's logger the root's handler and lets its records travel up as well."""
    logger = logging.getLogger("uvicorn.error")
    logger.handlers[:] = [logging.StreamHandler(io.StringIO())]
    out = io.StringIO()
    log_as_json(out)
    logger.error("once")

    assert out.getvalue().count("once") == 1


def test_a_warning_of_python_is_a_line_too() -> None:
    out = io.StringIO()
    log_as_json(out)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("look out", UserWarning, stacklevel=1)

    assert "look out" in json.loads(out.getvalue())["message"]


def test_what_cannot_be_said_in_unicode_is_still_written() -> None:
    out = io.StringIO()
    log_as_json(out)
    logging.getLogger("llm.some").warning("a lone %s surrogate", "\ud800")

    assert "surrogate" in json.loads(out.getvalue())["message"]
