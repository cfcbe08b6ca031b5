"""How large the JSON schemas and regexes of a request may be, so that compiling one cannot hold an engine; and that
they are schemas at all.

What is counted is what compilers pay for: nodes, depth, and for a regex the size it has once its counted repetitions
are written out. Nobody compiles anything here; what is within the limits may still be refused by the engine.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final

import msgspec
from typing_extensions import override

from backends.errors import InvalidGrammar
from openai_compat.schemas.keywords import problem_of

MAX_SCHEMA_BYTES: Final = 262_144
"""Of one field's schemas together, as compact JSON."""
MAX_SCHEMA_NODES: Final = 20_000
"""Objects, lists and values of one field's schemas together. Walking them takes about 20 ms."""
MAX_SCHEMA_DEPTH: Final = 64
MAX_REGEX_CHARS: Final = 4096
MAX_REGEX_SIZE: Final = 10_000
"""Atoms of a regex whose repetitions are written out: `(ab){50}` is 100."""
MAX_REGEX_NESTING: Final = 100
MAX_GRAMMAR_CHARS: Final = 65_536
MAX_CHOICE_CHARS: Final = 65_536
"""Of all choices together."""

_DATA: Final = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose value is an instance, not a schema: nothing in it means anything."""
_NAMES: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose members are named by the caller: `pattern` is a property there."""
_MAX_PARAM_CHARS: Final = 256
_COUNTED: Final = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}")
_GROUP_KIND: Final = re.compile(r"\?(?:P?<[^>=!]*>|<?[=!]|[a-zA-Z-]*:|>)")


def check_tools(tools: list[dict[str, Any]], *, enforced: bool, field: str = "tools") -> None:
    """`enforced`: the answer must match their schemas, whatever each says of itself. `field`: where they stood in the
    body, `tools` or `functions`.

    Raises: InvalidGrammar naming the place.
    """
    budget = _Budget(field)
    inside = "function." if field == "tools" else ""
    for index, tool in enumerate(tools):
        function = tool["function"]
        parameters = function.get("parameters")
        if parameters is not None:
            place = f"{field}[{index}].{inside}parameters"
            is_compiled = enforced or function.get("strict") is True
            budget.walk(parameters, place, _Holds.SCHEMA if is_compiled else _Holds.DATA)
    budget.spend_bytes(tools)


def check_response_format(form: dict[str, Any] | None) -> None:
    """Raises: InvalidGrammar naming the place."""
    if form is not None and "json_schema" in form:
        schema = form["json_schema"]["schema"]
        budget = _Budget("response_format")
        budget.walk(schema, "response_format.json_schema.schema", _Holds.SCHEMA)
        budget.spend_bytes(schema)


def check_structured_outputs(outputs: dict[str, Any] | None) -> None:
    """Raises: InvalidGrammar naming the place."""
    for key, value in (outputs or {}).items():
        place = f"structured_outputs.{key}"
        if key in ("json", "structural_tag"):
            budget = _Budget("structured_outputs")
            schema = msgspec.json.decode(value) if isinstance(value, str) else value
            budget.walk(schema, place, _Holds.SCHEMA if key == "json" else _Holds.TAGS)
            budget.spend_bytes(schema)
        elif key in ("regex", "whitespace_pattern"):
            check_regex(value, place)
        elif key == "grammar":
            _check_at_most(len(value), MAX_GRAMMAR_CHARS, "characters", place)
        elif key == "choice":
            _check_at_most(sum(map(len, value)), MAX_CHOICE_CHARS, "characters", place)


def check_regex(pattern: str, place: str | _Place) -> None:
    """Raises: InvalidGrammar if it is too long, nested too deeply or too large once written out."""
    _check_at_most(len(pattern), MAX_REGEX_CHARS, "characters", place)
    size, nesting = regex_size(pattern)
    _check_at_most(nesting, MAX_REGEX_NESTING, "nested groups", place)
    if size > MAX_REGEX_SIZE:
        raise _invalid(f"its repetitions multiply to more than {MAX_REGEX_SIZE} characters", place)


def regex_size(pattern: str) -> tuple[int, int]:
    """Atoms once counted repetitions are written out, and the deepest nesting of groups. Reads any dialect, and what is
    no valid regex too: that is for the engine to say."""
    before, last = 0, 0
    outer: list[tuple[int, int]] = []
    nesting = at = 0
    while at < len(pattern):
        char = pattern[at]
        step = 1
        if char == "{" and (counted := _COUNTED.match(pattern, at)):
            step = counted.end() - at
            last *= max(int(counted[1]), int(counted[3] or 0), 1)
        elif char == "(":
            outer.append((before + last, 0))
            nesting = max(nesting, len(outer))
            before, last = 0, 0
            if kind := _GROUP_KIND.match(pattern, at + 1):
                step += kind.end() - kind.start()
        elif char == ")" and outer:
            group = before + last
            before, last = outer.pop()[0], group
        elif char not in "*+?":
            before, last = before + last, 1
            step = _atom_length(pattern, at)
        at += step
    total = before + last + sum(size for size, _ in outer)
    return total, nesting


