"""One instance of a JSON schema, always the same: the shortest that the fake knows how to make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from backends.errors import InvalidGrammar

MAX_DEPTH: Final = 32
"""Levels of an instance; a schema that asks for more has no finite one that is worth looking for."""

_STRING_FORMATS: Final = {
    "date": "2024-01-01",
    "date-time": "2024-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "a@example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com/",
}


def instance(schema: Any) -> Any:
    """Knows constants, enums, unions, local references, bounds of lengths and numbers; not patterns, and not what two
    keywords demand together.

    Raises: InvalidGrammar for a schema it knows no instance of.
    """
    try:
        return _Maker(schema).make(schema, 0)
    except (AttributeError, LookupError, TypeError):  # a keyword whose value is of the wrong kind
        raise _unknown("a schema") from None


class _Maker:
    def __init__(self, root: Any) -> None:
        self._root = root

    def make(self, schema: Any, depth: int) -> Any:
        if schema is True:
            return None
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            raise _unknown("a schema")
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        if "$ref" in schema:
            return self.make(self._resolve(schema["$ref"]), depth + 1)
        for union in ("anyOf", "oneOf", "allOf"):
            if schema.get(union):
                return self.make({**_rest(schema, union), **schema[union][0]}, depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "null")
        maker = _MAKERS.get(kind[0] if isinstance(kind, list) and kind else kind)
        if maker is None or "pattern" in schema:
            raise _unknown("a pattern" if maker else "a type")
        return maker(self, schema, depth + 1)

    def object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """The required members, or else the first."""
        members = schema.get("properties", {})
        required = schema.get("required") or list(members)[:1]
        return {name: self.make(members.get(name, True), depth) for name in required}

    def array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        items = schema.get("items", True)
        return [self.make(items, depth) for _ in range(schema.get("minItems", 0))]

    def string(self, schema: Mapping[str, Any], depth: int) -> str:
        del depth
        if schema.get("format") in _STRING_FORMATS:
            return _STRING_FORMATS[schema["format"]]
        length: int = max(4, schema.get("minLength", 0))
        return ("fake" * (1 + length // 4))[: min(length, schema.get("maxLength", length))]

    def number(self, schema: Mapping[str, Any], depth: int) -> float:
        del depth
        low: float = max(schema.get("minimum", 0), schema.get("exclusiveMinimum", -1) + 1)
        high: float = min(schema.get("maximum", low), schema.get("exclusiveMaximum", low + 1) - 1)
        return min(low, high)

    def _resolve(self, reference: str) -> Any:
        found = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                raise _unknown(f"the reference {reference[:64]!r}")
            found = found[name]
        return found


_MAKERS: Final[Mapping[object, Callable[[_Maker, Mapping[str, Any], int], Any]]] = {
    "object": _Maker.object,
    "array": _Maker.array,
    "string": _Maker.string,
    "number": _Maker.number,
    "integer": _Maker.number,
    "boolean": lambda *_: True,
    "null": lambda *_: None,
}


def _rest(schema: Mapping[str, Any], without: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != without}


def _unknown(what: str) -> InvalidGrammar:
    return InvalidGrammar(f"The fake backend cannot make an instance of {what} like this", param=None)
