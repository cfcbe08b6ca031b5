"""The keywords of JSON schema that engines compile: what their values must look like.

Engines differ in what they do with a schema that is none: an error of their own, or free text. So it ends here. A
keyword that is not in the table is left to the engine, which enforces it or refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard
from urllib.parse import unquote

MAX_COUNT: Final = 10_000
"""Of `minItems` and its like: compilers that write repetitions out pay for each."""

TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")


def problem_of(keyword: str, value: object, root: Any) -> str | None:
    """Why `value` is not what the keyword takes, as the end of a sentence; None if it is. `root`: what references are
    looked up in; None where that is not known."""
    if keyword in ("$ref", "$dynamicRef"):
        return _reference(value, root)
    shape = _SHAPES.get(keyword)
    if shape is None or shape[0](value):
        return None
    return f"it should be {shape[1]}"


def _reference(value: object, root: Any) -> str | None:
    if not isinstance(value, str):
        return "it should be a string"
    if not value.startswith("#"):
        return "a schema may refer only to its own parts, by '#…'"
    if root is None:
        return None
    found = _target(value, root)
    if found is _NOWHERE:
        return f"{value[:64]!r} leads nowhere"
    if not _is_schema(found):
        return f"{value[:64]!r} leads to something that is no schema"
    passed = {value}
    while isinstance(found, Mapping) and isinstance(further := found.get("$ref"), str):
        if further in passed:
            return f"{value[:64]!r} leads to nothing but references"
        passed.add(further)
        found = _target(further, root)
    return None


_NOWHERE: Final = object()


def _target(reference: str, root: Any) -> object:
    """What a reference to a part of `root` means; True, which takes anything, for an anchor."""
    if reference != "#" and not reference.startswith("#/"):
        return True
    found = root
    for part in unquote(reference[2:]).split("/") if len(reference) > 1 else ():
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isascii() and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return _NOWHERE
    return found


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> TypeGuard[float]:
    return _is_number(value) and value >= 0 and value % 1 == 0


def _is_short_count(value: object) -> bool:
    return _is_count(value) and value <= MAX_COUNT


def _is_type(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, str) and one in TYPES for one in value)
    return isinstance(value, str) and value in TYPES


def _are_named(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _are_listed(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


_Shape = tuple[Callable[[object], bool], str]
_SCHEMA: Final[_Shape] = (_is_schema, "a schema")
_NAMED: Final[_Shape] = (_are_named, "an object of schemas")
_LISTED: Final[_Shape] = (_are_listed, "a list of schemas")
_TEXT: Final[_Shape] = (_is_text, "a string")
_NUMBER: Final[_Shape] = (_is_number, "a number")
_COUNT: Final[_Shape] = (_is_count, "a whole number of at least 0")
_SHORT_COUNT: Final[_Shape] = (_is_short_count, f"a whole number of 0 to {MAX_COUNT}")

_SHAPES: Final[Mapping[str, _Shape]] = {
    "type": (_is_type, "one or several of " + ", ".join(TYPES)),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of values"),
    "required": (lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of names"),
    "items": (lambda value: _is_schema(value) or _are_listed(value), "a schema"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "maxLength": _COUNT,
    **dict.fromkeys(("minLength", "minItems", "maxItems", "minContains", "maxContains"), _SHORT_COUNT),
    **dict.fromkeys(("minProperties", "maxProperties"), _SHORT_COUNT),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("pattern", "format"), _TEXT),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), _NAMED),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _LISTED),
    **dict.fromkeys(("additionalProperties", "propertyNames", "contains", "additionalItems"), _SCHEMA),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems", "not", "if", "then", "else"), _SCHEMA),
}