def _atom_length(pattern: str, at: int) -> int:
    """Characters of the atom that begins here: an escape, a class in brackets, or one character."""
    if pattern[at] == "\\":
        return 2
    if pattern[at] != "[":
        return 1
    end = at + 1
    end += pattern.startswith("^", end)
    end += pattern.startswith("]", end)  # first in a class it is a member
    while end < len(pattern) and pattern[end] != "]":
        end += 2 if pattern[end] == "\\" else 1
    return end + 1 - at


class _Budget:
    """What the schemas of one field may cost together."""

    def __init__(self, param: str) -> None:
        self._param = param
        self._nodes = 0

    def spend_bytes(self, schemas: object) -> None:
        _check_at_most(len(msgspec.json.encode(schemas)), MAX_SCHEMA_BYTES, "bytes", self._param)

    def walk(self, root: dict[str, Any], place: str, kind: _Holds) -> None:
        """Count what is there, and look at what it asks for where it will be compiled."""
        known_root = root if kind is _Holds.SCHEMA else None
        todo: list[tuple[Any, _Place, _Holds]] = [(root, _Place(place), kind)]
        while todo:
            value, at, holds = todo.pop()
            self._nodes += 1
            if self._nodes > MAX_SCHEMA_NODES:
                raise _invalid(f"the schemas have more than {MAX_SCHEMA_NODES} nodes", self._param)
            if not isinstance(value, dict | list):
                continue
            if at.depth >= MAX_SCHEMA_DEPTH:
                raise _invalid(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels", at)
            for key, member in value.items() if isinstance(value, dict) else enumerate(value):
                below = _Place(key, at)
                if holds is _Holds.SCHEMA:
                    _check_keyword(key, member, below, known_root)
                elif holds is _Holds.PATTERNS:
                    check_regex(str(key), below)
                elif holds is _Holds.TAGS and key == "pattern" and isinstance(member, str):
                    check_regex(member, below)
                todo.append((member, below, _held_by(holds, key)))


class _Holds(Enum):
    """What the members of an object are."""

    SCHEMA = 0
    """Keywords (or, in a list, schemas)."""
    NAMES = 1
    """Schemas under names that the caller chose."""
    PATTERNS = 2
    """Schemas under regexes."""
    DATA = 3
    """Nothing that means anything."""
    TAGS = 4
    """Parts of a structural tag, which hold schemas of their own."""


def _held_by(holder: _Holds, key: str | int) -> _Holds:
    """What the member `key` of an object holds itself."""
    if holder is _Holds.DATA or (holder is _Holds.SCHEMA and key in _DATA):
        return _Holds.DATA
    if holder is _Holds.TAGS:
        return _Holds.SCHEMA if key in ("schema", "json_schema") else _Holds.TAGS
    if holder is not _Holds.SCHEMA or key not in _NAMES:
        return _Holds.SCHEMA
    return _Holds.PATTERNS if key == "patternProperties" else _Holds.NAMES


class _Place:
    """A path into a schema, put together only when it is told."""

    __slots__ = ("_above", "_key", "depth")

    def __init__(self, key: str | int, above: _Place | None = None) -> None:
        self._key = key
        self._above = above
        self.depth: int = 0 if above is None else above.depth + 1

    @override
    def __str__(self) -> str:
        parts: list[str] = []
        place: _Place | None = self
        while place is not None:
            key, place = place._key, place._above
            parts.append(f"[{key}]" if isinstance(key, int) else f".{key[:64]}")
        return "".join(reversed(parts)).removeprefix(".")


def _check_keyword(key: str | int, value: object, place: _Place, root: dict[str, Any] | None) -> None:
    """What one keyword asks for."""
    if isinstance(key, str) and (why := problem_of(key, value, root)) is not None:
        raise _invalid(why, place)
    if key == "pattern" and isinstance(value, str):
        check_regex(value, place)


def _check_at_most(value: int, limit: int, what: str, place: str | _Place) -> None:
    if value > limit:
        raise _invalid(f"{value} {what} are more than the limit of {limit}", place)


def _invalid(why: str, place: str | _Place) -> InvalidGrammar:
    where = str(place)
    if len(where) > _MAX_PARAM_CHARS:
        where = f"{where[: _MAX_PARAM_CHARS - 1]}…"
    return InvalidGrammar(f"{where}: {why}", param=where)
