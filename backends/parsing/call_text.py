"""One call as text: `{"name": …, "arguments": {…}}`, its members in any order, or Mistral's `name[ARGS]{…}`."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from backends.parsing.json_text import Broken, Unfinished, end_of_value, expect, skip_blanks

_ARGUMENTS: Final = frozenset({"arguments", "parameters"})
"""The second is Llama's word."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_CALL_ID: Final = re.compile(r"\[CALL_ID\][A-Za-z0-9_\-]*")
_ARGS: Final = "[ARGS]"


class Head(NamedTuple):
    """A call as far as it can be told: its name, and where its arguments are.

    `arguments`: the whole of them where they are known already. Otherwise they are the object that starts at `end`.
    """

    name: str
    end: int
    arguments: str | None = None
    is_closed: bool = False
    """The call's own object is over at `end`, too."""
    is_named: bool = False
    """It has no object of its own."""


def read_object(text: str, at: int) -> Head:
    """A call that starts at `at` with the brace of its object.

    Raises: Unfinished; Broken for an object that is no call.
    """
    at = expect(text, at, "{")
    name: str | None = None
    arguments: str | None = None
    if text[skip_blanks(text, at)] == "}":
        raise Broken
    while True:
        key, at = _key(text, at)
        if key in _ARGUMENTS and arguments is None:
            if text[at] == "{" and name is not None:
                return Head(name, at)
            end = end_of_value(text, at)
            arguments = _arguments(text[at:end])
        else:
            end = end_of_value(text, at)
            if key == "name" and name is None:
                name = _name(text[at:end])
        at = expect(text, end, ",}")
        if text[at - 1] == "}":
            if name is None:
                raise Broken
            return Head(name, at, arguments or "{}", is_closed=True)


def read_named(text: str, at: int) -> Head:
    """A call that starts at `at` with its name. Raises: Unfinished, Broken."""
    at = skip_blanks(text, at)
    match = _NAME.match(text, at)
    if match is None:
        raise Broken
    at = match.end()
    if match_id := _CALL_ID.match(text, at):
        at = match_id.end()
    if text.startswith(_ARGS, at):
        at += len(_ARGS)
    elif "[CALL_ID]".startswith(text[at:]) or _ARGS.startswith(text[at:]):
        raise Unfinished
    at = skip_blanks(text, at)
    if text[at] != "{":
        raise Broken
    return Head(match[0], at, is_named=True)


def read_rest(text: str, at: int) -> int:
    """The index after the call's object, whose arguments ended at `at`. Raises: Unfinished, Broken."""
    while True:
        at = expect(text, at, ",}")
        if text[at - 1] == "}":
            return at
        _, at = _key(text, at)
        at = end_of_value(text, at)


def _key(text: str, at: int) -> tuple[str, int]:
    """A member's name, and where its value starts."""
    at = skip_blanks(text, at)
    if text[at] != '"':
        raise Broken
    end = end_of_value(text, at)
    key = _string(text[at:end])
    return key, skip_blanks(text, expect(text, end, ":"))


def _string(text: str) -> str:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        raise Broken from None
    if type(value) is not str:
        raise Broken
    return value


def _name(text: str) -> str:
    name = _string(text)
    if not _NAME.fullmatch(name):
        raise Broken
    return name


def _arguments(text: str) -> str:
    """The arguments as text. A string of JSON, as some models write them, is what it holds."""
    if text.startswith('"'):
        text = _string(text).strip()
    if text in ("null", ""):
        return "{}"
    if not text.startswith("{"):
        raise Broken
    return text
