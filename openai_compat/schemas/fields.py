"""Kinds of request fields: what each accepts, what it says when it does not, and its JSON schema.

One object is both the check and the documentation, so that the two cannot drift apart. Checks are strict: a
boolean is no number, a string is no number. An integer may be written `5.0`, the same JSON number as `5`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from typing_extensions import override

from openai_compat.schemas.problems import INVALID, Loc, Problems

Schema = dict[str, Any]


class Kind(ABC):
    """One kind of value. `check` returns the value to use, or `INVALID` after it added to `problems`."""

    @abstractmethod
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any: ...

    def check_all(self, values: list[Any]) -> list[Any] | None:
        """All values checked at once, None where one of them may not pass. For kinds of which a body may hold millions:
        `check` takes a microsecond for each, and nobody else is served meanwhile."""
        del values
        return None

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """JSON schema (2020-12) of what `check` accepts."""


class Boolean(Kind):
    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if value is True or value is False:
            return value
        return problems.add("bool_type", loc, "Input should be a valid boolean", value)

    @property
    @override
    def schema(self) -> Schema:
        return {"type": "boolean"}


class Number(Kind):
    """A finite number within `low`…`high`, both allowed, or above `above`. Gives a float."""

    type_error: ClassVar[tuple[str, str]] = ("float_type", "Input should be a valid number")

    def __init__(self, low: float | None, high: float, *, above: float | None = None) -> None:
        self.low = low
        self.high = high
        self.above = above

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        return float(value) if self.in_range(value, loc, problems) else INVALID

    def in_range(self, value: Any, loc: Loc, problems: Problems) -> bool:
        """Report what is no number or out of range. NaN fails every comparison, and so the last one here."""
        if type(value) is not float and type(value) is not int:
            kind, msg = self.type_error
            problems.add(kind, loc, msg, value)
        elif self.low is not None and value < self.low:
            problems.add(
                "greater_than_equal", loc, f"Input should be greater than or equal to {self.low}", value
            )
        elif self.above is not None and value <= self.above:
            problems.add("greater_than", loc, f"Input should be greater than {self.above}", value)
        elif not value <= self.high:
            problems.add("less_than_equal", loc, f"Input should be less than or equal to {self.high}", value)
        else:
            return True
        return False

    @property
    @override
    def schema(self) -> Schema:
        schema: Schema = {"type": "number", "maximum": self.high}
        if self.low is not None:
            schema["minimum"] = self.low
        if self.above is not None:
            schema["exclusiveMinimum"] = self.above
        return schema


class Integer(Number):
    """A whole number. Gives an int."""

    type_error = ("int_type", "Input should be a valid integer")

    def __init__(self, low: int, high: int) -> None:
        super().__init__(low, high)
        self._least = low

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if not self.in_range(value, loc, problems):
            return INVALID
        if type(value) is int:
            return value
        if not value.is_integer():
            msg = "Input should be a valid integer, got a number with a fractional part"
            return problems.add("int_from_float", loc, msg, value)
        if abs(value) > 2**53:  # above this a float has lost digits: it is not the number the caller wrote
            return problems.add("int_from_float", loc, "Input should be written as an integer", value)
        return int(value)

    @override
    def check_all(self, values: list[Any]) -> list[Any] | None:
        kinds = set(map(type, values))
        if not kinds or not kinds <= {int, float} or self.high > 2**53:
            return None
        try:
            checked = values if kinds == {int} else list(map(int, values))
        except (ValueError, OverflowError):  # NaN, infinity
            return None
        whole = checked is values or checked == values
        return checked if whole and min(checked) >= self._least and max(checked) <= self.high else None

    @property
    @override
    def schema(self) -> Schema:
        return {**super().schema, "type": "integer"}


class Text(Kind):
    def __init__(self, *, min_length: int = 0, max_length: int | None = None) -> None:
        self.min_length = min_length
        self.max_length = max_length

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not str:
            return problems.add("string_type", loc, "Input should be a valid string", value)
        if len(value) < self.min_length:
            msg = f"String should have at least {_count(self.min_length, 'character')}"
            return problems.add("string_too_short", loc, msg, value)
        if self.max_length is not None and len(value) > self.max_length:
            msg = f"String should have at most {_count(self.max_length, 'character')}"
            return problems.add("string_too_long", loc, msg, value)
        return value

    @property
    @override
    def schema(self) -> Schema:
        schema: Schema = {"type": "string"}
        if self.min_length:
            schema["minLength"] = self.min_length
        if self.max_length is not None:
            schema["maxLength"] = self.max_length
        return schema


class OneOf(Kind):
    """One of a few strings."""

    def __init__(self, *values: str) -> None:
        self.values = values
        quoted = [f"'{value}'" for value in values]
        self._msg = "Input should be " + (
            quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
        )

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is str and value in self.values:
            return value
        return problems.add("literal_error", loc, self._msg, value)

    @property
    @override
    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self.values)}


class ListOf(Kind):
    def __init__(self, item: Kind, *, min_items: int = 0, max_items: int) -> None:
        self.item = item
        self.min_items = min_items
        self.max_items = max_items

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not list:
            return problems.add("list_type", loc, "Input should be a valid list", value)
        if not check_length(value, self.min_items, self.max_items, loc, problems):
            return INVALID
        if (quickly := self.item.check_all(value)) is not None:
            return quickly
        check = self.item.check
        before = problems.count
        checked = []
        for index, item in enumerate(value):
            checked.append(check(item, (*loc, index), problems))
            if problems.is_full:
                break
        return INVALID if problems.count > before else checked

    @property
    @override
    def schema(self) -> Schema:
        schema: Schema = {"type": "array", "items": self.item.schema, "maxItems": self.max_items}
        if self.min_items:
            schema["minItems"] = self.min_items
        return schema


class Object(Kind):
    """Any JSON object, except keys in `reserved`."""

    def __init__(self, *, reserved: frozenset[str] = frozenset()) -> None:
        self.reserved = reserved

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not dict:
            return problems.add("dict_type", loc, "Input should be a valid object", value)
        for key in value:
            if key in self.reserved:
                return problems.add(
                    "value_error", (*loc, key), f"{key[:64]!r} may not be set here", value[key]
                )
        return value

    @property
    @override
    def schema(self) -> Schema:
        schema: Schema = {"type": "object"}
        if self.reserved:
            schema["propertyNames"] = {"not": {"enum": sorted(self.reserved)}}
        return schema


class Record(Kind):
    """An object with known members, of which null equals absent; others pass unread. Gives it as it came."""

    def __init__(self, members: Mapping[str, Kind], *, required: tuple[str, ...] = ()) -> None:
        self._members = members
        self._required = required

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not dict:
            return problems.add("dict_type", loc, "Input should be a valid object", value)
        before = problems.count
        for name, kind in self._members.items():
            member = value.get(name)
            if member is not None:
                kind.check(member, (*loc, name), problems)
            elif name in self._required:
                problems.add("missing", (*loc, name), "Field required", None)
        return INVALID if problems.count > before else value

    @property
    @override
    def schema(self) -> Schema:
        properties = {
            name: kind.schema if name in self._required else nullable(kind.schema)
            for name, kind in self._members.items()
        }
        schema: Schema = {"type": "object", "properties": properties}
        if self._required:
            schema["required"] = list(self._required)
        return schema


class Anything(Kind):
    """A field whose value nobody reads."""

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        return value

    @property
    @override
    def schema(self) -> Schema:
        return {}


class Stop(Kind):
    """One string or up to 16; never an empty one, which would end every answer at once. Gives a tuple."""

    _item = Text(min_length=1)
    _list = ListOf(_item, max_items=16)

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is str:
            checked = self._item.check(value, loc, problems)
            return checked if checked is INVALID else (checked,)
        if type(value) is not list:
            return problems.add("string_type", loc, "Input should be a string or a list of strings", value)
        checked = self._list.check(value, loc, problems)
        return checked if checked is INVALID else tuple(checked)

    @property
    @override
    def schema(self) -> Schema:
        return {"anyOf": [self._item.schema, self._list.schema]}


class LogitBias(Kind):
    """Token ids, written as strings as JSON demands, to −100…100. Gives `dict[int, float]`."""

    _bias = Number(-100, 100)
    max_entries: ClassVar[int] = 1024

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is not dict:
            return problems.add("dict_type", loc, "Input should be a valid object", value)
        if len(value) > self.max_entries:
            msg = f"Object should have at most {self.max_entries} entries, not {len(value)}"
            return problems.add("too_long", loc, msg, None)
        biases: dict[int, float] = {}
        before = problems.count
        for key, bias in value.items():
            at = (*loc, key[:32])
            if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_TOKEN_ID):
                problems.add("int_parsing", at, "Key should be a token id written as a string", key)
                continue
            biases[int(key)] = self._bias.check(bias, at, problems)
        return INVALID if problems.count > before else biases

    @property
    @override
    def schema(self) -> Schema:
        return {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": self._bias.schema,
            "maxProperties": self.max_entries,
        }


MAX_TOKEN_ID: Final = 2**31 - 1
"""Engines hold token ids in an int32; whether an id is in the vocabulary only the model knows."""

TOKEN_ID: Final = Integer(0, MAX_TOKEN_ID)


def check_length(value: list[Any], low: int, high: int, loc: Loc, problems: Problems) -> bool:
    """Report a list that is shorter than `low` or longer than `high`."""
    if len(value) < low:
        problems.add(
            "too_short", loc, f"List should have at least {_count(low, 'item')}, not {len(value)}", value
        )
        return False
    if len(value) > high:
        msg = f"List should have at most {_count(high, 'item')}, not {len(value)}"
        problems.add("too_long", loc, msg, None)
        return False
    return True


def nullable(schema: Mapping[str, Any]) -> Schema:
    """`schema`, or null: for every optional field null equals absent."""
    if not schema:
        return {}
    if isinstance(schema.get("type"), str) and "enum" not in schema and "oneOf" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [dict(schema), {"type": "null"}]}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
