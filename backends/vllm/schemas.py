"""Schemas that vLLM takes and does not enforce as a whole.

Its compiler (xgrammar 0.2.8, tried one by one) drops what it does not know in silence, and keywords that stand beside
what it looks at first. vLLM itself hands on to another compiler, or refuses, what it knows to be such a case; here are
the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, Final

_NEVER: Final = (
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
)
_OF_TYPE: Final = (
    *("minLength", "maxLength", "pattern", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
    *("minProperties", "maxProperties", "propertyNames"),
)
"""Not looked at without a `type` beside them."""
_FIRST: Final = ("$ref", "const", "enum", "anyOf", "oneOf")
"""Of these the first that is there is looked at, and nothing beside it; so is an `allOf` of one, which alone is not
handed on to another compiler."""
_BESIDE: Final = frozenset(_OF_TYPE) | {
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "items",
    "prefixItems",
    "allOf",
    *_FIRST,
}
_OF_ITEMS: Final = ("uniqueItems", "contains", "minContains", "maxContains")
_FORMATS: Final = frozenset(
    {
        *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    }
)
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties", "contains", "propertyNames", "unevaluatedProperties")


def unenforced(schema: Any) -> str | None:
    """A keyword of it that vLLM would not enforce; None where there is none."""
    root = schema if isinstance(schema, dict) else {}
    return next((key for one in _schemas(schema) if (key := _dropped(one, root)) is not None), None)


def unenforced_in_calls(schema: Any) -> str | None:
    """The same for the arguments of calls, and for an answer beside which calls may come. Those schemas reach the
    compiler past vLLM's own look at them, after which it would have turned to another one."""
    key = unenforced(schema)
    return key or next((key for one in _schemas(schema) if (key := _beyond(one)) is not None), None)


def _beyond(schema: dict[str, Any]) -> str | None:
    """What the compiler drops of a schema whose `type` says what it is about."""
    types = _types(schema)
    if types & {"integer", "number"} and "multipleOf" in schema:
        return "multipleOf"
    if "array" in types:
        key = next((key for key in _OF_ITEMS if schema.get(key) not in (None, False)), None)
        if key is not None:
            return key
    if "string" in types:
        if "format" in schema and schema["format"] not in _FORMATS:
            return "format"
        if (key := _length_beside_form(schema)) is not None:
            return key
    if "object" in types:
        names, patterns = schema.get("propertyNames"), schema.get("patternProperties")
        if isinstance(names, dict) and (
            _length_beside_form(names) is not None
            or any(key in schema for key in ("properties", "patternProperties", "unevaluatedProperties"))
        ):
            return "propertyNames"
        if isinstance(patterns, dict) and ("properties" in schema or len(patterns) > 1):
            return "patternProperties"
    return "allOf" if len(_list(schema.get("allOf"))) > 1 else None


def _length_beside_form(schema: dict[str, Any]) -> str | None:
    if "pattern" not in schema and "format" not in schema:
        return None
    return next((key for key in ("minLength", "maxLength") if key in schema), None)


def _dropped(schema: dict[str, Any], root: dict[str, Any]) -> str | None:
    for key in _NEVER:
        if key in schema:
            return key
    types = _types(schema)
    alone = next((key for key in _OF_TYPE if key in schema), None)
    if alone is not None and not types:
        return alone
    properties = schema.get("properties")
    known = properties.keys() if isinstance(properties, dict) else ()
    if any(name not in known for name in _list(schema.get("required"))):
        return "required"
    if types and not all(_has_type(value, types) for value in _values(schema) or ()):
        return "type"
    first: str | None = next((key for key in _FIRST if key in schema), None)
    if first is None and len(_list(schema.get("allOf"))) == 1:
        first = "allOf"
    if first is not None:
        beside = next((key for key in schema if key in _BESIDE and key != first), None)
        if beside is not None:
            return beside
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        return "$ref"
    if types and first in ("$ref", "anyOf", "oneOf", "allOf"):
        parts = [schema] if first == "$ref" else _list(schema[first])
        if not all(_is_within(_resolved(part, root), types) for part in parts):
            return "type"
    options = schema.get("oneOf")
    if isinstance(options, list) and not all(_are_apart(a, b, root) for a, b in combinations(options, 2)):
        return "oneOf"
    return None


def _types(schema: dict[str, Any]) -> set[str]:
    found = schema.get("type")
    names = found if isinstance(found, list) else [found]
    return {name for name in names if isinstance(name, str)}


def _is_within(schema: dict[str, Any], types: set[str]) -> bool:
    """What the compiler takes for it has one of these types, as far as it says so itself."""
    values, own = _values(schema), _types(schema)
    if values is not None:
        return all(_has_type(value, types) for value in values)
    if any(key in schema for key in ("$ref", "anyOf", "oneOf", "allOf")):
        return False
    if not own and any(key in schema for key in ("properties", "additionalProperties", "patternProperties")):
        own = {"object"}
    return bool(own) and all(name in types or (name == "integer" and "number" in types) for name in own)


def _has_type(value: Any, types: set[str]) -> bool:
    if value is None or isinstance(value, bool):
        return ("null" if value is None else "boolean") in types
    if isinstance(value, int | float):
        is_whole = isinstance(value, int) or value.is_integer()
        return "number" in types or ("integer" in types and is_whole)
    name = "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
    return name in types


def _are_apart(one: Any, other: Any, root: dict[str, Any]) -> bool:
    """Nothing satisfies both, as far as types, values and a member of two objects tell."""
    one, other = _resolved(one, root), _resolved(other, root)
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not any(value in others for value in values)
    if _are_types_apart(_types(one), _types(other)):
        return True
    mine, theirs = one.get("properties"), other.get("properties")
    if not (isinstance(mine, dict) and isinstance(theirs, dict)):
        return False
    required = {*_list(one.get("required")), *_list(other.get("required"))}
    return any(
        name in required
        and isinstance(mine[name], dict)
        and isinstance(theirs[name], dict)
        and _are_apart_by_value(mine[name], theirs[name])
        for name in mine.keys() & theirs.keys()
    )


def _are_apart_by_value(one: dict[str, Any], other: dict[str, Any]) -> bool:
    values, others = _values(one), _values(other)
    return values is not None and others is not None and not any(value in others for value in values)


def _are_types_apart(one: set[str], other: set[str]) -> bool:
    is_number = {"integer", "number"}
    return bool(one and other) and not one & other and not (one & is_number and other & is_number)


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """What a reference into the definitions stands for."""
    found = schema if isinstance(schema, dict) else {}
    reference = found.get("$ref")
    if isinstance(reference, str) and reference.startswith(("#/$defs/", "#/definitions/")):
        _, place, name = reference.split("/", 2)
        defined = root.get(place)
        target = defined.get(name) if isinstance(defined, dict) else None
        return target if isinstance(target, dict) else {}
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    todo = [schema]
    while todo:
        one = todo.pop()
        if not isinstance(one, dict):
            continue
        yield one
        for key, value in one.items():
            if key in _NAMED and isinstance(value, dict):
                todo += value.values()
            elif key in _LISTED and isinstance(value, list):
                todo += value
            elif key in _SINGLE:
                todo.append(value)
