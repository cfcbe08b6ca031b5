"""Objects that hold what their schema names and nothing else.

JSON schema lets an object hold any other member too, and a small model that may go on naming members does. Leaving
them out gives answers that satisfy the schema all the same; vLLM leaves them out as well. Not where schemas are put
together: there one part would forbid what another asks for, or an answer would satisfy two of which it must satisfy
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_SINGLE_TOO: Final = ("unevaluatedProperties", "unevaluatedItems", "additionalItems")
_JOINING: Final = frozenset(("allOf", "oneOf", "not", "if", "dependentSchemas", "$dynamicRef"))
_BESIDE: Final = frozenset(("anyOf", "$ref"))
_MEMBERS: Final = frozenset(
    ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames")
)


def closed(schema: Any, *, always: bool = False) -> Any:
    """The schema with `additionalProperties: false` wherever members are named and nothing is said of others. `always`:
    also where schemas are put together."""
    if not always and any(map(_joins, _schemas(schema))):
        return schema
    return _closed(schema)


def _joins(schema: dict[str, Any]) -> bool:
    return bool(_JOINING & schema.keys() or (_BESIDE & schema.keys() and _MEMBERS & schema.keys()))


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    todo = [schema]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            yield one
            todo += (part for _, part in _parts(one))


def _parts(schema: dict[str, Any]) -> Iterator[tuple[tuple[str, str | int | None], Any]]:
    """The schemas right below: where each stands, and what it is."""
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            yield from (((key, name), part) for name, part in value.items())
        elif (key in _LISTED or key == "items") and isinstance(value, list):
            yield from (((key, index), part) for index, part in enumerate(value))
        elif key in _SINGLE or key in _SINGLE_TOO:
            yield (key, None), value


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = dict(schema)
    for (key, below), part in _parts(schema):
        if below is None:
            made[key] = _closed(part)
            continue
        if made[key] is schema[key]:
            made[key] = schema[key].copy()
        made[key][below] = _closed(part)
    says_more = made.keys() & {"additionalProperties", "patternProperties", "unevaluatedProperties"}
    if "properties" in made and not says_more:
        made["additionalProperties"] = False
    return made
